"""Models of pictures and sounds as a family: what the trainer, the planner and the commands need to know of it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from models.family import deterministic_encoder_decoder, encoder_decoder
from models.multimodal.config import MultimodalConfig
from models.multimodal.layouts import LAYOUTS
from models.multimodal.model import Multimodal
from models.vit.family import deterministic as deterministic_vit


def deterministic(c: MultimodalConfig, lengths: Sequence[int]) -> MultimodalConfig:
    """Returns the configuration with nothing random; see Family.deterministic."""
    changed: dict[str, Any] = {}
    if c.vision:
        changed["vision"] = deterministic_vit(c.vision, lengths)
    for name in ("conformer", "whisper"):
        if tower := getattr(c, name):
            changed[name] = dataclasses.replace(tower, dropout=0.0)
    texts = [n for n in lengths if n <= c.max_positions]  # rows of text, not of frames
    plain: Any = deterministic_encoder_decoder(c, texts or lengths)
    return dataclasses.replace(plain, **changed)


def convention(c: MultimodalConfig) -> str:
    """Returns what a count of parameters includes."""
    audio = "a Conformer" if c.conformer else "Whisper's encoder" if c.whisper else ""
    towers = " and ".join(filter(None, ("a ViT without classes" if c.vision else "", audio)))
    return f"{towers}, the maps to the decoder's width, and the decoder with its one table"


FAMILY = encoder_decoder(
    Multimodal,
    LAYOUTS,
    default_experiment=lambda c: "multimodal.quickstart",
    deterministic=deterministic,
    convention=convention,
    searched=lambda c: LAYOUTS,
)
