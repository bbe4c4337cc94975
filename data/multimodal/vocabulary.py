"""Texts of many languages as ids: byte-level BPE with a token for each language, which a text begins with. No JAX."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from data import paths
from data.vocabularies.tokenizers import FILE, Tokenizer
from models.errors import UserError, nearest

_PAD, _START, _END = "<|pad|>", "<|start|>", "<|end|>"


class Languages:
    """A vocabulary of `write_vocabulary`: 0 is padding, 1 stands before a text, 2 ends it, then languages.

    Attributes:
      codes: id of each language's token.
      size: number of ids.
    """

    pad, start, eos = 0, 1, 2

    def __init__(self, folder: Path):
        self.tokenizer = Tokenizer(folder)
        self.size = self.tokenizer.size
        marks = (_PAD, _START, _END)
        self.codes = {name[2:-2]: id_ for name, id_ in self.tokenizer.special.items() if name not in marks}

    def prefix(self, language: str) -> list[int]:
        """Returns the id that asks for a language; raises UserError with the nearest one."""
        if language not in self.codes:
            raise UserError(f"no language {language!r}{nearest(language, self.codes)}")
        return [self.codes[language]]

    def target(self, text: str, language: str) -> list[int]:
        """Returns the ids of a text: its language, its pieces, its end."""
        return [*self.prefix(language), *self.tokenizer.encode(text), self.eos]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids up to the end."""
        kept = []
        for id_ in map(int, ids):
            if id_ == self.eos:
                break
            kept.append(id_)
        return self.tokenizer.decode(kept).strip()


def write_vocabulary(texts: Iterable[str], languages: Sequence[str], path: Path, size: int) -> None:
    """Trains byte-level BPE on texts, with at most `size` ids, and writes it as a tokenizer.json."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [_PAD, _START, _END, *(f"<|{language}|>" for language in languages)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    with paths.scratch(path) as folder:
        tokenizer.save(str(folder / FILE))
        (folder / FILE).replace(path)
