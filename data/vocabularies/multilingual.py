"""Vocabularies of released translators, M2M-100 and NLLB, as Hugging Face folders hold them. No TensorFlow.

One vocabulary serves both sides and all languages; each language has a token. A folder has either

    tokenizer.json                             everything
    sentencepiece.bpe.model                    NLLB: ids are those of fairseq
    sentencepiece.bpe.model and vocab.json     M2M-100: ids are those of vocab.json

The ids of pieces are followed by those of the languages' tokens.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from data import untrusted
from data.vocabularies import sentencepiece
from data.vocabularies.files import ADDED, CONFIG, IDS, PIECES, SPECIAL, TOKENIZER, VocabularyError
from data.vocabularies.tokenizers import Tokenizer

END, UNKNOWN, MASK = "</s>", "<unk>", "<mask>"
_FAIRSEQ = {"<s>": 0, "<pad>": 1, END: 2, UNKNOWN: 3}  # fairseq's first ids; SentencePiece's are <unk>, <s>, </s>
# The languages of M2M-100's models in the order of their ids, by `language_codes`.
_M2M100 = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr "
    "ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or "
    "pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
_LANGUAGE = re.compile(r"__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})")  # M2M-100's and NLLB's


class Pieces(Protocol):
    """A vocabulary of pieces, with the number of its ids, and with the ids of special tokens, which no text gives."""

    @property
    def size(self) -> int: ...

    @property
    def special(self) -> Mapping[str, int]: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...


class Multilingual:
    """The vocabulary of an M2M-100 or an NLLB.

    Attributes:
      folder: where it is read from.
      size: number of ids, the languages' included.
      eos_id: the id that ends a text.
      languages: the id of each language's token, by the language's code: `deu_Latn` (NLLB), `de` (M2M-100).
      tag_last: whether the token of a source stands after its end (`legacy_behaviour` of the first NLLB) instead of in front.

    Raises:
      VocabularyError: the folder holds another kind of vocabulary, or does not say which tokens the languages have.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        with untrusted.damage(f"{folder}: the vocabulary", VocabularyError):
            self._pieces: Pieces = Tokenizer(folder) if (folder / TOKENIZER).exists() else _SentencePieces(folder)
            self.size, special = self._pieces.size, self._pieces.special
            matches = {id_: _LANGUAGE.fullmatch(token) for token, id_ in special.items()}
            self.languages = {match[1] or match[2]: id_ for id_, match in matches.items() if match}
            self.tag_last = bool(_json(folder / CONFIG).get("legacy_behaviour"))
        if not self.languages or END not in special:
            raise VocabularyError(
                f"{folder}: no translator's vocabulary: no file lists the tokens of languages, such as deu_Latn or __de__"
            )
        self.eos_id = special[END]

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text: neither a language's token nor the end is added."""
        return self._pieces.encode(text)

    def source(self, language: str, text: str, most: int | None = None) -> list[int]:
        """Returns the ids of a source of at most so many: the language's token, the text, which is cut, and the end."""
        ids = self.encode(text)[: None if most is None else most - 2]
        tag = self.languages[language]
        return [*ids, self.eos_id, tag] if self.tag_last else [tag, *ids, self.eos_id]

    def target(self, language: str, text: str) -> list[int]:
        """Returns the ids of a target: the language's token, the text and the end."""
        return [self.languages[language], *self.encode(text), self.eos_id]

    def marked(self, ids: Sequence[int]) -> str:
        """Returns the text of ids with the languages' tokens and the end by name, for a person."""
        names = {id_: token for token, id_ in self._pieces.special.items()}
        parts = []
        for is_mark, run in itertools.groupby(map(int, ids), names.__contains__):
            some = list(run)
            parts += [names[id_] for id_ in some] if is_mark else [self._pieces.decode(some).strip()]
        return " ".join(parts)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids up to the first end; special tokens become no text."""
        ids = [int(id_) for id_ in ids]
        return self._pieces.decode(ids[: ids.index(self.eos_id)] if self.eos_id in ids else ids)


class _SentencePieces:
    """Pieces of a SentencePiece model with ids of another table, and special tokens after them."""

    def __init__(self, folder: Path):
        self._processor = sentencepiece.processor(folder / PIECES)
        own = {self._processor.id_to_piece(i): i + 1 for i in range(3, self._processor.get_piece_size())}
        self._ids: dict[str, int] = _json(folder / IDS) or own | _FAIRSEQ
        if not all(type(id_) is int and id_ >= 0 for id_ in self._ids.values()):
            raise VocabularyError(f"{folder / IDS} is damaged: expected an id for each piece")
        self._unknown = self._ids[UNKNOWN]
        self.special = {token: self._ids[token] for token in _FAIRSEQ} | _added(folder, len(self._ids))
        self._piece_of = {id_: piece for piece, id_ in self._ids.items() if piece not in self.special}
        self.size = 1 + max(*self._ids.values(), *self.special.values())

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(piece, self._unknown) for piece in self._processor.encode(text, out_type=str)]

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode_pieces([self._piece_of[id_] for id_ in ids if id_ in self._piece_of]).strip()


def _added(folder: Path, after: int) -> dict[str, int]:
    """Returns the special tokens that a folder adds to its pieces. Where their ids are not listed, they follow the pieces."""
    config = _json(folder / CONFIG)
    if (folder / IDS).exists():  # `transformers` lists the languages of M2M-100 in its code alone
        codes = _M2M100[config.get("language_codes") or "m2m100"].split()
        return {f"__{code}__": after + i for i, code in enumerate(codes)}
    if listed := config.get("added_tokens_decoder"):
        return {_content(token): int(id_) for id_, token in listed.items()}
    if listed := _json(folder / ADDED):
        return {token: int(id_) for token, id_ in listed.items()}
    name = "additional_special_tokens"
    tokens = [_content(token) for token in _json(folder / SPECIAL).get(name) or config.get(name) or []]
    return {token: after + i for i, token in enumerate([*tokens, MASK])}


def _content(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else token


def _json(path: Path) -> dict[str, Any]:
    return untrusted.read_json(path, VocabularyError) if path.exists() else {}
