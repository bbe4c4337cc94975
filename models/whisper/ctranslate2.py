"""Whisper in CTranslate2's files (trainers/weights/ctranslate2.py). No JAX.

Queries, keys and values are one matrix there, as are keys and values of the second attention; `NAME[a:b]` are rows of a
variable. The biases of keys, which Whisper has none of, are stored as zeros.
"""

from collections.abc import Mapping
from typing import Any

from models.interchange import ArrayFiles, Entry, InterchangeError, Shape
from models.interchange.settings import Settings
from models.interchange.tensors import convolution, matrix, norm, table, vector
from models.whisper.config import WhisperConfig
from models.whisper.openai import config_of

_SCALE_BIAS = ("gamma", "beta")


class _CTranslate2(ArrayFiles[WhisperConfig]):
    def read_config(self, shapes: Mapping[str, Shape], settings: Settings) -> WhisperConfig:
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
            attentions = [("self_attention", "attention_norm", "attention", ("qkv", "o"))]
            attentions += [("attention", "cross_norm", "cross_attention", ("q", "kv", "o"))] * (side == "decoder")
            for theirs, norm_, to, joined in attentions:
                mapped += norm(f"{at}/{theirs}/layer_norm", f"{ours}.{norm_}", m, names=_SCALE_BIAS, **places)
                for i, name in ((i, name) for i, names in enumerate(joined) for name in names):
                    row = joined[i].index(name) * m
                    rows = f"[{row}:{row + m}]" if len(joined[i]) > 1 else ""
                    shape, inputs = ((n, d, m), 2) if name == "o" else ((m, n, d), 1)
                    mapped += part(f"{at}/{theirs}/linear_{i}", rows, f"{ours}.{to}.{name}", shape, inputs, **places)
            mapped += norm(f"{at}/ffn/layer_norm", f"{ours}.ffn_norm", m, names=_SCALE_BIAS, **places)
            mapped += part(f"{at}/ffn/linear_0", "", f"{ours}.ffn.wi", (m, h), **places)
            mapped += part(f"{at}/ffn/linear_1", "", f"{ours}.ffn.wo", (h, m), **places)
            mapped += norm(f"{side}/layer_norm", f"{side}_norm", m, names=_SCALE_BIAS)
        return mapped


INTERCHANGE = _CTranslate2()
