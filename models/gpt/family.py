"""GPT as a family: what the trainer, the planner and the commands need to know of it."""

import dataclasses
from collections.abc import Mapping, Sequence

from models.family import Family
from models.gpt.config import GptConfig
from models.gpt.layouts import LAYOUTS, WITH_EXPERTS
from models.gpt.model import Gpt
from models.parts.activations import POLICIES_WITH_EXPERTS
from models.parts.activations import WITH_EXPERTS as ACTIVATIONS
from models.parts.transformer_config import MEANING_OF_LM
from models.sharding.layouts import Recipe

MEANING_OF_MIXTURES = (
    *(f"attention.{name}" for name in ("class", "interleaved", "norm_eps")),
    "moe.first",
    *(f"moe.router.{name}" for name in ("class", "choices", "normalized", "score", "groups", "scale")),
    "moe.experts.activation",
)


def deterministic(c: GptConfig, lengths: Sequence[int]) -> GptConfig:
    """Returns the configuration with nothing random; see Family.deterministic. Routing groups lie within rows."""
    layers = c.layers - c.repeated + 4 * len(c.layer_group)
    return dataclasses.replace(c, layers=layers, dropout=0.0, moe=c.moe and c.moe.comparable(min(lengths)))


def searched(c: GptConfig) -> Mapping[str, Recipe]:
    """Returns the layouts that a search of plans tries. Experts may also be gathered, as all weights are: where a chip
    has many tokens that is less to send than the tokens."""
    if c.moe:
        return WITH_EXPERTS | {"fully_sharded": LAYOUTS["fully_sharded"]}
    return {name: recipe for name, recipe in LAYOUTS.items() if name not in WITH_EXPERTS}


FAMILY = Family(
    model=Gpt,
    layouts=LAYOUTS,
    activations=ACTIVATIONS,
    policies=POLICIES_WITH_EXPERTS,
    default_experiment=lambda c: "gpt.gpt2_124m",
    deterministic=deterministic,
    searched=searched,
    semantic_fields=(*MEANING_OF_LM, *MEANING_OF_MIXTURES),
)
