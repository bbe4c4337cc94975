"""CLIP and SigLIP as a family: what the trainer, the planner and the commands need to know of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from models.clip.config import ClipConfig, SigmoidLoss
from models.clip.layouts import LAYOUTS
from models.clip.model import VISION, Clip
from models.family import Family
from models.parts.activations import DENSE, POLICIES
from models.parts.nested import changed
from models.parts.transformer_config import MEANING_OF_BLOCKS
from models.vit.family import deterministic as deterministic_vit
from models.vit.family import resized_table


def deterministic(c: ClipConfig, lengths: Sequence[int]) -> ClipConfig:
    """Returns the configuration with nothing random; see Family.deterministic."""
    text = changed(c.text, {"layers": 4, "dropout": 0.0, "feed_forward.dropout": 0.0})
    return dataclasses.replace(c, vision=deterministic_vit(c.vision, lengths), text=text)


def adapt_data(c: ClipConfig, data: Any) -> Any:
    """Returns the data with pictures of the model's size and texts that it has positions for."""
    height, width, _ = c.picture
    return dataclasses.replace(data, height=height, width=width, targets_length=min(data.targets_length, c.text.positions.rows))


def resized(ours: ClipConfig, theirs: ClipConfig) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Returns what makes the image tower's table of positions fit another number of patches."""
    tables: Mapping[str, Callable[[np.ndarray], np.ndarray]] = resized_table(ours.vision, theirs.vision)
    return {f"{VISION}.{name}": fit for name, fit in tables.items()}


def convention(c: ClipConfig) -> str:
    """Returns what a count of parameters includes."""
    numbers = "their factor" if not isinstance(c.loss, SigmoidLoss) else "their factor and what is added to it"
    return f"both towers, their tables, the maps to {c.dim} numbers, and {numbers}"


FAMILY = Family(
    model=Clip,
    layouts=LAYOUTS,
    activations=DENSE,
    policies=POLICIES,
    default_experiment=lambda c: "clip.quickstart",
    adapt_data=adapt_data,
    resized=resized,
    convention=convention,
    deterministic=deterministic,
    semantic_fields=(
        *(f"{side}.{name}" for side in ("vision", "text") for name in MEANING_OF_BLOCKS),
        *("vision.pooling.class", "text.pooling.class", "text.causal", "loss.class"),
    ),
)
