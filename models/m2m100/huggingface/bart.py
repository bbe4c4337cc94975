"""Settings of BART, mBART, Marian and Pegasus. No JAX.

Their ids of padding, beginning and end change nothing that is computed; those of a vocabulary are written beside it.
"""

import dataclasses

from models.interchange.rows import ModelType, Row, Setting, also, sizes, stacks
from models.interchange.settings import MULTI_HEAD, Fields, Settings, only, setting, under
from models.m2m100.config import M2M100Config
from models.parts.attention.config import Learned, Sinusoidal

_FIRST = 2  # row of the tables of positions that a text's first token has
_ROWS = (*sizes("gelu"), Setting("scale_embedding", "inputs.scaled", bool, False), stacks("d_model", same_depth=False))
_TABLES = Setting(
    "max_position_embeddings", "positions.rows", int, 1024, lambda theirs: theirs + _FIRST, lambda ours: ours - _FIRST
)


def _start(default: int) -> Row:
    return Setting("decoder_start_token_id", "decoder.start_id", int, default)


def _named_or_first() -> Row:
    """Returns the row of the token before a target, which is that of a text's beginning where none is named."""

    def read(theirs: Settings) -> Fields:
        first = setting(theirs, "bos_token_id", int, 0)
        return {"decoder.start_id": setting(theirs, "decoder_start_token_id", int, first)}

    return Row(read, lambda c: {"decoder_start_token_id": c.decoder.start_id})


def _one_vocabulary(theirs: Settings) -> Fields:
    """Refuses Marian's models with a vocabulary for each side."""
    only(theirs, share_encoder_decoder_embeddings=(True,), decoder_vocab_size=(setting(theirs, "vocab_size", int),))
    return {}


_FIELDS: Fields = MULTI_HEAD | {"norm.eps": 1e-5, "moe": None, "logits_bias": True}
_LEARNED: Fields = under("positions", first=_FIRST) | {"positions.class": lambda c: "Learned", "inputs.norm": True}
_SINUSOIDS: Fields = {"positions": Sinusoidal(), "inputs.norm": False, "inputs.sinusoids": "paper"}

_BART = ModelType(
    config=M2M100Config,
    name="BART",
    architectures=("BartForConditionalGeneration", "BartModel"),
    fields=_FIELDS | _LEARNED | {"norm.order": "post"},
    initial={"positions": Learned},
    rows=(*_ROWS, _TABLES, _start(2)),
)
_MBART = dataclasses.replace(
    _BART,
    name="mBART",
    architectures=("MBartForConditionalGeneration",),
    fields=_BART.fields | {"norm.order": "pre"},
    rows=(*_ROWS, _TABLES, _named_or_first()),
)
_MARIAN = ModelType(
    config=M2M100Config,
    name="Marian",
    architectures=("MarianMTModel",),
    fields=_FIELDS | _SINUSOIDS | {"norm.order": "post"},
    # A target begins with padding, whose id has to be in the vocabulary: its default is not in a small one.
    rows=(*_ROWS, _start(58_100), also("pad_token_id", "decoder.start_id"), Row(_one_vocabulary)),
)
_PEGASUS = ModelType(
    config=M2M100Config,
    name="Pegasus",
    architectures=("PegasusForConditionalGeneration",),
    fields=_FIELDS | _SINUSOIDS | {"norm.order": "pre"},
    rows=(*_ROWS, _start(0)),
)

MODEL_TYPES = {"bart": _BART, "mbart": _MBART, "marian": _MARIAN, "pegasus": _PEGASUS}
