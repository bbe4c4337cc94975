"""Whisper's own names of its tensors, in a safetensors file without a configuration: the shapes say all. No JAX.

OpenAI's files are pickles, which are never loaded here: their tensors, saved as safetensors under the same names, are read.
"""

import re
from collections.abc import Mapping

from models.interchange import ArrayFiles, Entry, InterchangeError, Shape
from models.interchange.layers import attention_names, encoder_decoder_layers
from models.interchange.settings import Settings
from models.interchange.tensors import convolution, norm, table
from models.parts.attention.config import GroupedQuery, Learned
from models.parts.transformer_config import DecoderConfig, Dense
from models.whisper.config import WhisperConfig

HEAD = 64  # dimensions of a head, of every released size
ENGLISH = 51_864  # ids of the vocabulary of English-only models, which begin with another one
_BLOCK = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.")
_PROJECTIONS = ("query", "key", "value", "out")
_LAYER = {
    "attn_ln": "attention_norm",
    **attention_names("attn", _PROJECTIONS),
    "cross_attn_ln": "cross_norm",
    **attention_names("cross_attn", _PROJECTIONS, "cross_attention"),
    "mlp_ln": "ffn_norm",
    "mlp.0": "ffn.wi",
    "mlp.2": "ffn.wo",
}


def config_of(
    vocab: int, width: int, hidden: int, mels: int, positions: tuple[int, int], layers: tuple[int, int]
) -> WhisperConfig:
    """Returns the configuration of a model of these sizes; positions and layers are those of encoder and decoder."""
    (sources, targets), (encoder, decoder) = positions, layers
    return WhisperConfig(
        vocab=vocab,
        mels=mels,
        source_positions=sources,
        positions=Learned(rows=targets),
        layers=encoder + decoder,
        decoder=DecoderConfig(layers=0 if encoder == decoder else decoder, start_id=50_257 if vocab == ENGLISH else 50_258),
        model_dim=width,
        attention=GroupedQuery(heads=width // HEAD, head_dim=HEAD, biases="qvo"),
        feed_forward=Dense(hidden_dim=hidden, activation="gelu", bias=True),
    )


class _OpenAi(ArrayFiles[WhisperConfig]):
    def read_config(self, shapes: Mapping[str, Shape], settings: Settings) -> WhisperConfig:
        """Returns the configuration of the model whose arrays these are; raises InterchangeError for none of ours."""
        try:
            vocab, width = shapes["decoder.token_embedding.weight"]
            _, mels, _ = shapes["encoder.conv1.weight"]
            sources, targets = (shapes[f"{side}.positional_embedding"][0] for side in ("encoder", "decoder"))
            hidden = shapes["encoder.blocks.0.mlp.0.weight"][0]
        except (KeyError, ValueError):
            raise InterchangeError("not Whisper's tensors (encoder.blocks.0.mlp.0.weight, ...)") from None
        numbers = {side: {0} for side in ("encoder", "decoder")}
        for match in filter(None, map(_BLOCK.match, shapes)):
            numbers[match[1]].add(int(match[2]))
        encoder, decoder = (max(numbers[side]) + 1 for side in ("encoder", "decoder"))
        if width % HEAD:
            raise InterchangeError(f"decoder.token_embedding.weight: a width of {width} is no multiple of {HEAD}")
        return config_of(vocab, width, hidden, mels, (sources, targets), (encoder, decoder))

    def entries(self, c: WhisperConfig) -> list[Entry]:
        m = c.model_dim
        mapped = [
            table("decoder.token_embedding.weight", "embedding.table", (c.vocab, m)),
            table("decoder.positional_embedding", "positions", (c.positions.rows, m)),
            table("encoder.positional_embedding", "front.positions", (c.source_positions, m)),
            *convolution("encoder.conv1", "front.conv1.filter", (3, c.mels, m), bias="front.conv1.bias"),
            *convolution("encoder.conv2", "front.conv2.filter", (3, m, m), bias="front.conv2.bias"),
        ]
        for side, last in (("encoder", "ln_post"), ("decoder", "ln")):
            mapped += encoder_decoder_layers(c, side, f"{side}.blocks.{{layer}}.", _LAYER)
            mapped += norm(f"{side}.{last}", f"{side}_norm", m)
        return mapped


INTERCHANGE = _OpenAi()
