"""Whisper as a family: what the trainer, the planner and the commands need to know of it."""

import dataclasses
from typing import Any

from models.family import encoder_decoder
from models.whisper.config import WhisperConfig
from models.whisper.layouts import LAYOUTS
from models.whisper.model import Whisper


def adapt_data(c: WhisperConfig, data: Any) -> Any:
    """Returns the data as released models hear it: windows of 30 s, silence behind what is shorter."""
    return dataclasses.replace(data, mels=c.mels, front="whisper", seconds=30.0, slots=1, padding="silence")


FAMILY = encoder_decoder(
    Whisper,
    LAYOUTS,
    default_experiment=lambda c: "whisper.base",
    adapt_data=adapt_data,
    convention=lambda c: f"everything; {c.source_positions * c.model_dim:,} are sinusoids, which are not trained",
)
