"""Vocabularies of what is read_object: Whisper's, whose tokens also say language and task, and characters. No JAX.

Both are tokenizer.json files, read by data.vocabularies.tokenizers.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from data import paths
from data.vocabularies.files import GENERATION, VocabularyError, read_object
from data.vocabularies.tokenizers import FILE, Tokenizer
from models.errors import nearest, shortened
from models.whisper.tokens import END, LANGUAGE, LATEST_START, NO_TIMESTAMPS, START, TASKS, is_multilingual, no_speech

Task = Literal["transcribe", "translate"]
_NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")  # newer files, older files
TIMESTAMPS = 1501  # 0.00 to 30.00 s
RESOLUTION = 0.02  # seconds from a timestamp to the next
BLANK, UNKNOWN = "[PAD]", "[UNK]"  # of characters; the blank of CTC has id 0


def open_vocabulary(folder: Path) -> "WhisperVocabulary | Characters":
    """Returns the vocabulary of a folder with a tokenizer.json, and with the generation_config.json of a model of `transformers`,
    if there is one; raises VocabularyError."""
    tokenizer = Tokenizer(folder)
    if tokenizer.id_of(START) is None:
        return Characters(tokenizer)
    return WhisperVocabulary(tokenizer, read_object(folder / GENERATION))


class WhisperVocabulary:
    """Whisper's byte-level pieces (arXiv 2212.04356, section 2.3). Target: language, task, no timestamps, the text, its end.

    English-only vocabularies have neither language nor task. Timestamps, which files leave out, are the ids from
    `timestamp` on.

    Args:
      settings: those of generation_config.json, which may say other ids that are never written.

    Attributes:
      languages: id of the token of each language, by its code.
      size: number of ids, timestamps included.
      start, end, no_timestamps, no_speech, timestamp: special ids.
    """

    def __init__(self, tokenizer: Tokenizer, settings: Mapping[str, Any] = MappingProxyType({})):
        self.tokenizer, self._settings = tokenizer, settings
        special = tokenizer.special
        self.start, self.end, self.no_timestamps = (special[name] for name in (START, END, NO_TIMESTAMPS))
        self.no_speech = next(special[name] for name in _NO_SPEECH if name in special)
        self.timestamp = self.no_timestamps + 1
        self.size = self.timestamp + TIMESTAMPS
        self.multilingual = is_multilingual(self.end) and settings.get("is_multilingual") is not False
        # The files of English-only models name languages too, which their models never saw.
        languages = {match[1]: id_ for name, id_ in special.items() if (match := LANGUAGE.fullmatch(name))}
        self.languages: Mapping[str, int] = languages if self.multilingual else {}
        self._tasks = {name: special[f"<|{name}|>"] for name in TASKS}
        own = {"lang_to_id": {f"<|{name}|>": id_ for name, id_ in languages.items()}, "task_to_id": self._tasks}
        own |= {"no_timestamps_token_id": self.no_timestamps, "max_initial_timestamp_index": LATEST_START}
        for key, ids in own.items():
            if settings.get(key, ids) not in (ids, None):
                raise VocabularyError(f"{GENERATION}: {key} is {shortened(repr(settings[key]))}, here {shortened(repr(ids))}")

    @property
    def eos(self) -> int:
        """The id that ends an output."""
        return self.end

    @property
    def pad(self) -> int:
        """The id that follows the end: none is kept for it."""
        return -1

    def prefix(self, language: str, task: str, *, timestamps: bool = False) -> list[int]:
        """Returns the ids that a target begins with; raises VocabularyError for an unknown language or task."""
        if task not in self._tasks:
            raise VocabularyError(f"no task {task!r}{nearest(task, self._tasks)}")
        free = [] if timestamps else [self.no_timestamps]
        if not self.multilingual:
            if task != "transcribe" or language not in ("en", ""):
                raise VocabularyError(f"an English-only model cannot {task} {language!r}; it transcribes 'en'")
            return free
        if language not in self.languages:
            raise VocabularyError(f"no language {language!r}{nearest(language, self.languages)}")
        return [self.languages[language], self._tasks[task], *free]

    def text_ids(self, text: str) -> list[int]:
        """Returns the ids of a text. A blank stands before it, as models write it."""
        return self.tokenizer.encode(f" {text.strip()}")

    def target(self, text: str, language: str, task: str) -> list[int]:
        """Returns the ids of a training target."""
        return [*self.prefix(language, task), *self.text_ids(text), self.end]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids up to the end; special tokens and timestamps become no text."""
        kept = []
        for id_ in map(int, ids):
            if id_ == self.end or id_ < 0:
                break
            if id_ < self.timestamp:
                kept.append(id_)
        return self.tokenizer.decode(kept).strip()

    @cached_property
    def sounds(self) -> list[int]:
        """The ids that are never written, as they are no speech."""
        return self._ids("suppress_tokens", lambda: no_speech(self.tokenizer.encode))

    @cached_property
    def never_first(self) -> list[int]:
        """The ids that a text does not begin with: a blank, the end."""
        return self._ids("begin_suppress_tokens", lambda: [*self.tokenizer.encode(" "), self.end])

    def _ids(self, key: str, usual: Callable[[], list[int]]) -> list[int]:
        ids = self._settings.get(key)
        if ids is None:
            return usual()
        if not isinstance(ids, list) or not all(type(id_) is int and 0 <= id_ < self.size for id_ in ids):
            raise VocabularyError(f"{GENERATION}: {key} is {shortened(repr(ids))}, expected ids below {self.size:,}")
        return ids


