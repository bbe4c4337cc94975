"""GShard M4 as a family: what the trainer, the planner and the commands need to know of it."""

import dataclasses
from collections.abc import Sequence

from models.gshard_m4.config import GShardM4Config
from models.gshard_m4.layouts import LAYOUTS, searched
from models.gshard_m4.model import GShardM4
from models.parts.activations import POLICIES_WITH_EXPERTS, WITH_EXPERTS
from models.parts.moe.layer import hyperparameters, notes
from models.parts.transformer_config import MEANING_OF_BLOCKS
from models.protocol import Family


def comparable(c: GShardM4Config, lengths: Sequence[int]) -> GShardM4Config:
    """Returns the configuration with nothing random; see Family.comparable.

    Routing groups lie within rows, since rows are dealt out to microbatches.
    """
    c = dataclasses.replace(c, layers=8 if c.moe else 4, dropout=0.0)
    if c.moe is None:
        return c
    moe = dataclasses.replace(c.moe, second_expert_threshold=0.0, group_size=min(lengths))
    return dataclasses.replace(c, moe=moe)


FAMILY = Family(
    model=GShardM4,
    layouts=LAYOUTS,
    activations=WITH_EXPERTS,
    policies=POLICIES_WITH_EXPERTS,
    searched=searched,
    like=lambda c: "gshard_m4.quickstart",
    comparable=comparable,
    meaning=MEANING_OF_BLOCKS,
    hyperparameters=lambda c: hyperparameters(c.moe),
    notes=lambda c, execution: notes(c.moe, c.hidden_dim, execution),
)
