"""Sound files: what is read, and what is refused in one line."""

import io

import numpy as np
import pytest
import soundfile
from numpy.testing import assert_allclose

from data.speech import sound
from tests.helpers.sounds import tone, wav


def encoded(samples: np.ndarray, rate: int, form: str = "OGG", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


def test_a_wav_file_comes_back_to_a_sixteenth_bit():
    """Samples of 16 bits at 16 kHz are read as they were, but for their rounding."""
    samples = tone(0.5)
    assert_allclose(sound.read(wav(samples)), samples, atol=1 / 32768)


@pytest.mark.parametrize("rate", [8_000, 22_050, 48_000])
def test_every_rate_becomes_16_khz(rate):
    """A second of a tone is 16,000 samples of it, whatever the file's rate; both channels' mean is taken."""
    left = np.sin(2 * np.pi * 300 * np.arange(rate) / rate).astype(np.float32)
    heard = sound.read(encoded(np.stack([left, 0 * left], axis=1), rate, "WAV"))
    assert abs(len(heard) - 16_000) <= 1
    want = 0.5 * np.sin(2 * np.pi * 300 * np.arange(16_000) / 16_000)
    assert_allclose(heard[1000:15_000], want[1000:15_000], atol=2e-3)


def test_blocks_are_the_whole(monkeypatch):
    """A long file that is read and resampled a block at a time is the same as in one piece."""
    content = encoded(tone(3, rate=22_050), 22_050, "FLAC")
    whole = sound.read(content)
    monkeypatch.setattr(sound, "_BLOCK", 1000)
    assert_allclose(np.concatenate(list(sound.blocks(content))), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no sound at all", "no sound that can be read"),
        (b"", "no sound that can be read"),
        (encoded(np.zeros(0, np.float32), 16_000, "WAV"), "has no samples"),
        (encoded(tone(3, rate=22_050), 22_050, "WAV")[:40_000], "cut short after 0.9 s"),
        (encoded(tone(9, rate=22_050), 22_050, "OGG")[:9_000], "cut short"),
        (encoded(tone(3, rate=22_050), 22_050, "FLAC")[:20_000], "no sound|cut short|damaged"),
    ],
)
def test_what_is_no_sound_is_refused_in_one_line(content, message):
    """Text, an empty file, a sound of zero length, and one that is cut short."""
    with pytest.raises(sound.SoundError, match=message) as error:
        sound.read(content)
    assert "\n" not in str(error.value)
