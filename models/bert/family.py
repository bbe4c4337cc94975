"""BERT as a family: what the trainer, the planner and the commands need to know of it."""

import dataclasses
from typing import Any

from models.bert.layouts import LAYOUTS
from models.bert.model import Bert
from models.family import Family
from models.parts.activations import DENSE, POLICIES
from models.parts.heads_config import Head
from models.parts.transformer_config import MEANING_OF_LM

# Experiments whose data and evaluation go with a model that comes without any, by its head.
_DEFAULT_EXPERIMENTS = {
    "MaskedLm": "bert.base",
    "Classification": "bert.base_mnli",
    "Tagging": "bert.minilm_brown_tags",
    "Detection": "bert.minilm_brown_tags",
    "Span": "bert.base_squad",
    "SentenceEmbedding": "bert.minilm_l6",
}


def _computes(head: Head) -> tuple[Any, ...]:
    """Returns what tells heads apart whose outputs mean something else."""
    return type(head), *(getattr(head, name, None) for name in ("transform", "pooler", "vector"))


FAMILY = Family(
    model=Bert,
    layouts=LAYOUTS,
    activations=DENSE,
    policies=POLICIES,
    default_experiment=lambda c: _DEFAULT_EXPERIMENTS[type(c.head).__name__],
    deterministic=lambda c, lengths: dataclasses.replace(c, layers=4 + c.bare_first, dropout=0.0),
    semantic_fields=(*MEANING_OF_LM, "positions.first", "layers"),  # shared layers have the same shapes at any depth
    same_outputs=lambda ours, theirs: _computes(ours.head) == _computes(theirs.head),
    shared=frozenset({"head.pooler", "head.pooler_bias"}),
)
