"""Log-mel frames, by the conventions of Whisper and of Kaldi. NumPy only.

Both cut a sound into overlapping windows, 10 ms apart, and take the logarithm of each window's energy in bands that are even
on a mel scale; they differ in everything else. N samples, T frames, F bands.
"""

import functools

import numpy as np

from data.speech.sound import RATE

HOP = 160  # samples from a frame to the next: 10 ms
_WINDOW = 400  # samples of a window: 25 ms
_KALDI_FFT = 512
_KALDI_FLOOR = 1.1920928955078125e-07  # the least float32 above 0 by which 1 grows
_BLOCK = 4096  # frames that are transformed at a time


def frames(samples: np.ndarray, mels: int, kind: str) -> np.ndarray:
    """Returns the log-mel frames [T, F] of samples [N], float32, by a convention: "whisper", "kaldi" or "kaldi_normed"."""
    return {"whisper": whisper, "kaldi": kaldi, "kaldi_normed": kaldi_normed}[kind](samples, mels)


def whisper(samples: np.ndarray, mels: int = 80) -> np.ndarray:
    """Returns Whisper's frames (arXiv 2212.04356, section 2.2; `log_mel_spectrogram` of its code): N // 160 of them.

    Windows are centred on every 160th sample, the sound mirrored at its ends. Powers in bands of Slaney's mel scale, each
    of the same area; log10, nothing lower than 8 below the sound's greatest; (x + 4) / 4.
    """
    if len(samples) < HOP:
        return np.zeros((0, mels), np.float32)
    reach = _WINDOW // 2
    mode = "reflect" if len(samples) > reach else "constant"  # too short to be mirrored
    padded = np.pad(samples.astype(np.float32), reach, mode=mode)
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::HOP][: len(samples) // HOP]
    window = np.hanning(_WINDOW + 1)[:-1].astype(np.float32)
    power = _powers(windows, window, _WINDOW)
    logs = np.log10(np.maximum(power @ _slaney(mels), 1e-10))
    return ((np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0).astype(np.float32)


def kaldi(samples: np.ndarray, mels: int = 80) -> np.ndarray:
    """Returns Kaldi's filter banks (`compute-fbank-feats`, without dither): 1 + (N - 400) // 160 frames, whole windows alone.

    Samples count as 16-bit integers. Of each window the mean is taken off, then .97 of the sample before each; it is
    weighted by Povey's window, and its 512 points' powers summed in triangles that are even in 1127 ln(1 + f / 700) from 20 Hz
    to 8 kHz; natural logarithm.
    """
    if len(samples) < _WINDOW:
        return np.zeros((0, mels), np.float32)
    scaled = samples.astype(np.float64) * 32768
    windows = np.lib.stride_tricks.sliding_window_view(scaled, _WINDOW)[::HOP]
    windows = windows - windows.mean(axis=1, keepdims=True)
    windows = windows - 0.97 * np.concatenate([windows[:, :1], windows[:, :-1]], axis=1)
    window = np.hanning(_WINDOW) ** 0.85
    return np.log(np.maximum(_powers(windows, window, _KALDI_FFT) @ _htk(mels), _KALDI_FLOOR)).astype(np.float32)


def kaldi_normed(samples: np.ndarray, mels: int = 80) -> np.ndarray:
    """Returns Kaldi's filter banks with each band of mean 0 and variance 1 over the sound (Wav2Vec2-BERT, SeamlessM4T)."""
    x = kaldi(samples, mels)
    if len(x) < 2:  # of which there is no variance
        return np.zeros_like(x)
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0, ddof=1) + 1e-7)


def _powers(windows: np.ndarray, window: np.ndarray, size: int) -> np.ndarray:
    """Returns the power spectrum [T, size / 2 + 1] of windows, a block of them at a time."""
    parts = [np.abs(np.fft.rfft(windows[at : at + _BLOCK] * window, size)) ** 2 for at in range(0, len(windows), _BLOCK)]
    return np.concatenate(parts).astype(np.float32)


def _triangles(points: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns the weights [places, F] of triangles from point i over i + 1, where they are 1, to i + 2, at these places."""
    rising = (places[:, None] - points[None, :-2]) / np.diff(points)[None, :-1]
    falling = (points[None, 2:] - places[:, None]) / np.diff(points)[None, 1:]
    return np.maximum(0, np.minimum(rising, falling))


@functools.cache
def _slaney(mels: int) -> np.ndarray:
    """Returns Whisper's filters [201, F]: Slaney's scale is linear below 1 kHz and logarithmic above; areas are 1."""
    top = 15 + 27 * np.log(RATE / 2 / 1000) / np.log(6.4)
    scale = np.linspace(0, top, mels + 2)
    hertz = np.where(scale < 15, scale * 200 / 3, 1000 * np.exp((scale - 15) * np.log(6.4) / 27))
    weights = _triangles(hertz, np.linspace(0, RATE / 2, _WINDOW // 2 + 1))
    return (weights * (2 / (hertz[2:] - hertz[:-2]))).astype(np.float32)


@functools.cache
def _htk(mels: int) -> np.ndarray:
    """Returns Kaldi's filters [257, F]: triangles on the mel scale itself; the highest frequency is in none."""

    def mel(hertz: np.ndarray) -> np.ndarray:
        return 1127 * np.log(1 + hertz / 700)

    low, high = mel(np.array([20.0, RATE / 2]))
    places = mel(np.arange(_KALDI_FFT // 2 + 1) * RATE / _KALDI_FFT)
    weights = _triangles(np.linspace(low, high, mels + 2), places)
    weights[-1] = 0
    return weights.astype(np.float32)
