"""Span corruption takes out what T5 takes out, and nothing is lost: inputs and targets together are the text."""

import dataclasses

import numpy as np
import pytest

from configs import registry
from data.kinds import task_of
from data.task import DataError
from data.text import spans
from data.text.config import SpanTextData

EOS, FIRST = 1, 1099  # of 1000 tokens and 100 sentinels


def test_lengths_are_the_papers():
    """568 tokens become 512 inputs and 114 targets: 85 tokens of noise in 28 spans, a sentinel for each, and an end."""
    assert spans.lengths(568, 0.15, 3.0) == (512, 114)
    tokens = np.arange(3, 571)
    inputs, targets = spans.corrupt(tokens, np.random.default_rng(0), rate=0.15, mean=3.0, first_sentinel=FIRST, eos=EOS)
    assert (len(inputs), len(targets)) == (512, 114)


def test_numbers_of_tokens_and_spans_are_fixed():
    """Not drawn for each token: every mask has 85 tokens in 28 spans, begins with a token that stays and ends in noise."""
    for seed in range(20):
        mask = spans.noise_mask(568, 0.15, 3.0, np.random.default_rng(seed))
        starts = mask & ~np.concatenate([[False], mask[:-1]])
        assert (mask.sum(), starts.sum()) == (85, 28) and not mask[0] and mask[-1]


def test_every_way_to_share_tokens_among_spans_is_as_likely():
    """Five tokens in three spans: the six ways come equally often (a thousand each in 6,000 draws, give or take 100)."""
    rng, seen = np.random.default_rng(1), {}
    for _ in range(6000):
        lengths = tuple(spans._segments(5, 3, rng))
        seen[lengths] = seen.get(lengths, 0) + 1
    assert set(seen) == {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}
    assert all(abs(count - 1000) < 100 for count in seen.values())


@pytest.mark.parametrize("tokens", [2, 3, 10, 284])
def test_inputs_and_targets_together_are_the_text(tokens):
    """A sentinel stands where its span was: put back, the spans give the text, and sentinels count down from the last id."""
    text = np.arange(3, 3 + tokens)
    inputs, targets = spans.corrupt(text, np.random.default_rng(2), rate=0.15, mean=3.0, first_sentinel=FIRST, eos=EOS)
    assert inputs[-1] == targets[-1] == EOS
    sentinels = [int(i) for i in inputs if i >= 1000]
    assert sentinels == [int(i) for i in targets if i >= 1000] == [FIRST - i for i in range(len(sentinels))]
    spans_of, target_ids = {}, list(map(int, targets[:-1]))
    for id_ in target_ids:
        if id_ >= 1000:
            last = spans_of.setdefault(id_, [])
        else:
            last.append(id_)
    whole = [token for id_ in map(int, inputs[:-1]) for token in spans_of.get(id_, [id_])]
    assert whole == text.tolist()


def test_a_prefix_and_its_rest_are_the_text():
    text = np.arange(3, 13)
    for seed in range(10):
        inputs, targets = spans.prefix(text, np.random.default_rng(seed), eos=EOS)
        assert len(inputs) >= 1 and targets[-1] == EOS
        assert [*inputs, *targets[:-1]] == text.tolist()


@pytest.mark.parametrize("objective", ["spans", "prefix"])
def test_rows_are_made_anew_as_a_function_of_their_draw(objective):
    """The same generator gives the same row, another one another; every array fits its feature."""
    e = registry.tiny(registry.load("t5.quickstart"))
    data = dataclasses.replace(e.data, objective=objective, length=40)
    task = task_of(data)
    row = task.synthetic(np.random.default_rng(0), e.model)
    first, again, other = (task.augment(row, np.random.default_rng(s), task.assets(None, e.model)) for s in (5, 5, 6))
    assert all(np.array_equal(first[k], again[k]) for k in first)
    assert not all(np.array_equal(first[k], other[k]) for k in first)
    assert {k: x.shape for k, x in first.items()} == {k: f.shape for k, f in data.features().items()}
    assert first["inputs"].max() < 64 and first["targets_positions"].max() == first["targets_segments"].sum() - 1


def test_a_vocabulary_without_room_for_sentinels_is_refused():
    e = registry.load("t5.quickstart")
    manifest = {"cache": "t5_small", "length": 70, "vocabulary": 8300}
    with pytest.raises(DataError, match=r"8320 tokens: cache 't5_small' has 8300, and data.sentinels=100 .* at least 8400"):
        task_of(e.data).check(manifest, e.model)


@pytest.mark.parametrize(("field", "value"), [("rate", 1.0), ("mean_span", 0.5), ("length", 1)])
def test_settings_that_cannot_be_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field}={value}"):
        dataclasses.replace(SpanTextData(batch_size=1, length=10), **{field: value})
