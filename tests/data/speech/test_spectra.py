"""Log-mel frames equal those of `transformers`, by both conventions."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from safetensors.numpy import load_file

from data.speech import spectra
from tests.parity.live import FIXTURES


@pytest.mark.parametrize(
    ("name", "kind", "mels"), [("whisper80", "whisper", 80), ("whisper128", "whisper", 128), ("kaldi80", "kaldi", 80)]
)
def test_frames_are_those_of_the_reference(name, kind, mels):
    """A second of tones and noise gives the same frames to 1e-5 as `transformers`' extractors (make parity)."""
    expected = load_file(FIXTURES / "spectra.safetensors")
    got = spectra.frames(expected["sound"], mels, kind)
    assert got.dtype == np.float32
    assert_allclose(got, expected[name], atol=1e-5)


@pytest.mark.parametrize("kind", ["whisper", "kaldi"])
def test_what_is_shorter_than_a_window_has_no_frames(kind):
    """No samples give no frames, and long sounds are transformed in blocks without a seam."""
    assert spectra.frames(np.zeros(0, np.float32), 80, kind).shape == (0, 80)
    sound = np.random.default_rng(0).normal(size=16_000 * 60).astype(np.float32) * 0.1
    whole = spectra.frames(sound, 80, kind)
    cut = 160 * 4200  # beyond the first block
    near = spectra.frames(sound[cut - 1600 : cut + 1600], 80, kind)
    if kind == "kaldi":
        assert_allclose(whole[4190 : 4190 + len(near)], near, atol=1e-4)
    assert len(whole) == (6000 if kind == "whisper" else 5998)
