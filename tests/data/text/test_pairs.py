import types
from typing import Any

import numpy as np
import pytest

from data.text import pairs

PAD, CLS, SEP = 0, 1, 2
LENGTH, MOST = 32, 3
# A vocabulary of numbers: a token is a word, its own id.
NUMBERS: Any = types.SimpleNamespace(encode=lambda text: [int(n) for n in text.split()], cls_id=CLS, sep_id=SEP)


def text(number: int, sentences: int = 12) -> str:
    """A text of sentences of five tokens, a line each; its tokens count up from 1000 times its number."""
    return "\n".join(" ".join(str(1000 * number + 5 * i + j) for j in range(5)) for i in range(sentences))


@pytest.fixture(scope="module")
def examples():
    """(A, B, target) of forty texts."""
    triples = []
    for tokens_and_types, target in pairs.examples([text(n) for n in range(1, 41)], NUMBERS, LENGTH):
        tokens, kinds = tokens_and_types.T.tolist()
        first, last = tokens.index(SEP), len(tokens) - 1
        assert len(tokens) <= LENGTH and tokens[0] == CLS and tokens[last] == SEP
        assert kinds == [0] * (first + 1) + [1] * (last - first)
        triples.append((tokens[1:first], tokens[first + 1 : last], int(target[0])))
    return triples


def test_half_of_the_pairs_follow(examples):
    """About half of the second segments go on from the first; the others are of another text."""
    assert len(examples) > 100 and 0.4 < np.mean([target for *_, target in examples]) < 0.6
    for first, second, target in examples:
        assert first and second
        of_first, of_second = first[0] // 1000, second[0] // 1000
        assert (of_first == of_second) == bool(target)
        # Each segment is a stretch of its text. Between the two a few tokens may have been cut away, nothing comes twice.
        assert np.all(np.diff(first) == 1) and np.all(np.diff(second) == 1)
        if target:
            assert 1 <= second[0] - first[-1] <= 10


def test_lengths_give_nothing_away(examples):
    """Segments are about as long in either case."""
    for side in (0, 1):
        means = [np.mean([len(example[side]) for example in examples if example[2] == target]) for target in (0, 1)]
        assert means[0] == pytest.approx(means[1], abs=2)
    assert np.mean([len(a) + len(b) == LENGTH - 3 for a, b, _ in examples]) > 0.6


def test_a_row_by_hand():
    """A row says where its examples begin and which of them go on; unused slots are 0 and their targets -1."""
    one = np.array([[CLS, 0], [7, 0], [SEP, 0], [8, 1], [SEP, 1]], np.int32), np.array([1], np.int32)
    two = np.array([[CLS, 0], [9, 0], [SEP, 0], [5, 1], [6, 1], [SEP, 1]], np.int32), np.array([0], np.int32)
    assert pairs.lay_out([one, two], (12, 3)).tolist() == [
        *[CLS, 7, SEP, 8, SEP, CLS, 9, SEP, 5, 6, SEP, PAD],
        *[1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0],
        *[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 0],
        *[0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0],
        *[0, 5, 0],
        *[1, 0, -1],
    ]


def test_rows_of_origins():
    """Pairs are made within an origin, the same each time; no row has more than it has slots for."""
    texts = [text(n, sentences=2) for n in range(1, 61)]
    origins = ["even" if n % 2 == 0 else "odd" for n in range(1, 61)]
    rows = pairs.rows_of(texts, NUMBERS, 64, MOST, origins)
    assert rows.shape[1] == 4 * 64 + 2 * MOST and rows.dtype == np.int32
    assert np.array_equal(rows, pairs.rows_of(texts, NUMBERS, 64, MOST, origins))
    targets = rows[:, -MOST:]
    assert (targets >= 0).all(axis=1).sum() > 10
    for tokens, segments in rows[:, : 2 * 64].reshape(-1, 2, 64):
        for segment in range(1, segments.max() + 1):
            mine = tokens[(segments == segment) & (tokens > SEP)]
            assert len({number % 2 for number in mine // 1000}) == 1


def test_sentences():
    """A sentence ends at a full stop, with or without a closing mark, and with the line; long ones are cut."""
    words: Any = types.SimpleNamespace(encode=lambda text: text.split())
    assert pairs.sentences('He asked, "Why?" Then (so it is.) left. v. 2.5 is out\nA: yes', words, 3) == [
        ["He", "asked,", '"Why?"'],
        ["Then", "(so", "it"],
        ["is.)"],
        ["left."],
        ["v."],
        ["2.5", "is", "out"],
        ["A:", "yes"],
    ]


def test_an_origin_of_one_text_makes_no_pair():
    """Where no segment could be another text's, every label would be 1: such an origin is left out, the others are as before.

    Texts of one sentence, from which nothing goes on, do not count.
    """
    short, width = text(9, sentences=1), 4 * 32 + 2 * MOST
    for texts in ([short], [text(1)], [text(1), short]):
        assert pairs.rows_of(texts, NUMBERS, 32, MOST).shape == (0, width)
    both = [text(n) for n in (1, 2)]
    expected = pairs.rows_of(both, NUMBERS, 32, MOST, ["novel", "novel"])
    assert np.array_equal(pairs.rows_of([*both, text(3)], NUMBERS, 32, MOST, ["novel", "novel", "poem"]), expected)
    assert {0, 1} <= set(expected[:, -MOST:].ravel())
