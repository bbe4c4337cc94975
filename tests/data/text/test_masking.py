import numpy as np
import pytest

from data.text import masking
from data.text.masking import Vocabulary

PAD, MASK, CLS, SEP = 0, 1, 2, 3
SIZE, CONTINUES = 1000, 500  # ids from 500 on continue a word


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    special = np.arange(SIZE) < 4
    return Vocabulary(MASK, special, np.arange(SIZE) >= CONTINUES, np.flatnonzero(~special).astype(np.int32))


def row_of(*segments: list[int], length: int = 64) -> dict[str, np.ndarray]:
    tokens = [token for segment in segments for token in segment]
    ids = [number for number, segment in enumerate(segments, start=1) for _ in segment]
    padding = (0, length - len(tokens))
    return {"tokens": np.pad(np.array(tokens, np.int32), padding), "segments": np.pad(np.array(ids, np.int32), padding)}


def masked(row, vocabulary, seed=0, *, rate=0.15, whole_word=False, predictions=9):
    rng = np.random.default_rng(seed)
    return masking.mask(row, rng, vocabulary, rate=rate, whole_word=whole_word, predictions=predictions)


def random_row(seed: int) -> dict[str, np.ndarray]:
    """Two segments of words of one to four pieces."""
    rng = np.random.default_rng(seed)
    segments = []
    for count in rng.integers(3, 12, 2):
        words = [[rng.integers(4, CONTINUES), *rng.integers(CONTINUES, SIZE, rng.integers(0, 4))] for _ in range(count)]
        segments.append([CLS, *(int(piece) for word in words for piece in word), SEP])
    return row_of(*segments, length=128)


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_chosen(vocabulary, seed, whole_word):
    """Masking chooses floor(rate N) of N common tokens, in order; the row differs nowhere else; the input stays as it is."""
    row = random_row(seed)
    before = row["tokens"].copy()
    output = masked(row, vocabulary, seed, whole_word=whole_word, predictions=30)
    common = (row["segments"] > 0) & (row["tokens"] > 3)
    used = output["targets"] >= 0
    slots = output["slots"][used]
    number = int(0.15 * common.sum())
    # Of whole words the last few tokens may find no word short enough.
    assert number - 4 < len(slots) <= number if whole_word else len(slots) == number
    assert np.all(np.diff(slots) > 0) and common[slots].all()
    assert np.all(output["slots"][~used] == 0) and used[: len(slots)].all()
    assert np.array_equal(output["targets"][used], before[slots])
    elsewhere = np.delete(output["tokens"], slots)
    assert np.array_equal(elsewhere, np.delete(before, slots)) and np.array_equal(row["tokens"], before)


@pytest.mark.parametrize("seed", range(20))
def test_whole_words(vocabulary, seed):
    """With whole words, a word's pieces are chosen all together or not at all."""
    row = random_row(seed)
    output = masked(row, vocabulary, seed, rate=0.4, whole_word=True, predictions=60)
    chosen = np.zeros(128, bool)
    chosen[output["slots"][output["targets"] >= 0]] = True
    assert chosen.any()
    goes_on = row["tokens"][1:] >= CONTINUES
    assert np.array_equal(chosen[1:][goes_on], chosen[:-1][goes_on])


def test_a_segment_that_begins_inside_a_word(vocabulary):
    """A piece at the head of a segment that continues a word of nowhere is a word of its own, not part of the one before."""
    row = row_of([10, 600], [700, 700, 11], length=8)
    chosen = {
        tuple(s["slots"][s["targets"] >= 0])
        for s in (masked(row, vocabulary, seed, rate=0.4, whole_word=True, predictions=2) for seed in range(50))
    }
    assert chosen == {(0, 1), (2, 3), (4,)}  # two tokens: either word of two, or the word of one and nothing that fits


def test_what_becomes_of_them(vocabulary):
    """Chosen tokens become the mask in 80 % of cases, any common token in 10 %, and stay in 10 %."""
    row = row_of([10] * 1000, length=1000)
    rows = [masked(row, vocabulary, seed, rate=0.5, predictions=500)["tokens"] for seed in range(20)]
    new = np.concatenate([tokens[tokens != 10] for tokens in rows])
    assert (new == MASK).sum() / 10000 == pytest.approx(0.8, abs=0.02)
    by_chance = new[new != MASK]
    assert len(by_chance) / 10000 == pytest.approx(0.1, abs=0.01) and by_chance.min() >= 4
    assert len(np.unique(by_chance)) > 500


def test_no_more_than_there_is_room_for(vocabulary):
    """At most `predictions` tokens are chosen; a row with nothing to choose is left alone."""
    output = masked(row_of([10] * 60), vocabulary, rate=0.5, predictions=4)
    assert (output["targets"] == 10).all() and len(output["slots"]) == 4
    for whole_word in (False, True):
        empty = masked(row_of([CLS, SEP]), vocabulary, whole_word=whole_word)
        assert (empty["targets"] == -1).all() and empty["tokens"].tolist()[:3] == [CLS, SEP, PAD]


def test_chance_is_the_generator_s(vocabulary):
    """The same generator masks the same tokens; another one masks others. Other arrays of the row come along."""
    row = random_row(0) | {"types": np.zeros(128, np.int32)}
    first, again, other = (masked(row, vocabulary, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first) and "types" in first
    assert not np.array_equal(first["slots"], other["slots"])


def test_random_tokens_can_be_masked():
    """For rows of random ids, without a vocabulary, each token is a word, and only 0 and 1 are special."""
    output = masked(row_of([2, 3, 4, 1, 0]), Vocabulary.without_words(5), rate=1.0, whole_word=True)
    assert output["slots"].tolist() == [0, 1, 2, *[0] * 6] and output["targets"].tolist()[:4] == [2, 3, 4, -1]


def test_tokens_are_lost_for_noise(vocabulary):
    """About the share that is asked for gives way to [MASK], others each time; special tokens, padding and labels stay."""
    row = random_row(3) | {"targets": np.array([7], np.int32)}
    rng = np.random.default_rng(0)
    ordinary = (row["segments"] > 0) & ~vocabulary.special[row["tokens"]]
    lost = []
    for _ in range(400):
        output = masking.hide(row, rng, vocabulary, 0.2)
        changed = output["tokens"] != row["tokens"]
        assert (output["tokens"][changed] == MASK).all() and ordinary[changed].all()
        assert output["targets"] is row["targets"] and output["tokens"].dtype == np.int32
        lost.append(changed)
    share = np.mean(lost, axis=0)[ordinary]
    assert share.min() > 0.1 and share.max() < 0.3 and share.mean() == pytest.approx(0.2, abs=0.01)
