"""Ranked retrieval of short texts: an inverted index with BM25 weights, kept in a folder.

snippets.txt       a snippet a line, as "term / kind / text"
terms.txt          the words of all snippets, a word a line
starts.npy         int32 [terms + 1]: where each word's part of the next two arrays begins
snippet_ids.npy    int32: the snippets that hold the word
weights.npy        float32: its BM25 weight in each (Robertson and Zaragoza 2009, eq. 3.15)
"""

import re
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from trainers.inference.tools.rule import subject

SEPARATOR = " / "

_K1, _B = 1.2, 0.75  # how fast repetitions saturate, and how much a long snippet counts as such
_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case; a plural in -s is its singular."""
    return [_singular(word) for word in _WORD.findall(text.lower())]


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def term(snippet: str) -> str:
    """Returns the term that a snippet is about: what stands before its first separator."""
    return snippet.partition(SEPARATOR)[0]


def build(snippets: Iterable[str], folder: Path) -> int:
    """Writes the index of snippets, each a single line, into a folder, and returns how many there are."""
    lines: list[str] = []
    vocabulary: dict[str, int] = {}
    lengths: list[int] = []
    pairs = array("i"), array("i"), array("i")  # a word, a snippet that holds it, how often
    for number, snippet in enumerate(snippets):
        lines.append(snippet)
        counts = Counter(words(snippet))
        lengths.append(counts.total())
        pairs[0].extend(vocabulary.setdefault(word, len(vocabulary)) for word in counts)
        pairs[1].extend([number] * len(counts))
        pairs[2].extend(counts.values())
    word_P, snippet_P, count_P = (np.array(column, np.int32) for column in pairs)
    by_word = np.argsort(word_P, kind="stable")
    word_P, snippet_P, count_P = word_P[by_word], snippet_P[by_word], count_P[by_word]

    found_in = np.bincount(word_P, minlength=len(vocabulary))
    inverse_frequency = np.log1p((len(lines) - found_in + 0.5) / (found_in + 0.5))
    relative_length = np.array(lengths) / max(1.0, float(np.mean(lengths or [1])))
    saturated = count_P / (count_P + _K1 * (1 - _B + _B * relative_length[snippet_P]))
    (folder / "snippets.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    (folder / "terms.txt").write_text("".join(f"{word}\n" for word in vocabulary), "utf-8")
    np.save(folder / "starts.npy", np.concatenate([[0], np.cumsum(found_in)]).astype(np.int32))
    np.save(folder / "snippet_ids.npy", snippet_P)
    np.save(folder / "weights.npy", (inverse_frequency[word_P] * saturated).astype(np.float32))
    return len(lines)


class Index:
    """Snippets that are looked up by the term they are about, and searched by their words.

    Args:
      folder: what `build` has written.
    """

    def __init__(self, folder: Path):
        self.snippets = (folder / "snippets.txt").read_text("utf-8").split("\n")[:-1]
        vocabulary = (folder / "terms.txt").read_text("utf-8").split("\n")[:-1]
        self._word_ids = {word: number for number, word in enumerate(vocabulary)}
        self._starts, self._snippet_ids, self._weights = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("starts", "snippet_ids", "weights")
        )
        self._about: dict[str, list[int]] = {}
        for number, snippet in enumerate(self.snippets):
            self._about.setdefault(term(snippet).lower(), []).append(number)

    def __call__(self, query: str, limit: int) -> list[str]:
        """Returns at most `limit` snippets: those about the query as a term, in their order, then others by their rank."""
        key = " ".join((subject(query) or query).lower().strip(" ?.!\"'").split())
        about = self._about.get(key) or self._about.get(_singular(key), [])
        ids = dict.fromkeys([*about[:limit], *self._ranked(key, limit)])
        return [self.snippets[number] for number in list(ids)[:limit]]

    def _ranked(self, query: str, limit: int) -> list[int]:
        """Returns the snippets that share words with a query, the best first, of equals the first."""
        scores = np.zeros(len(self.snippets), np.float32)
        for word in dict.fromkeys(words(query)):
            if (number := self._word_ids.get(word)) is not None:
                part = slice(self._starts[number], self._starts[number + 1])
                scores[self._snippet_ids[part]] += self._weights[part]
        best = np.argsort(-scores, kind="stable")[:limit]
        return [int(number) for number in best if scores[number] > 0]
