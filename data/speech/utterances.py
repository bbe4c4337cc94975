"""Utterances with their texts, in splits. No TensorFlow.

A source says which utterances there are; a sound is read when it is asked for, so a set may be larger than memory.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Utterance:
    """A sound with its texts.

    Attributes:
      name: in the source.
      language: of what is said; "" where nobody knows.
      texts: what is said under "transcribe", the same in English under "translate"; either may be missing.
      read: returns the samples [N], float32 at 16 kHz; raises SoundError.
    """

    name: str
    language: str
    texts: Mapping[str, str]
    read: Callable[[], np.ndarray]


Splits = Mapping[str, Iterable[Utterance]]
