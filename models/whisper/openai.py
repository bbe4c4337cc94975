"""Whisper's own names of its tensors, in a safetensors file without a configuration: the shapes say all. No JAX.

OpenAI's files are pickles, which are never loaded here: their tensors, saved as safetensors under the same names, are read.
"""

import re
from collections.abc import Mapping

from models.interchange import Entry, InterchangeError, Shape, convolution, norm, table
from models.whisper.config import WhisperConfig
from models.whisper.huggingface import layer

HEAD = 64  # dimensions of a head, of every released size
ENGLISH = 51_864  # ids of the vocabulary of English-only models, which begin with another one
_BLOCK = re.compile(r"(encoder|decoder)\.blocks\.(\d+)\.")
_NAMES = {
    "attention": ("attn", "attn_ln"),
    "cross": ("cross_attn", "cross_attn_ln"),
    "ffn": ("mlp.0", "mlp.2", "mlp_ln"),
    "projections": ("query", "key", "value", "out"),
}


def read_config(stored: Mapping[str, Shape]) -> WhisperConfig:
    """Returns the configuration of the model whose arrays these are; raises InterchangeError for none of ours."""
    try:
        vocab, width = stored["decoder.token_embedding.weight"]
        _, mels, _ = stored["encoder.conv1.weight"]
        sources, targets = (stored[f"{side}.positional_embedding"][0] for side in ("encoder", "decoder"))
        hidden = stored["encoder.blocks.0.mlp.0.weight"][0]
    except (KeyError, ValueError):
        raise InterchangeError("not Whisper's tensors (encoder.blocks.0.mlp.0.weight, ...)") from None
    numbers = {side: {0} for side in ("encoder", "decoder")}
    for match in filter(None, map(_BLOCK.match, stored)):
        numbers[match[1]].add(int(match[2]))
    encoder, decoder = (max(numbers[side]) + 1 for side in ("encoder", "decoder"))
    if width % HEAD:
        raise InterchangeError(f"decoder.token_embedding.weight: a width of {width} is no multiple of {HEAD}")
    return config_of(vocab, width, hidden, mels, (sources, targets), (encoder, decoder))


def config_of(
    vocab: int, width: int, hidden: int, mels: int, positions: tuple[int, int], layers: tuple[int, int]
) -> WhisperConfig:
    """Returns the configuration of a model of these sizes; positions and layers are those of encoder and decoder."""
    (sources, targets), (encoder, decoder) = positions, layers
    return WhisperConfig(
        vocab=vocab,
        mels=mels,
        source_positions=sources,
        max_positions=targets,
        layers=encoder + decoder,
        decoder_layers=0 if encoder == decoder else decoder,
        model_dim=width,
        hidden_dim=hidden,
        heads=width // HEAD,
        head_dim=HEAD,
        start_id=50_257 if vocab == ENGLISH else 50_258,
    )


def entries(c: WhisperConfig) -> list[Entry]:
    """Returns the entries of all arrays of such a file."""
    m = c.model_dim
    mapped = [
        table("decoder.token_embedding.weight", "embedding.table", (c.vocab, m)),
        table("decoder.positional_embedding", "positions", (c.max_positions, m)),
        table("encoder.positional_embedding", "front.positions", (c.source_positions, m)),
        *convolution("encoder.conv1", "front.conv1.filter", (3, c.mels, m), bias="front.conv1.bias"),
        *convolution("encoder.conv2", "front.conv2.filter", (3, m, m), bias="front.conv2.bias"),
    ]
    for side, last in (("encoder", "ln_post"), ("decoder", "ln")):
        mapped += layer(c, side, f"{side}.blocks.{{layer}}", _NAMES)
        mapped += norm(f"{side}.{last}", f"{side}_norm", m)
    return mapped
