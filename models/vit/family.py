"""ViT as a family: what the trainer, the planner and the commands need to know of it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from models.family import Family
from models.parts.activations import POLICIES_WITH_EXPERTS
from models.parts.activations import WITH_EXPERTS as ACTIVATIONS
from models.parts.nested import changed
from models.parts.transformer_config import MEANING_OF_BLOCKS
from models.sharding.layouts import Recipe
from models.vit.config import MapPooling, VitConfig
from models.vit.layouts import LAYOUTS, WITH_EXPERTS
from models.vit.model import Vit, resized


def deterministic(c: VitConfig, lengths: Sequence[int]) -> VitConfig:
    """Returns the configuration with nothing random; see Family.deterministic. Routing groups are pictures."""
    moe = c.moe and c.moe.comparable(c.length)
    return changed(c, {"layers": 4 * len(c.layer_group), "dropout": 0.0, "feed_forward.dropout": 0.0, "moe": moe})


def searched(c: VitConfig) -> Mapping[str, Recipe]:
    """Returns the layouts that a search of plans tries."""
    return WITH_EXPERTS if c.moe else {name: recipe for name, recipe in LAYOUTS.items() if name not in WITH_EXPERTS}


def adapt_data(c: VitConfig, data: Any) -> Any:
    """Returns the data with pictures of the model's size, squeezed into it, with pixels from -1 to 1: as released models read
    them."""
    height, width, channels = c.picture
    return dataclasses.replace(data, height=height, width=width, channels=channels, mean=(0.5,), std=(0.5,), eval_crop=0.0)


def resized_table(ours: VitConfig, theirs: VitConfig) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Returns what makes a table of positions fit another number of patches."""
    first = theirs.places - theirs.grid[0] * theirs.grid[1]
    if ours.grid == theirs.grid or not theirs.places or not ours.places:
        return {}
    return {"position_table": lambda table_LM: resized(table_LM, theirs.grid, ours.grid, first)}


def convention(c: VitConfig) -> str:
    """Returns what a count of parameters includes."""
    token = ("", "class token, ", "class and teacher's token, ")[c.tokens]
    pool = "MAP head, " if isinstance(c.pooling, MapPooling) else ""
    head = f"head of {c.head.classes:,} classes" if c.head.classes else "no head"
    heads, dense = c.attention.heads * c.attention.head_dim, c.feed_forward
    matrices = c.model_dim * (4 * heads + (3 if dense.gated else 2) * dense.hidden_dim)
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
    semantic_fields=(*MEANING_OF_BLOCKS, "pooling.class", "pooling.positioned"),
)
