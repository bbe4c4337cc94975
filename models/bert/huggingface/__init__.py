"""Encoders in Hugging Face's files: the classes of `transformers` that our encoder and heads are equal to. No JAX here.

A folder's `architectures` says which head it has. Tensors of other heads (those of pre-training, say) are ignored; the pooler
is read wherever it is, since fine-tuning starts from it. There is a module for each kind of model; a key that is absent from
config.json means what its `DEFAULTS` say.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from models.bert.config import BertConfig
from models.bert.huggingface import bert, distilbert, modernbert, roberta
from models.interchange import Entry, kept_apart, setting
from models.parts.heads_config import MaskedLm, SentenceEmbedding

_KINDS = (bert, roberta, distilbert, modernbert)
MODEL_TYPES = tuple(name for kind in _KINDS for name in kind.STEMS)
DEFAULTS = {name: table for kind in _KINDS for name, table in kind.DEFAULTS.items()}
_OUTPUTS = tuple(name for kind in _KINDS for name in kind.OUTPUTS)


def _kind(c: BertConfig) -> Any:
    """Returns the kind that a model is of, or is nearest to."""
    if c.positions == "rotary":
        return modernbert
    if c.first_position:
        return roberta
    return distilbert if not c.types and c.order == "post" else bert


def read_config(theirs: Mapping[str, Any]) -> BertConfig:
    """Returns the configuration that a config.json describes.

    Raises:
      InterchangeError: a setting is not supported by our model.
    """
    name = setting(theirs, "model_type", str)
    return next(kind for kind in _KINDS if name in kind.STEMS).read(theirs)


def write_config(c: BertConfig) -> dict[str, Any]:
    """Returns the config.json of a model.

    Raises:
      InterchangeError: `transformers` has no class for the model; the message names the fields that differ.
    """
    return _kind(c).write(c)


def entries(c: BertConfig) -> list[Entry]:
    """Returns the entries of all tensors that `transformers` saves for such a model, without a bare one's unused pooler."""
    kind = _kind(c)
    saved = [*kind.encoder(c), *kind.outputs(c)]
    if not isinstance(c.head, SentenceEmbedding):
        return saved
    return [dataclasses.replace(e, theirs=e.theirs.removeprefix(kind.PREFIX)) for e in saved]


def readable(c: BertConfig) -> list[Entry]:
    """Returns the entries to look for in a folder with this config: `entries`, with their prefix, and the pooler."""
    kind = _kind(c)
    named = [*kind.encoder(c), *kind.outputs(c)]
    pooled = any(part.name == "head.pooler" for e in named for part in e.parts)
    return named if pooled else [*named, *kind.bare_pooler(c)]


def copies(c: BertConfig) -> dict[str, str]:
    """Returns the tensors that a file may hold besides `readable`, and those that they repeat, by canonical name."""
    return _kind(c).copies() if isinstance(c.head, MaskedLm) else {}


def canonical(c: BertConfig, theirs: str) -> str | None:
    """Returns the name of a file's tensor in `readable` or `copies`; None for a tensor that is not needed."""
    kind = _kind(c)
    theirs = theirs.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    if theirs.startswith(kind.BODY):
        theirs = f"{kind.PREFIX}{theirs}"
    return None if theirs.endswith(".position_ids") else theirs


def is_head_tensor(theirs: str) -> bool:
    """Returns whether a tensor, by its canonical name, belongs to a head, which may be missing."""
    return theirs.startswith(_OUTPUTS)


untied = kept_apart
