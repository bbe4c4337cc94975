"""Encodes text into packed rows, for training and for evaluation alike. No TensorFlow.

A text between two end tokens is cut into chunks of at most L tokens that overlap by one, so that every token but the first is
predicted exactly once when the target is the next token of the chunk. A vocabulary that puts tokens of its own before or behind a
text, as LLaMA's `<s>`, has them in place of the end on that side. With a WordPiece vocabulary, each chunk is [CLS] ... [SEP],
without overlap.

A row is int32 [3 * L]: tokens, segment ids (a chunk is a segment), positions; see `data.reading.packing`.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from data.reading import packing
from data.reading.tally import Tally
from data.vocabularies.tokenizers import Tokenizer


def chunks(text: str, tokenizer: Tokenizer, length: int) -> Iterator[np.ndarray]:
    """Yields the chunks, int32 [<= length], of a text in order."""
    ids = tokenizer.encode(text)
    if tokenizer.cls_id is not None:
        for start in range(0, len(ids), length - 2):
            yield np.array([tokenizer.cls_id, *ids[start : start + length - 2], tokenizer.sep_id], np.int32)
    else:
        before, behind = tokenizer.before or (tokenizer.end,), tokenizer.behind or (tokenizer.end,)
        whole = np.array([*before, *ids, *behind], np.int32)
        for start in range(0, len(whole) - 1, length - 1):
            yield whole[start : start + length]


def rows_of(texts: Iterable[str], tokenizer: Tokenizer, length: int) -> tuple[np.ndarray, int]:
    """Returns packed rows int32 [R, 3 * length] of texts, and the number of the texts' bytes in UTF-8."""
    texts = list(texts)
    examples = ((chunk,) for text in texts for chunk in chunks(text, tokenizer, length))
    rows = list(packing.pack(examples, (length,), Tally()))
    return np.array(rows, np.int32).reshape(-1, 3 * length), sum(len(text.encode()) for text in texts)
