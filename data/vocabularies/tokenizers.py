"""Vocabularies in tokenizer.json files: WordPiece and byte-level BPE, released ones and those trained here. No TensorFlow.

The files are those of the `tokenizers` library; SentencePiece's pieces in such a file are read too. SentencePiece's own models
are in `data.vocabularies.sentencepiece`, and vocabularies of translators in `data.vocabularies.multilingual`.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

# One thread is fast enough, and a process that has used the library's threads can't be forked safely. Must come first.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from data import paths, untrusted
from data.vocabularies import boundaries, files, rules
from data.vocabularies.files import VocabularyError

FILE = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")  # the same in RoBERTa's and XLM-R's vocabularies
# Tokens that end a text where a folder names none, as with vocabularies trained here; the first that a vocabulary has is used.
_ENDS = (END_OF_TEXT, "<|im_end|>", "</s>", "[SEP]")
_CONTROL = 3  # GGUF's type of a special token
_GGUF = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
_SPACES = ("Ġ", "▁")  # a blank in byte-level BPE, and in SentencePiece's pieces


class Tokenizer:
    """A vocabulary that encodes text as ids. Special tokens are not recognised in text; `<s>` and `</s>` are where they are also
    pieces of the vocabulary's own, as in XLM-R's. `whole` alone adds those that the vocabulary puts around a text.

    Args:
      special: they are recognised, in the text of a chat template.

    Attributes:
      path: the tokenizer.json file, which a vocabulary of bytes need not have.
      size: number of ids.
      pad_id, unk_id, cls_id, sep_id, mask_id, eos_id: special ids, None where the vocabulary has no such token. The end
        of text (`eos_id`) of a WordPiece vocabulary is its separator. `<s>` is [CLS] in a vocabulary with `<mask>` alone: a
        decoder's is not.
      before, behind: the ids that the vocabulary puts before and behind a text (data.vocabularies.boundaries).
      ends: the ids that end a continuation.
      separators: how many separators stand between two texts: RoBERTa has two.
      special: the special tokens with their ids.
      special_ids: their ids, ascending.
      continues: bool [size], True where a piece continues a word: `##` pieces of WordPiece, and those of other
        vocabularies that don't begin with a blank. Never a special token.
    """

    def __init__(self, path: Path | str, *, special: bool = False):
        path = Path(path)
        self.path = path / FILE if path.is_dir() else path
        text = files.tokenizer_text(self.path)
        written = untrusted.parsed(text, str(self.path), VocabularyError)
        with untrusted.damage(self.path, VocabularyError, quiet=True):
            rules.check_sizes(written, self.path)
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
            rules.check_growth(written, self.path)
            self._panics = rules.backtracks(written)
            self._describe(special)
        self._bound(written.get("post_processor"))

    def _describe(self, special: bool) -> None:
        self._tokenizer.no_truncation()  # released files may set a length for truncation and padding
        self._tokenizer.no_padding()
        # As text, "[MASK]" is five characters and a word.
        self._tokenizer.encode_special_tokens = not special
        self._wordpiece = isinstance(self._tokenizer.model, models.WordPiece)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = {token.content: id_ for id_, token in added.items() if token.special}
        self.special_ids = tuple(sorted(self.special.values()))
        self.size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        names = _ROBERTA if self.id_of("[MASK]") is None and self.id_of("<mask>") is not None else _SPECIAL
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(self.id_of, names)
        self.separators = max(1, self._tokenizer.num_special_tokens_to_add(True) - 2)  # beside [CLS] and the last
        self.continues = np.zeros(self.size, bool)
        for piece, id_ in self._tokenizer.get_vocab(with_added_tokens=False).items():
            self.continues[id_] = piece.startswith("##") if self._wordpiece else not piece.startswith(_SPACES)
        self.continues[list(self.special_ids)] = False

    def _bound(self, processor: Any) -> None:
        """Reads what stands around a text and what ends one."""
        folder = self.path.parent
        self.before, self.behind = boundaries.around(folder, processor, self.id_of)
        guessed = [id_ for id_ in map(self.id_of, _ENDS) if id_ is not None][:1]
        stated = [id_ for id_ in boundaries.ends(folder, self.id_of) if 0 <= id_ < self.size]
        self.ends = tuple(dict.fromkeys(stated or guessed))
        end, padding = (boundaries.named(folder, name, self.id_of) for name in ("eos_token", "pad_token"))
        self.eos_id = next(iter(self.ends), None) if end is None else end
        self.pad_id = self.pad_id if padding is None else padding

    def id_of(self, piece: str) -> int | None:
        """Returns the id of a piece in the vocabulary's own spelling, or None if it has no such piece."""
        return self._tokenizer.token_to_id(piece)

    def _read(self) -> contextlib.AbstractContextManager[None]:
        return untrusted.damage(self.path, VocabularyError, quiet=self._panics)

    def _encoding(self, text: str) -> tokenizers.Encoding:
        """Returns the encoding of a text, without special tokens."""
        with self._read():  # a word that is not known, and no piece for such words
            return self._tokenizer.encode(text, add_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text."""
        return self._encoding(text).ids

    def whole(self, text: str) -> list[int]:
        """Returns the ids of a text with those that the vocabulary puts around it."""
        return [*self.before, *self.encode(text), *self.behind]

    @property
    def end(self) -> int:
        """Returns the id of the end of text; raises VocabularyError if the vocabulary has none."""
        if self.eos_id is None:
            raise VocabularyError(f"{self.path.parent}: its vocabulary has no end of text")
        return self.eos_id

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each word of a text that is split into words, as if blanks stood between them."""
        texts = words if self._wordpiece else [*words[:1], *(f" {word}" for word in words[1:])]
        with self._read():
            return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids of a text, and the start and end of each in characters, without leading blanks."""
        encoding = self._encoding(text)
        return encoding.ids, [_trimmed(text, *span) for span in encoding.offsets]

    def encode_starts(self, text: str) -> tuple[list[int], list[int]]:
        """Returns the ids of a text, and where in it each begins, with its leading blanks; ascending."""
        encoding = self._encoding(text)
        # A post-processor may have taken leading blanks off: a token begins where the one before it ends.
        ends = [0, *(end for _, end in encoding.offsets)]
        return encoding.ids, [min(start, end) for (start, _), end in zip(encoding.offsets, ends, strict=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids; special tokens become no text."""
        with self._read():
            return self._tokenizer.decode([int(id_) for id_ in ids], skip_special_tokens=True)

    def marked(self, ids: Iterable[int]) -> str:
        """Returns the text of ids with the special tokens by name, for a person."""
        names, parts = {id_: token for token, id_ in self.special.items()}, []
        for is_special, run in itertools.groupby(map(int, ids), names.__contains__):
            some = list(run)
            parts += [names[id_] for id_ in some] if is_special else [self.decode(some)]
        return " ".join(part.strip() for part in parts)

    def same_vocabulary(self, other: "Tokenizer") -> bool:
        """Returns whether both give the same ids for every text."""
        return self._rules() == other._rules()

    def _rules(self) -> tuple[Any, ...]:
        written = json.loads(self._tokenizer.to_str())
        model = written["model"]
        return (
            self._tokenizer.get_vocab(with_added_tokens=True),
            model["type"],
            model.get("merges"),
            written["normalizer"],
            written["pre_tokenizer"],
        )


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end - 1 and text[start].isspace():
        start += 1
    return start, end


def from_gpt2(encoder_json: str, vocab_bpe: str, path: Path) -> None:
    """Writes GPT-2's vocabulary as a tokenizer.json file, from the contents of its own two files."""
    header, *lines = vocab_bpe.split("\n")
    assert header.startswith("#version")
    write_bpe(json.loads(encoder_json), [line for line in lines if line], [END_OF_TEXT], path)


def from_gguf(gguf_file: Path, path: Path) -> None:
    """Writes the byte-level BPE vocabulary that a GGUF file of SmolLM2 carries as a tokenizer.json file."""
    read = _gguf_reader(gguf_file)
    if (kind := read("pre")) != "smollm":
        raise VocabularyError(f"{gguf_file.name}: its text is cut into words in the manner {kind!r}; only 'smollm' is known")
    pieces = read("tokens")
    special = [piece for piece, kind in zip(pieces, read("token_type"), strict=True) if kind == _CONTROL]

    def added(name: str) -> list[str]:
        id_ = read(f"{name}_token_id")
        if not read(f"add_{name}_token"):
            return []
        if id_ is None:
            raise VocabularyError(f"{gguf_file.name}: add_{name}_token is set, and there is no {name}_token_id")
        return [pieces[id_]]

    before, behind = added("bos"), added("eos")
    vocabulary = {piece: id_ for id_, piece in enumerate(pieces)}
    write_bpe(vocabulary, read("merges"), special, path, single_digits=True, before=before, behind=behind)


def config_from_gguf(gguf_file: Path, path: Path) -> None:
    """Writes the special tokens and the chat template that a GGUF file names, and which of them stand around a text, as a
    tokenizer_config.json file."""
    read = _gguf_reader(gguf_file)
    pieces, ids = read("tokens"), {name: read(f"{key}_token_id") for name, key in _GGUF.items()}
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | {k: pieces[i] for k, i in ids.items() if i is not None}
    config |= {name: bool(added) for name in ("add_bos_token", "add_eos_token") if (added := read(name)) is not None}
    if (template := read("chat_template")) is not None:
        config["chat_template"] = template
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _gguf_reader(gguf_file: Path) -> Callable[[str], Any]:
    """Returns a function that reads what a GGUF file says of its tokenizer; None of what it does not say."""
    from data import gguf_reader

    reader = gguf_reader.opened(gguf_file, VocabularyError)

    def read(name: str) -> Any:
        values = (gguf_reader.value(reader, f"{at}.{name}", VocabularyError) for at in ("tokenizer", "tokenizer.ggml"))
        return next((value for value in values if value is not None), None)

    return read


def write_bpe(
    vocabulary: dict[str, int],
    merges: Sequence[str],
    special: Sequence[str],
    path: Path,
    *,
    single_digits: bool = False,
    before: Sequence[str] = (),
    behind: Sequence[str] = (),
) -> None:
    """Writes a byte-level BPE vocabulary as a tokenizer.json file, whole or not at all.

    Args:
      vocabulary: id of each piece, including the special ones.
      merges: pairs of pieces with a blank between them, in the order in which they are merged.
      special: pieces that never result from text.
      single_digits: digits are never merged.
      before, behind: special pieces that stand before and behind every text.
    """
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = _byte_level(models.BPE(vocab=vocabulary, merges=pairs), single_digits)
    tokenizer.add_special_tokens(list(special))
    if around := [*before, *behind]:
        known = [(piece, vocabulary[piece]) for piece in dict.fromkeys(around)]
        template = processors.TemplateProcessing(single=[*before, "$A", *behind], special_tokens=known)
        tokenizer.post_processor = template
    _save(tokenizer, path)


def _byte_level(model: models.BPE, single_digits: bool = False) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level]) if single_digits else byte_level
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_bpe(lines: Iterable[str], path: Path, size: int, *, fewer: bool = False) -> None:
    """Trains a byte-level BPE vocabulary of `size` ids, including all bytes and the end of text (id 0).

    Args:
      fewer: it has fewer where the text doesn't fill it.

    Raises:
      ValueError: the text doesn't fill so large a vocabulary, or `size` leaves no room for merges.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False)
    tokenizer = _byte_level(models.BPE())
    tokenizer.train_from_iterator(lines, trainer)
    if not fewer:
        _check_size(tokenizer, size, 1 + len(alphabet))
    _save(tokenizer, path)


def _check_size(tokenizer: tokenizers.Tokenizer, size: int, reserved: int) -> None:
    if size <= reserved:
        raise ValueError(f"vocabulary of {size} is too small: {reserved} ids are reserved")
    if (learned := tokenizer.get_vocab_size()) < size:
        raise ValueError(f"vocabulary of {size} is too large for this text: take at most {learned}")


def _save(tokenizer: tokenizers.Tokenizer, path: Path) -> None:
    with paths.scratch(path) as folder:
        tokenizer.save(os.fspath(folder / "new"))
        os.replace(folder / "new", path)
