"""Reads utterances from TFDS's folder: LibriSpeech, Common Voice and others with one sound and one text an example.

Importing this module imports TensorFlow (5 s); training reads the cache (`data.speech.maker`) and never does.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import tensorflow_datasets as tfds

from data.packages.tfds import Mapped, Part, dataset_folder, open_builder
from data.speech.caches import SpeechCache
from data.speech.sound import RATE, SoundError
from data.speech.utterances import Splits, Utterance
from data.task import DataError

_TEXTS = ("text", "sentence", "transcription", "transcript")
_SPLITS = {"validation": ("validation", "dev_clean", "dev"), "test": ("test", "test_clean")}
_RATES = {"common_voice": 48_000}  # what a feature that does not say its rate has


def open_tfds(name: str, data_dir: Path, settings: SpeechCache) -> Splits:
    """Returns the utterances of a data set of TFDS; "train" is all of its splits of that name.

    Args:
      name: data set, config and version, such as "librispeech:2.1.0".
      data_dir: TFDS's folder.

    Raises:
      DataError: an example has not one sound and one text, or there is no training or held-out split.
      NotPreparedError: it is not there.
    """
    folder = dataset_folder(name, data_dir)
    builder = open_builder(folder)
    features: Any = builder.info.features
    sounds = [key for key in features if isinstance(features[key], tfds.features.Audio)]
    texts = [key for key in _TEXTS if key in features]
    if len(sounds) != 1 or len(texts) != 1:
        raise DataError(f"{name}: expected a sound and its text, got the features {', '.join(sorted(features))}")
    rate = getattr(features[sounds[0]], "sample_rate", None) or _RATES.get(builder.name, RATE)
    own = list(builder.info.splits)
    chosen = {"train": "+".join(split for split in own if split.startswith("train"))}
    chosen |= {ours: next((name for name in names if name in own), "") for ours, names in _SPLITS.items()}
    if missing := [split for split, theirs in chosen.items() if not theirs]:
        raise DataError(f"{name}: no split for {missing[0]!r} among {', '.join(own)}")

    def utterances(theirs: str) -> Mapped:
        return Mapped(Part(folder, theirs), functools.partial(_utterance, theirs, sounds[0], texts[0], rate, settings.language))

    return {split: utterances(theirs) for split, theirs in chosen.items()}


def _utterance(split: str, sound: str, text: str, rate: int, language: str, at: int, example: dict[str, Any]) -> Utterance:
    """Returns an utterance, by the names of the features that are its sound and its text."""
    key = example["id"].decode() if "id" in example else f"{split}/{at:07d}"
    read = functools.partial(_floats, example[sound], rate)
    return Utterance(key, language, {"transcribe": example[text].decode()}, read)


def _floats(samples: np.ndarray, rate: int) -> np.ndarray:
    """Returns a sound of TFDS, integers of 16 bits or floats, as float32 at 16 kHz."""
    if not len(samples):
        raise SoundError("has no samples")
    scaled = samples.astype(np.float32) / (32768 if samples.dtype.kind == "i" else 1)
    return scaled if rate == RATE else np.asarray(soxr.resample(scaled, rate, RATE), np.float32)
