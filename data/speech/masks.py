"""Masks of sounds in training: SpecAugment's bands and stretches, and the spans that pre-training predicts. NumPy only.

Pure functions of a generator. T frames or positions, F bands.
"""

import numpy as np

from data.speech.config import SpanMasks, SpecAugment


def spec_augment(frames_TF: np.ndarray, how: SpecAugment, rng: np.random.Generator) -> np.ndarray:
    """Returns an utterance's frames with bands and stretches of them set to its mean (SpecAugment, arXiv 1904.08779).

    The width of each band is drawn evenly from 0 to `band_width`, that of each stretch from 0 to `stretch_share` of the
    utterance; then its place.
    """
    masked, (length, bands), fill = frames_TF.copy(), frames_TF.shape, frames_TF.mean()
    for _ in range(how.bands):
        start, width = _stretch(rng, bands, min(how.band_width, bands))
        masked[:, start : start + width] = fill
    for _ in range(how.stretches):
        start, width = _stretch(rng, length, int(how.stretch_share * length))
        masked[start : start + width] = fill
    return masked


def _stretch(rng: np.random.Generator, size: int, widest: int) -> tuple[int, int]:
    width = int(rng.integers(0, widest + 1))
    return int(rng.integers(0, size - width + 1)), width


def spans(length: int, how: SpanMasks, rng: np.random.Generator) -> np.ndarray:
    """Returns which of T positions are hidden, bool [T]: spans of `span` that begin at `probability` of the positions.

    Spans may overlap (wav2vec 2.0, arXiv 2006.11477, section 3.1: .065 and 10 hide about half). The number of spans is the
    expected one, rounded up or down at random, and at least two where that many fit, so that each utterance has something to
    predict and something else to tell it from.
    """
    hidden = np.zeros(length, bool)
    starts = max(length - how.span + 1, 0)
    number = min(max(int(how.probability * length + rng.random()), 2), starts)
    for start in rng.choice(starts, number, replace=False) if number else ():
        hidden[start : start + how.span] = True
    return hidden
