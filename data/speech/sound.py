"""Sound: files of any format and rate as 16,000 samples a second of one channel. libsndfile reads, soxr resamples. No JAX."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data import untrusted
from data.speech import endings
from data.stages import output_dropped
from models.errors import UserError

RATE = 16_000  # samples a second, of every model here
SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aiff", ".aif", ".au", ".caf")
RATES = (1_000, 1_000_000)  # samples a second that a file may have: with fewer a small file would become hours
_MP3 = "MP3"  # as libsndfile names it; its reader writes notes about damage and lengths to standard error
_BLOCK = 1 << 18  # samples of a file's channels that are read at a time
_UNKNOWN = 1 << 62  # a length that a file's header does not know is given as a greater number
_LOUDEST = 32.0  # 30 dB above what a file of floats should have at most


class SoundError(UserError):
    """A sound that cannot be used; the message is one line that says why, without the file's name."""


def read(file: Path | bytes) -> np.ndarray:
    """Returns the samples [N] of a sound, float32 from -1 to 1, its channels' mean.

    Args:
      file: a path, or the content of a file.

    Raises:
      SoundError: it is no sound, damaged, has no samples, or too many to be in memory at once.
    """
    return np.concatenate(list(blocks(file, untrusted.SAMPLES)))


def blocks(file: Path | bytes, most: int = untrusted.STREAMED) -> Iterator[np.ndarray]:
    """Yields the samples of a sound a block at a time, so that hours of it need not be in memory; see `read`.

    Args:
      most: samples that it may have; a header may say any number, and they are counted as they come.
    """
    import soundfile
    import soxr

    try:
        opened, ends = _opened(file)
        with opened:
            rate, expected = opened.samplerate, opened.frames
            if not RATES[0] <= rate <= RATES[1]:
                raise SoundError(f"says {rate:,} samples a second, expected from {RATES[0]:,} to {RATES[1]:,}")
            if ends == "joined":
                raise SoundError("has more sound behind the end of the first, as joined files have: take them apart")
            at_once = max(1, _BLOCK // opened.channels)
            stream = None if rate == RATE else soxr.ResampleStream(rate, RATE, 1, dtype="float32")
            seen = given = 0
            while True:
                with output_dropped() if opened.format == _MP3 else contextlib.nullcontext():
                    samples = opened.read(at_once, dtype="float32", always_2d=True).mean(axis=1)
                _check(samples, seen)
                seen += len(samples)
                last = not len(samples)
                block = samples if stream is None else stream.resample_chunk(samples, last=last)
                given += len(block)
                if given > most:
                    raise SoundError(f"is longer than {most / RATE / 3600:.1f} hours")
                if len(block):
                    yield np.ascontiguousarray(block, np.float32)
                if last:
                    break
    except soundfile.LibsndfileError as error:
        raise SoundError(f"no sound that can be read: {error.error_string.strip().rstrip('.')}") from None
    if ends == "cut" or (ends == "whole" and seen < expected < _UNKNOWN):
        raise SoundError(f"cut short after {seen / rate:.1f} s")
    if not given:
        raise SoundError("has no samples")


def seconds(file: Path) -> float:
    """Returns the length of a sound that its header gives; 0 where there is none that could be read."""
    import soundfile

    try:
        with output_dropped():
            opened = soundfile.SoundFile(untrusted.regular(file, SoundError))
        with opened:
            return opened.frames / opened.samplerate if opened.frames < _UNKNOWN else 0.0
    except (soundfile.LibsndfileError, SoundError, OSError):
        return 0.0  # `blocks` says why


def _opened(file: Path | bytes) -> tuple[Any, endings.Ending]:
    """Returns a sound that is open for reading from its beginning to its end, and how it ends."""
    import soundfile

    with output_dropped():
        opened = soundfile.SoundFile(io.BytesIO(file) if isinstance(file, bytes) else untrusted.regular(file, SoundError))
    ends, begins = endings.ending(file, opened.format)
    if begins:
        opened.close()
        headed: Any = io.BufferedReader(endings.Headed(file, *begins))  # pyright: ignore[reportArgumentType]
        with output_dropped():
            opened = soundfile.SoundFile(headed)
    # By itself it seeks to its own place after each block, which fails at the end of a stream of FLAC; and the next frame of an
    # MP3 file may need the bits of those before it.
    opened.seekable = lambda: False
    return opened, ends


def _check(samples: np.ndarray, before: int) -> None:
    """Raises SoundError for a number that is no sample; so many samples stand before these."""
    if not (odd := ~(np.abs(samples) <= _LOUDEST)).any():
        return
    at = int(odd.argmax())
    why = "" if not np.isfinite(samples[at]) else ": its floats are not from -1 to 1; divide them by the greatest"
    raise SoundError(f"sample {before + at + 1:,} is {samples[at]:g}{why}")


def write(path: Path, samples: np.ndarray) -> None:
    """Writes samples [N] of 16 kHz, from -1 to 1, as a file of 16 bits in the format that its name says."""
    import soundfile

    soundfile.write(path, to_pcm(samples), RATE)


def to_pcm(samples: np.ndarray) -> np.ndarray:
    """Returns samples from -1 to 1 as int16, as caches store them."""
    return np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)


def from_pcm(samples: np.ndarray) -> np.ndarray:
    """Returns int16 samples as float32 from -1 to 1."""
    return samples.astype(np.float32) / 32768
