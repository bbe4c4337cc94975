"""SentencePiece vocabularies: their training on the training split, and their use. No TensorFlow."""

import io
import itertools
import math
import os
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import sentencepiece

from data import paths, untrusted
from data.vocabularies import rules
from data.vocabularies.files import VocabularyError

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2  # as SeqIO and T5 expect; there is no beginning-of-sentence
_ALPHABET_SHARE = 0.3  # largest share of characters among the pieces: ideographs would otherwise fill a small vocabulary
_LEAST_PIECES = 64  # the fewest that a vocabulary may have
_HIGHEST_COVERAGE = 0.9995  # of all characters; SentencePiece's advice for rich alphabets. Others become bytes


def tag(language: str) -> str:
    """Returns the symbol that begins a source in this language, e.g. `<sw>`."""
    return f"<{language}>"


def processor(path: Path) -> sentencepiece.SentencePieceProcessor:
    """Returns a `.model` file's encoder; raises VocabularyError where it is missing or damaged."""
    model = untrusted.read_bytes(path, VocabularyError, untrusted.SENTENCEPIECE)
    with untrusted.damage(path, VocabularyError):
        rules.check_sentencepiece(model, path)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        if not processor.get_piece_size():
            raise VocabularyError(f"{path} is damaged: it has no pieces")
        return processor


class Vocabulary:
    """A trained SentencePiece model.

    Attributes:
      path: the `.model` file.
      size: number of ids.
      pad_id, eos_id: ids of padding and end of sentence.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self._processor = processor(self.path)
        self.size: int = self._processor.get_piece_size()
        self.pad_id: int = self._processor.pad_id()
        self.eos_id: int = self._processor.eos_id()

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text: neither tag nor end of sentence is added."""
        return self._processor.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids up to the first end of sentence; padding and tags become no text."""
        kept = []
        for token in ids:
            if token == self.eos_id:
                break
            kept.append(int(token))
        return self._processor.decode(kept)

    def marked(self, ids: Iterable[int]) -> str:
        """Returns the text of ids with the tags and the end by name, for a person."""
        parts = []
        for is_mark, run in itertools.groupby(map(int, ids), self._processor.is_control):
            some = list(run)
            parts += [self._processor.id_to_piece(id_) for id_ in some] if is_mark else [self._processor.decode(some)]
        return " ".join(parts)

    def tag_id(self, language: str) -> int:
        """Returns the id of a language's tag; raises KeyError if the vocabulary has no tag for the language."""
        identifier = self._processor.piece_to_id(tag(language))
        if identifier == self._processor.unk_id():
            raise KeyError(f"{self.path.name} has no tag for language {language!r}")
        return identifier


def sample_lines(lines: Mapping[str, Sequence[str]], *, budget: int, temperature: float, seed: int = 0) -> Iterator[str]:
    """Yields about `budget` lines; the share of language `l` is proportional to n_l ** (1 / temperature).

    A language with fewer lines than its share gives each of them once: SentencePiece would learn nothing but the line
    from repetitions.
    """
    weights = {language: len(texts) ** (1 / temperature) for language, texts in sorted(lines.items()) if texts}
    scale = budget / sum(weights.values())
    for language, weight in weights.items():
        texts = lines[language]
        number = min(len(texts), math.ceil(weight * scale))
        yield from random.Random(f"{seed} {language}").sample(texts, number)


def train_at_most(lines: Iterable[str], path: Path, *, size: int, tags: Collection[str] = ()) -> None:
    """Trains a model as `train` does, of fewer ids where the text doesn't fill `size`.

    Raises:
      ValueError: the text doesn't fill the smallest vocabulary.
    """
    lines = list(lines)
    while True:
        try:
            return train(lines, path, size=size, tags=tags)
        except ValueError as error:
            fewer = re.search(r"take at most (\d+)$", str(error))
            if not fewer:
                raise
            size = int(fewer[1])


def train(lines: Iterable[str], path: Path, *, size: int, tags: Collection[str] = (), threads: int = 2) -> None:
    """Trains a unigram model of exactly `size` ids and writes it to `path`, whole or not at all.

    Tags are control symbols, not user-defined ones: those are also found inside text, where `<br>` and `<tr>` are
    HTML, not Breton and Turkish. Their ids are put in front by `tag_id`.

    Args:
      lines: training text, a sentence each.
      size: number of ids, including padding, end, unknown, the tags and 256 bytes.
      tags: languages that get a tag, in any order.

    Raises:
      ValueError: the text doesn't fill so large a vocabulary, or `size` leaves no room for pieces.
    """
    lines = list(lines)
    reserved = 3 + 256 + len(tags)
    least = reserved + _LEAST_PIECES
    if size < least:
        raise ValueError(f"vocabulary of {size} is too small: {reserved} ids are reserved, take at least {least}")
    alphabet = int(_ALPHABET_SHARE * (size - reserved))
    model = io.BytesIO()  # not a file: SentencePiece would write its name, a temporary one, into the model
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            character_coverage=_coverage(lines, alphabet),
            byte_fallback=True,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            bos_id=-1,
            control_symbols=[tag(language) for language in sorted(tags)],
            num_threads=threads,
            max_sentence_length=16384,  # bytes; longer lines are skipped
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        most = re.search(r"<= (\d+)", str(error))
        if most and int(most[1]) < least:
            words = "have too few different words for a vocabulary of their own"
            raise ValueError(f"these {len(lines)} lines {words}, which has at least {least} ids: add text") from None
        reason = f"take at most {most[1]}" if most else str(error).splitlines()[-1].strip()
        raise ValueError(f"vocabulary of {size} is too large for these {len(lines)} lines: {reason}") from None
    with paths.scratch(path) as folder:
        (folder / "new").write_bytes(model.getvalue())
        os.replace(folder / "new", path)


def _coverage(lines: Iterable[str], alphabet: int) -> float:
    """Returns the share of all characters that the `alphabet` most frequent ones make up, 0.9995 at most."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    del counts[" "]
    covered = sum(number for _, number in counts.most_common(alphabet))
    return min(_HIGHEST_COVERAGE, covered / max(1, counts.total()))
