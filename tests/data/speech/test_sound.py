"""Sound files: what is read, and what is refused in one line."""

import io

import numpy as np
import pytest
import soundfile
from numpy.testing import assert_allclose

from data import untrusted
from data.speech import sound
from tests.helpers.sounds import bad_sounds, tone, wav


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


def test_an_ogg_file_that_is_cut_anywhere_is_refused():
    """Between its pages and inside any of them, the last one too, which is marked as the last wherever it is cut."""
    content = encoded(tone(9), 16_000)
    assert len(sound.read(content)) == 9 * 16_000
    pages = [at for at in range(len(content)) if content[at : at + 4] == b"OggS"]
    assert len(pages) > 3
    for end in (*pages[2:], pages[-1] + 10, pages[-1] + 30, (pages[-1] + len(content)) // 2, len(content) - 1):
        with pytest.raises(sound.SoundError, match="cut short"):
            sound.read(content[:end])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *bad_sounds().values(),
        (b"", "no sound that can be read"),
        (encoded(tone(3, rate=22_050), 22_050, "WAV")[:40_000], "cut short after 0.9 s"),
        (encoded(tone(9, rate=22_050), 22_050, "OGG")[:9_000], "cut short"),
        (encoded(tone(3, rate=22_050), 22_050, "FLAC")[:20_000], "no sound|cut short|damaged"),
    ],
)
def test_what_is_no_sound_is_refused_in_one_line(content, message):
    """Text, films, an empty file, a sound of zero length, a rate that no sound has, and sounds that are cut short."""
    with pytest.raises(sound.SoundError, match=message) as error:
        sound.read(content)
    assert "\n" not in str(error.value)


def test_a_sound_that_is_too_long_for_memory_is_refused(monkeypatch):
    """Hours of silence are a small file: what is read whole has a bound, and a stream a later one; many channels count too."""
    content = encoded(np.zeros(3 * 16_000, np.float32), 16_000, "FLAC")
    monkeypatch.setattr(untrusted, "SAMPLES", 2 * 16_000)
    with pytest.raises(sound.SoundError, match=r"^is longer than 0\.0 hours$"):
        sound.read(content)
    assert sum(map(len, sound.blocks(content))) == 3 * 16_000
    with pytest.raises(sound.SoundError, match="is longer than"):
        list(sound.blocks(content, 16_000))
    wide = io.BytesIO()
    soundfile.write(wide, np.zeros((1000, 900), np.float32), 16_000, format="WAV")
    monkeypatch.setattr(sound, "_BLOCK", 9000)
    assert [len(block) for block in sound.blocks(wide.getvalue())] == [10] * 100
