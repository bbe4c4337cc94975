"""GPT as a family: what the trainer, the planner and the commands need to know of it."""

from models.gpt.layouts import LAYOUTS
from models.gpt.model import Gpt
from models.parts.activations import DENSE, POLICIES
from models.parts.transformer_config import MEANING_OF_LM, comparable
from models.protocol import Family

FAMILY = Family(
    model=Gpt,
    layouts=LAYOUTS,
    activations=DENSE,
    policies=POLICIES,
    like=lambda c: "gpt.gpt2_124m",
    comparable=comparable,
    meaning=MEANING_OF_LM,
)
