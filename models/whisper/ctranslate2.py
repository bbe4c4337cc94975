"""Whisper in CTranslate2's files (trainers/weights/ctranslate2.py). No JAX.

Queries, keys and values are one matrix there, as are keys and values of the second attention; `NAME[a:b]` are rows of a
variable. The biases of keys, which Whisper has none of, are stored as zeros.
"""

from collections.abc import Mapping
from typing import Any

from models.interchange import ArrayFiles, Entry, InterchangeError, Shape
from models.interchange.tensors import convolution, matrix, norm, table, vector
from models.whisper.config import WhisperConfig
from models.whisper.openai import config_of

_SCALE_BIAS = ("gamma", "beta")


class _CTranslate2(ArrayFiles[WhisperConfig]):
    def read_config(self, shapes: Mapping[str, Shape]) -> WhisperConfig:
        """Returns the configuration of the model whose variables these are; raises InterchangeError where one is missing."""
        try:
            vocab, width = shapes["decoder/embeddings/weight"]
            _, mels, _ = shapes["encoder/conv1/weight"]
            sources, targets = (shapes[f"{side}/position_encodings/encodings"][0] for side in ("encoder", "decoder"))
            hidden = shapes["encoder/layer_0/ffn/linear_0/weight"][0]
        except (KeyError, ValueError) as error:
            raise InterchangeError(f"not Whisper's variables: {error} is missing or of other dimensions") from None
        encoder, decoder = (
            sum(name.startswith(f"{side}/layer_") and name.endswith("/ffn/linear_0/weight") for name in shapes)
            for side in ("encoder", "decoder")
        )
        return config_of(vocab, width, hidden, mels, (sources, targets), (encoder, decoder))

    def entries(self, c: WhisperConfig) -> list[Entry]:
        m, h, n, d = c.model_dim, c.feed_forward.hidden_dim, c.attention.heads, c.attention.head_dim
        mapped = [
            table("decoder/embeddings/weight", "embedding.table", (c.vocab, m)),
            table("decoder/position_encodings/encodings", "positions", (c.positions.rows, m)),
            table("encoder/position_encodings/encodings", "front.positions", (c.source_positions, m)),
        ]
        for name, inputs in (("conv1", c.mels), ("conv2", m)):
            mapped += convolution(f"encoder/{name}", f"front.{name}.filter", (3, inputs, m), bias=f"front.{name}.bias")

        def part(theirs: str, rows: str, ours: str, shape: Shape, inputs: int = 1, **places: Any) -> list[Entry]:
            weight = matrix(f"{theirs}/weight{rows}", (ours, shape), inputs=inputs, **places)
            if ours.endswith(".k"):
                return [weight]
            return [weight, vector(f"{theirs}/bias{rows}", (f"{ours}_bias", shape[inputs:]), **places)]

        for side in ("encoder", "decoder"):
            at, ours = f"{side}/layer_{{layer}}", f"{side}.dense"
            places: dict[str, Any] = dict(layers=c.encoder_groups if side == "encoder" else c.decoder_groups)
            own = f"{at}/self_attention"
            mapped += norm(f"{own}/layer_norm", f"{ours}.attention_norm", m, names=_SCALE_BIAS, **places)
            for i, name in enumerate("qkv"):
                rows = f"[{i * m}:{(i + 1) * m}]"
                mapped += part(f"{own}/linear_0", rows, f"{ours}.attention.{name}", (m, n, d), **places)
            mapped += part(f"{own}/linear_1", "", f"{ours}.attention.o", (n, d, m), 2, **places)
            if side == "decoder":
                cross = f"{at}/attention"
                mapped += norm(f"{cross}/layer_norm", f"{ours}.cross_norm", m, names=_SCALE_BIAS, **places)
                mapped += part(f"{cross}/linear_0", "", f"{ours}.cross_attention.q", (m, n, d), **places)
                for i, name in enumerate("kv"):
                    rows = f"[{i * m}:{(i + 1) * m}]"
                    mapped += part(f"{cross}/linear_1", rows, f"{ours}.cross_attention.{name}", (m, n, d), **places)
                mapped += part(f"{cross}/linear_2", "", f"{ours}.cross_attention.o", (n, d, m), 2, **places)
            mapped += norm(f"{at}/ffn/layer_norm", f"{ours}.ffn_norm", m, names=_SCALE_BIAS, **places)
            mapped += part(f"{at}/ffn/linear_0", "", f"{ours}.ffn.wi", (m, h), **places)
            mapped += part(f"{at}/ffn/linear_1", "", f"{ours}.ffn.wo", (h, m), **places)
            mapped += norm(f"{side}/layer_norm", f"{side}_norm", m, names=_SCALE_BIAS)
        return mapped


INTERCHANGE = _CTranslate2()
