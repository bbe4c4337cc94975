"""GPT as a family: what the trainer, the planner and the commands need to know of it."""

import dataclasses
from collections.abc import Sequence

from models.gpt.config import GptConfig
from models.gpt.layouts import LAYOUTS
from models.gpt.model import Gpt
from models.parts.activations import DENSE, POLICIES
from models.parts.transformer_config import MEANING
from models.protocol import Family


def comparable(c: GptConfig, lengths: Sequence[int]) -> GptConfig:
    """Returns the configuration without dropout, with four layers; see Family.comparable."""
    del lengths
    return dataclasses.replace(c, layers=4, dropout=0.0)


FAMILY = Family(
    model=Gpt,
    layouts=LAYOUTS,
    activations=DENSE,
    policies=POLICIES,
    like=lambda c: "gpt.gpt2_124m",
    comparable=comparable,
    meaning=MEANING,
)
