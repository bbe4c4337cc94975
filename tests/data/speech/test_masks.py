"""SpecAugment and spans: pure functions of a generator, with the shares that the papers state."""

import numpy as np
import pytest

from data.speech import masks
from data.speech.config import SpanMasks, SpecAugment


def test_bands_and_stretches_are_hidden_whole():
    """Two bands and three stretches of frames of different numbers become the mean, and nothing else changes."""
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(200, 80)).astype(np.float32)
    how = SpecAugment(bands=2, band_width=20, stretches=3, stretch_share=0.1)
    hidden = masks.spec_augment(frames, how, np.random.default_rng(1))
    changed = hidden != frames
    assert changed.any() and np.allclose(hidden[changed], frames.mean())
    columns, rows = changed.all(axis=0), changed.all(axis=1)
    assert (changed == (rows[:, None] | columns[None])).all()  # whole rows and columns alone
    assert columns.sum() <= 40 and rows.sum() <= 60
    assert (masks.spec_augment(frames, how, np.random.default_rng(1)) == hidden).all()
    assert (masks.spec_augment(frames, SpecAugment(), rng) == frames).all()


def test_about_half_of_the_positions_are_in_spans():
    """.065 and 10 hide 49 % of positions (wav2vec 2.0, section 3.1), in runs of 10 or more."""
    rng, how = np.random.default_rng(0), SpanMasks(probability=0.065, span=10)
    drawn = [masks.spans(500, how, rng) for _ in range(200)]
    assert abs(np.mean(drawn) - 0.485) < 0.01
    edges = np.flatnonzero(np.diff(np.pad(drawn[0].astype(int), 1)))
    assert min(edges[1::2] - edges[::2]) >= 10


@pytest.mark.parametrize(("length", "hidden"), [(0, 0), (9, 0), (10, 10), (12, (10, 12))])
def test_short_utterances_have_as_many_spans_as_fit(length, hidden):
    """An utterance that is shorter than a span has none; no span goes beyond the end."""
    mask = masks.spans(length, SpanMasks(probability=0.065, span=10), np.random.default_rng(0))
    least, most = hidden if isinstance(hidden, tuple) else (hidden, hidden)
    assert len(mask) == length and least <= mask.sum() <= most