class Characters:
    """Characters in lower case, each an id, for models that write letters (CTC, transducers). Target: the text alone.

    Attributes:
      size: number of ids.
      blank, pad: 0, the blank of CTC, which is never in a text.
      eos: -1: nothing ends a text.
    """

    blank, pad, eos = 0, 0, -1

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self.size = tokenizer, tokenizer.size

    def prefix(self, language: str, task: str) -> list[int]:
        """Returns no ids: targets begin with their text."""
        del language, task
        return []

    def text_ids(self, text: str) -> list[int]:
        """Returns the ids of a text; raises VocabularyError for one with a character that is none of them."""
        ids = self.tokenizer.encode(text)
        if self.tokenizer.unk_id in ids:
            strange = next((c for c in spoken(text) if self.tokenizer.id_of(c) is None), text)
            raise VocabularyError(f"{strange!r} is no character of the vocabulary")
        return ids

    def target(self, text: str, language: str, task: str) -> list[int]:
        """Returns the ids of a training target."""
        del language, task
        return self.text_ids(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids; the blank is none."""
        kept = [int(id_) for id_ in ids if id_ > 0]
        return " ".join(self.tokenizer.decode(kept).split())


def write_characters(texts: Iterable[str], path: Path, least: int = 3) -> None:
    """Writes the characters of texts as a tokenizer.json: letters, digits and apostrophes, in lower case; blanks between words.

    Args:
      least: a character that is seen less often is left out; texts that have it cannot be written.
    """
    counts: dict[str, int] = {}
    for text in texts:
        for character in spoken(text):
            counts[character] = counts.get(character, 0) + 1
    kept = sorted(character for character, count in counts.items() if count >= least)
    vocabulary = {piece: id_ for id_, piece in enumerate([BLANK, UNKNOWN, *kept])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Lowercase(),
            normalizers.Replace(tokenizers.Regex(r"[^\p{L}\p{M}\p{N}' ]"), " "),
            normalizers.Replace(tokenizers.Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([BLANK, UNKNOWN])
    with paths.scratch(path) as folder:
        tokenizer.save(str(folder / FILE))
        (folder / FILE).replace(path)


def spoken(text: str) -> str:
    """Returns a text as characters write it: lower case, no punctuation, one blank between words."""
    lower = unicodedata.normalize("NFC", text).lower()
    kept = (c if c.isalnum() or c == "'" or unicodedata.category(c).startswith("M") else " " for c in lower)
    return " ".join("".join(kept).split())
