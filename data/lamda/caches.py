"""The settings of prepared caches of conversations."""

import dataclasses
from typing import ClassVar

from data.config import CacheConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class LamdaCache(CacheConfig):
    """Settings of a cache of rated conversations.

    Attributes:
      tokenizer: a released vocabulary, a key of `data.packages.weights.VOCABULARIES`.
      length: tokens L of a packed row.
      turn_length: the most tokens of a generative example, whose context is cut to fit; a discriminative one has a row.
    """

    kind: ClassVar[str] = "lamda"

    tokenizer: str
    length: int
    turn_length: int


CACHES = (LamdaCache,)
ENTRIES = {
    "chitchat": LamdaCache(tokenizer="smollm2_135m", length=256, turn_length=128),
    # Twice as many ratings in as many tokens, each of the half of a conversation's end.
    "chitchat_short": LamdaCache(tokenizer="smollm2_135m", length=128, turn_length=64),
}
