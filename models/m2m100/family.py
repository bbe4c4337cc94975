"""M2M-100 as a family: what the trainer, the planner and the commands need to know of it."""

from models.m2m100.layouts import LAYOUTS
from models.m2m100.model import M2M100
from models.parts.activations import POLICIES_WITH_EXPERTS, WITH_EXPERTS
from models.parts.encoder_decoder import comparable
from models.parts.moe.layer import hyperparameters, notes
from models.parts.transformer_config import MEANING_OF_BLOCKS
from models.protocol import Family
from models.sharding.expert_layouts import searched

FAMILY = Family(
    model=M2M100,
    layouts=LAYOUTS,
    activations=WITH_EXPERTS,
    policies=POLICIES_WITH_EXPERTS,
    searched=lambda c: searched(LAYOUTS, experts=c.moe is not None),
    like=lambda c: "nllb.moe_54b" if c.moe else "m2m100.m418",
    comparable=comparable,
    meaning=MEANING_OF_BLOCKS,
    hyperparameters=lambda c: hyperparameters(c.moe),
    notes=lambda c, execution: notes(c.moe, c.hidden_dim, execution),
)
