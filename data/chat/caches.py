"""The settings of prepared caches of conversations and of preference pairs, and the caches that have a name. No TensorFlow."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from data.chat import sources
from data.own_cache import TableCache


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatCache(TableCache):
    """Settings of a cache of conversations.

    Attributes:
      source: "chitchat", the package of data/lamda; or "file:PATH", "folder:DIR" or "files:PATTERN", a table
        (data/chat/sources.py).
      tokenizer: released weights whose vocabulary and chat template are used, a key of `data.packages.weights.WEIGHTS`; "" are
        those of the folder that `scripts.prepare_data --vocabulary` names.
      length: tokens L of a packed row; a longer conversation loses its end.
      validation, test: shares of the conversations that are held out, by their content.
    """

    kind: ClassVar[str] = "chat"
    made_of: ClassVar[str] = "conversations, a table with the column messages or conversations (system, tools, split)"

    tokenizer: str = ""
    length: int = 1024
    validation: float = 0.05
    test: float = 0.1

    @property
    def released(self) -> bool:
        return not self.tokenizer

    @property
    def shares(self) -> dict[str, float]:
        """The share of each held-out split."""
        return {"validation": self.validation, "test": self.test}

    @classmethod
    def is_made_of(cls, source: str, columns: str) -> bool:
        """Returns whether a source is a table of conversations."""
        return sources.is_conversations(Path(source), columns) is True


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreferenceCache(TableCache):
    """Settings of a cache of preference pairs.

    Attributes:
      source: "file:PATH", "folder:DIR" or "files:PATTERN", a table (data/chat/sources.py); or "chitchat", of whose conversations
        the last answer is preferred to one from another conversation.
      reference: the weights that a run starts from, a folder or a key of `data.packages.weights.WEIGHTS`: their vocabulary and
        chat template encode the pairs, and the log-probabilities that they give to the answers are DPO's reference.
      length: tokens L of a packed row; a longer pair is left out.
      pairs: the most pairs of a row.
      validation, test: shares of the prompts that are held out, by their content.
      limit: at most so many pairs of the source; 0 takes all.
    """

    kind: ClassVar[str] = "chat"
    made_of: ClassVar[str] = "preference pairs, a table with the columns chosen and rejected (prompt, tools, split)"

    reference: str = ""
    length: int = 1024
    pairs: int = 4
    validation: float = 0.05
    test: float = 0.1
    limit: int = 0

    @property
    def shares(self) -> dict[str, float]:
        """The share of each held-out split."""
        return {"validation": self.validation, "test": self.test}

    @property
    def derived_by(self) -> str:
        return self.reference

    def started_from(self, weights: str) -> "PreferenceCache":
        return dataclasses.replace(self, reference=weights)

    @classmethod
    def is_made_of(cls, source: str, columns: str) -> bool:
        """Returns whether a source is a table of preference pairs."""
        return sources.is_conversations(Path(source), columns) is False


CACHES = (ChatCache, PreferenceCache)
ENTRIES = {
    "smollm2_chitchat": ChatCache(source="chitchat", tokenizer="smollm2_135m"),
    "smollm2_preferences": PreferenceCache(source="chitchat", reference="smollm2_135m", limit=400),
}
