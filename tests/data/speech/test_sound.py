"""Sound files: what is read, and what is refused in one line."""

import io
import struct

import numpy as np
import pytest
import soundfile
from numpy.testing import assert_allclose

from data import untrusted
from data.speech import endings, sound
from tests.helpers.sounds import bad_sounds, tone, wav, wav_header


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
    samples = sound.read(encoded(np.stack([left, 0 * left], axis=1), rate, "WAV"))
    assert abs(len(samples) - 16_000) <= 1
    want = 0.5 * np.sin(2 * np.pi * 300 * np.arange(16_000) / 16_000)
    assert_allclose(samples[1000:15_000], want[1000:15_000], atol=2e-3)


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


def mp3(seconds: float = 6.0, **settings) -> bytes:
    """Noise that grows louder as an MP3 file, whose first frame says how many there are."""
    file, chance = io.BytesIO(), np.random.default_rng(0)
    samples = 0.3 * chance.standard_normal(round(22_050 * seconds)) * np.linspace(0, 1, round(22_050 * seconds))
    soundfile.write(file, samples.astype(np.float32), 22_050, format="MP3", **settings)
    return file.getvalue()


def without_count(content: bytes) -> bytes:
    """An MP3 file without its first frame, as streams and many programs write them."""
    return content[[at for at, _ in endings._frames(content)][1] :]


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
def test_an_mp3_file_that_does_not_say_its_length_is_read_whole(mode):
    """Its length is a guess from the first frame's bits, which is no reason to refuse it."""
    content = mp3(bitrate_mode=mode)
    whole, bare = sound.read(content), sound.read(without_count(content))
    assert len(whole) == 6 * 16_000 and 0 <= len(bare) - len(whole) < 3 * 1152
    assert len(sound.read(b"ID3\4\0\0\0\0\0\7" + bytes(7) + content + b"TAG" + bytes(125))) == len(whole)


@pytest.mark.parametrize("counted", [True, False])
def test_an_mp3_file_that_is_cut_is_refused_where_that_can_be_seen(counted):
    """One that says its length wherever it is cut, any other inside a frame; between frames nothing tells."""
    content = mp3() if counted else without_count(mp3())
    at, length = list(endings._frames(content))[-9]
    for end in (at + 1 + length // 2, at + length - 1, len(content) - 1, *([at] if counted else [])):
        if end - at > 3:
            with pytest.raises(sound.SoundError, match="cut short"):
                sound.read(content[:end])
    assert counted or len(sound.read(content[:at])) > 5 * 16_000


@pytest.mark.parametrize("form", ["MP3", "FLAC", "OGG"])
def test_a_block_begins_with_what_the_one_before_left(form, monkeypatch):
    """A frame of MP3 takes bits of those before it: a place in the middle is not sought for, so that blocks are the whole."""
    content = mp3(bitrate_mode="VARIABLE") if form == "MP3" else encoded(tone(6, rate=22_050), 22_050, form)
    want, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    assert rate == 22_050
    monkeypatch.setattr(sound, "RATE", rate)
    monkeypatch.setattr(sound, "_BLOCK", 5000)
    assert_allclose(sound.read(content), want, atol=1e-5)


def test_a_stream_of_flac_is_read_whole():
    """Its header does not know how many samples there are."""
    content = bytearray(encoded(tone(2), 16_000, "FLAC"))
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    assert len(sound.read(bytes(content))) == 2 * 16_000


@pytest.mark.parametrize("size", [0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0])
def test_a_stream_of_wav_is_read_whole(size):
    """Programs that cannot go back to the header write a size that no file has."""
    content = bytearray(wav(tone(0.5)))
    content[4:8] = struct.pack("<I", min(size + 36, 0xFFFFFFFF))
    content[40:44] = struct.pack("<I", size)
    assert len(sound.read(bytes(content))) == 8_000


def test_a_wav_file_is_whole_if_its_samples_are():
    """A note behind them may be missing; a sample may not, however large the file says that it is."""
    content = wav(tone(0.5))
    noted = b"RIFF" + struct.pack("<I", len(content) - 8 + 100) + content[8:] + b"LIST" + struct.pack("<I", 92) + bytes(5)
    assert len(sound.read(noted)) == 8_000
    for end in (len(content) - 1, 1000, 46):
        with pytest.raises(sound.SoundError, match="cut short"):
            sound.read(content[:end])
    with pytest.raises(sound.SoundError, match="cut short"):
        sound.read(wav_header(60_000.0) + content[44:])  # 1.9 GB


@pytest.mark.parametrize("form", ["MP3", "OGG"])
def test_joined_files_are_refused(form):
    """libsndfile reads the first of them alone, without a word."""
    content = mp3() if form == "MP3" else encoded(tone(2), 16_000, form)
    tagged = content + b"TAG" + bytes(125)
    for joined in (content + content, *([tagged + without_count(content)] if form == "MP3" else [])):
        with pytest.raises(sound.SoundError, match="more sound behind the end of the first"):
            sound.read(joined)
    if form == "MP3":  # of these it reads all
        assert len(sound.read(2 * without_count(content))) > 1.9 * len(sound.read(content))


@pytest.mark.parametrize("form", ["WAV", "AIFF"])
@pytest.mark.parametrize(("sample", "message"), [(np.nan, "nan$"), (-np.inf, "-inf$"), (12_000.0, r"12000: .* -1 to 1")])
def test_numbers_that_are_no_samples_are_refused(form, sample, message, monkeypatch):
    """By their place in the file: not a number, infinite, or whole numbers' sizes written as floats."""
    samples = tone(0.5, rate=8_000)
    samples[3210] = sample
    monkeypatch.setattr(sound, "_BLOCK", 1000)
    with pytest.raises(sound.SoundError, match=f"^sample 3,211 is {message}"):
        sound.read(encoded(samples, 8_000, form, "FLOAT"))
    samples[3210] = 1.5  # a loud one is none of them
    assert sound.read(encoded(samples, 8_000, form, "FLOAT")).max() > 1.2


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
