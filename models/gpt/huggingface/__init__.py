"""Decoders in Hugging Face's files: which class of `transformers` a model is, and how its tensors are called there. No JAX.

GPT-2 (gpt2.py) has names of its own; all others have LLaMA's, with differences that dialects.py and, for
classes with experts, mixtures.py list. llama.py and experts.py have the tensors.
"""

from collections.abc import Mapping
from typing import Any

from models.gpt.config import GptConfig
from models.gpt.huggingface import experts, gpt2, llama
from models.interchange import Entry, Remade, Shape, demand, kept_apart, matrix, model_type, no_head

_ARCHITECTURES = gpt2.ARCHITECTURES | llama.ARCHITECTURES
MODEL_TYPES = tuple(_ARCHITECTURES)
_OUTPUT = "lm_head.weight"
# Old releases saved buffers that can be computed.
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def _dialect(c: GptConfig) -> str:
    """Returns the model type as which a model is written: that of its folder, or the first that it fits, or is nearest to."""
    if c.dialect:
        return c.dialect
    return llama.fitting(c) if c.positions == "rotary" else "gpt2"


def _module(c: GptConfig) -> Any:
    return gpt2 if _dialect(c) == "gpt2" else llama


def read_config(theirs: Mapping[str, Any]) -> GptConfig:
    """Returns the configuration of the model that a config.json describes.

    Raises:
      InterchangeError: a setting is missing, or our model does not support it.
    """
    return gpt2.read(theirs) if model_type(theirs, _ARCHITECTURES) == "gpt2" else llama.read(theirs)


def write_config(c: GptConfig) -> dict[str, Any]:
    """Returns the config.json of a model. Our configuration has no longest text of a LLaMA: `transformers`' default applies.

    Raises:
      InterchangeError: `transformers` has no class for the model; the message names the fields that differ.
    """
    kind = _dialect(c)
    demand(c, _ARCHITECTURES[kind][1], per_dim_scale=False, softmax_bias=False, prefix=False)
    settings = gpt2.write(c) if kind == "gpt2" else llama.write(c, kind)
    return {
        "architectures": [_ARCHITECTURES[kind][0]],
        "model_type": kind,
        "vocab_size": c.vocab,
        "tie_word_embeddings": c.tied,
        "bos_token_id": None,  # the default would be those of the first release of this type
        "eos_token_id": None,
        "pad_token_id": None,
        **settings,
    }


def entries(c: GptConfig) -> list[Entry]:
    """Returns the entries of all tensors that `transformers` saves for such a model."""
    body = gpt2.entries(c) if _module(c) is gpt2 else llama.entries(c, _dialect(c))
    return body if c.tied else [*body, matrix(_OUTPUT, ("softmax.weight", (c.model_dim, c.vocab)))]


def copies(c: GptConfig) -> dict[str, str]:
    """Returns the tensors that a file may hold besides `readable`, and those that they repeat, by canonical name."""
    return {_OUTPUT: _module(c).TABLE} if c.tied else {}


def canonical(c: GptConfig, theirs: str) -> str | None:
    """Returns the name of a file's tensor in `readable` or `copies`; None for a tensor that is not needed."""
    module = _module(c)
    if theirs.startswith(module.BODY):
        theirs = module.PREFIX + theirs
    if theirs.endswith(_BUFFERS) or llama.is_further_layer(c, theirs):
        return None
    return experts.renamed(_dialect(c), theirs)


def remade(c: GptConfig, tensor_shapes: Mapping[str, Shape]) -> dict[str, Remade]:
    """Returns the tensors that a folder holds in another form than `readable` has, by canonical name."""
    return experts.remade(c, _dialect(c), tensor_shapes) if c.moe else {}


check_packing = experts.check_packing


readable = entries  # the tensors to look for in a folder
untied = kept_apart
is_head_tensor = no_head
