"""M2M-100 and its kin as a family: what the trainer, the planner and the commands need to know of it."""

from models.family import encoder_decoder
from models.m2m100.config import M2M100Config
from models.m2m100.layouts import LAYOUTS
from models.m2m100.model import M2M100
from models.parts.transformer_config import MEANING_OF_BLOCKS


def convention(c: M2M100Config) -> str:
    """Returns what a count of parameters includes."""
    return f"everything; the {c.vocab:,} biases of output logits are not in published numbers" if c.logits_bias else ""


FAMILY = encoder_decoder(
    M2M100,
    LAYOUTS,
    default_experiment=lambda c: "nllb.moe_54b" if c.moe else "m2m100.m418",
    convention=convention,
    semantic_fields=(*MEANING_OF_BLOCKS, "positions.first", "inputs.scaled", "inputs.sinusoids"),
)
