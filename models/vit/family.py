"""ViT as a family: what the trainer, the planner and the commands need to know of it."""

import dataclasses
from collections.abc import Mapping, Sequence

from models.parts.activations import POLICIES_WITH_EXPERTS
from models.parts.activations import WITH_EXPERTS as ACTIVATIONS
from models.parts.moe.layer import hyperparameters, notes
from models.parts.transformer_config import MEANING_OF_BLOCKS
from models.protocol import Family
from models.sharding.layouts import Recipe
from models.vit.config import VitConfig
from models.vit.layouts import LAYOUTS, WITH_EXPERTS
from models.vit.model import Vit


def comparable(c: VitConfig, lengths: Sequence[int]) -> VitConfig:
    """Returns the configuration with nothing random; see Family.comparable. Routing groups are pictures."""
    del lengths
    c = dataclasses.replace(c, layers=4 * len(c.unit), dropout=0.0, hidden_dropout=0.0)
    if c.moe is None:
        return c
    return dataclasses.replace(c, moe=dataclasses.replace(c.moe, group_size=c.length, router_noise=0.0, load_weight=0.0))


def searched(c: VitConfig) -> Mapping[str, Recipe]:
    """Returns the layouts that a search of plans tries."""
    return WITH_EXPERTS if c.moe else {name: recipe for name, recipe in LAYOUTS.items() if name not in WITH_EXPERTS}


FAMILY = Family(
    model=Vit,
    layouts=LAYOUTS,
    activations=ACTIVATIONS,
    policies=POLICIES_WITH_EXPERTS,
    like=lambda c: "vit.b16",
    comparable=comparable,
    searched=searched,
    meaning=(*MEANING_OF_BLOCKS, "pooling", "class_token"),
    hyperparameters=lambda c: hyperparameters(c.moe),
    notes=lambda c, execution: notes(c.moe, c.hidden_dim, execution),
)
