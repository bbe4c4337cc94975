"""T5 as a family: what the trainer, the planner and the commands need to know of it."""

from models.family import encoder_decoder
from models.parts.transformer_config import MEANING_OF_BLOCKS
from models.t5.layouts import LAYOUTS
from models.t5.model import T5

FAMILY = encoder_decoder(
    T5,
    LAYOUTS,
    default_experiment=lambda c: "switch.quickstart" if c.moe else "t5.quickstart",
    semantic_fields=(*MEANING_OF_BLOCKS, "scale_logits"),
)
