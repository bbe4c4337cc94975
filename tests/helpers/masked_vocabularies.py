"""Small vocabularies of RoBERTa's and XLM-R's kind, as `transformers` saves them: the zoo reads released ones and trains none."""

from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def train_roberta(lines: Iterable[str], path: Path, size: int) -> None:
    """Writes a byte-level BPE of `size` ids to `path`; those of SPECIAL come first."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.save(str(path))


def write_xlm_roberta(words: Iterable[str], path: Path) -> None:
    """Writes a unigram vocabulary of these words and the letters to `path`; the mask is the last id."""
    letters = [*"▁abcdefghijklmnopqrstuvwxyz"]
    pieces = [*((piece, 0.0) for piece in SPECIAL[:4]), *((f"▁{word}", -3.0) for word in words)]
    tokenizer = tokenizers.Tokenizer(models.Unigram([*pieces, *((c, -9.0) for c in letters)], unk_id=3))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.save(str(path))
