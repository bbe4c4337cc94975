"""WordPiece vocabularies of a test's own texts: the zoo reads released ones and trains none."""

from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def train_wordpiece(lines: Iterable[str], path: Path, size: int) -> None:
    """Writes an uncased WordPiece vocabulary of `size` ids to `path`; those of SPECIAL come first.

    Raises:
      ValueError: the text doesn't fill so large a vocabulary.
    """
    lines, normalizer = list(lines), normalizers.BertNormalizer(lowercase=True)
    characters = sorted({c for line in lines for c in normalizer.normalize_str(line) if not c.isspace()})
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    # The trainer numbers `##` characters as it meets them in a hash map, and breaks ties by number: given here, in order, the
    # same text gives the same vocabulary. Special to the trainer, they are plain pieces of the model below.
    given = [*SPECIAL, *(f"##{c}" for c in characters)]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=given, initial_alphabet=characters, show_progress=False)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(lines, trainer)
    vocabulary = tokenizer.get_vocab()
    if len(vocabulary) != size:
        raise ValueError(f"a WordPiece vocabulary of {size} does not fit this text: {len(vocabulary)} does")
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(path))
