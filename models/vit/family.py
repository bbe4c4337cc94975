"""ViT as a family: what the trainer, the planner and the commands need to know of it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from models.family import Family
from models.parts.activations import POLICIES_WITH_EXPERTS
from models.parts.activations import WITH_EXPERTS as ACTIVATIONS
from models.parts.transformer_config import MEANING_OF_BLOCKS
from models.sharding.layouts import Recipe
from models.vit.config import VitConfig
from models.vit.layouts import LAYOUTS, WITH_EXPERTS
from models.vit.model import Vit, resized


def deterministic(c: VitConfig, lengths: Sequence[int]) -> VitConfig:
    """Returns the configuration with nothing random; see Family.deterministic. Routing groups are pictures."""
    del lengths
    c = dataclasses.replace(c, layers=4 * len(c.layer_group), dropout=0.0, hidden_dropout=0.0)
    return dataclasses.replace(c, moe=c.moe and c.moe.comparable(c.length))


def searched(c: VitConfig) -> Mapping[str, Recipe]:
    """Returns the layouts that a search of plans tries."""
    return WITH_EXPERTS if c.moe else {name: recipe for name, recipe in LAYOUTS.items() if name not in WITH_EXPERTS}


def adapt_data(c: VitConfig, data: Any) -> Any:
    """Returns the data with pictures of the model's size, squeezed into it, with pixels from -1 to 1: as released models read
    them."""
    return dataclasses.replace(data, height=c.height, width=c.width, channels=c.channels, mean=(0.5,), std=(0.5,), eval_crop=0.0)


def resized_table(ours: VitConfig, theirs: VitConfig) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Returns what makes a table of positions fit another number of patches."""
    first = theirs.places - theirs.grid[0] * theirs.grid[1]
    if ours.grid == theirs.grid or not theirs.places or not ours.places:
        return {}
    return {"position_table": lambda table_LM: resized(table_LM, theirs.grid, ours.grid, first)}


def convention(c: VitConfig) -> str:
    """Returns what a count of parameters includes."""
    token = "class token, " if c.class_token != "none" else ""
    pool = {"token": "", "mean": "", "map": "MAP head, "}[c.pooling]
    head = f"head of {c.classes:,} classes" if c.classes else "no head"
    matrices = 4 * c.model_dim * c.heads * c.head_dim + (3 if c.gated else 2) * c.model_dim * c.hidden_dim
    return (
        f"patches, {token}positions, {c.layers} layers, final norm, {pool}{head}; published: g and G count the body alone, e "
        f"with MAP head and classes, 22B the layers' matrices alone ({c.layers * matrices:,} here without experts)"
    )


FAMILY = Family(
    model=Vit,
    adapt_data=adapt_data,
    resized=resized_table,
    convention=convention,
    layouts=LAYOUTS,
    activations=ACTIVATIONS,
    policies=POLICIES_WITH_EXPERTS,
    default_experiment=lambda c: "vit.b16",
    deterministic=deterministic,
    searched=searched,
    semantic_fields=(*MEANING_OF_BLOCKS, "pooling", "class_token"),
)
