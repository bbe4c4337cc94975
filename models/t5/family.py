"""T5 as a family: what the trainer, the planner and the commands need to know of it."""

from models.parts.activations import POLICIES_WITH_EXPERTS, WITH_EXPERTS
from models.parts.encoder_decoder import comparable
from models.parts.moe.layer import hyperparameters, notes
from models.parts.transformer_config import MEANING_OF_BLOCKS
from models.protocol import Family
from models.sharding.expert_layouts import searched
from models.t5.layouts import LAYOUTS
from models.t5.model import T5

FAMILY = Family(
    model=T5,
    layouts=LAYOUTS,
    activations=WITH_EXPERTS,
    policies=POLICIES_WITH_EXPERTS,
    searched=lambda c: searched(LAYOUTS, experts=c.moe is not None),
    like=lambda c: "switch.quickstart" if c.moe else "t5.quickstart",
    comparable=comparable,
    meaning=(*MEANING_OF_BLOCKS, "scale_logits"),
    hyperparameters=lambda c: hyperparameters(c.moe),
    notes=lambda c, execution: notes(c.moe, c.hidden_dim, execution),
)
