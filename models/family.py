"""The description of a family of models that the trainer, the planner and the commands read (models/families.py finds it)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from models.execution import Execution
from models.parts.activations import POLICIES_WITH_EXPERTS, WITH_EXPERTS
from models.parts.moe import layer as moe
from models.parts.nested import changed
from models.parts.transformer_config import MEANING_OF_BLOCKS, EncoderDecoderConfig
from models.protocol import MakeModel
from models.sharding.expert_layouts import searched
from models.sharding.layouts import Recipe
from models.sharding.remat import Activation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """The behaviour of a family of models.

    Attributes:
      model: the model's class. What it offers beside a loss are the classes of models/protocol.py that it inherits.
      layouts: the named layouts that suit it.
      default_experiment: names an experiment of the family whose data and evaluation go with a model that comes without any, by
        its configuration.
      adapt_data: changes that experiment's data so that the model can read them.
      resized: makes, of parameters whose shapes depend on the size of what is read, those of another configuration: by name, the
        function that does so. By default there are none, and weights must have the model's shapes.
      convention: says what published numbers of parameters count of such a model, for families where they differ.
      deterministic: changes a configuration so that every layout computes the same: nothing random, and stacks deep enough for
        two pipeline stages of two chunks. It is also given the lengths of a batch's rows, for routing groups within them. By
        default it changes nothing.
      activations: the tensors inside its layers that it marks by name, for rematerialisation, the planner and the drawings. A
        family without any is planned by what its backward pass keeps, cut as the batch is.
      policies: what a search of plans lets the backward pass keep (models/sharding/remat.py); by default the experiment's choice.
      searched: the layouts that a search of plans tries for a configuration; by default all of `layouts` that it may vary.
      semantic_fields: fields of the configuration, by dotted paths, that change what a model computes, but none of its shapes:
        weights of a model that differs in one of them are refused.
      same_outputs: whether two configurations mean the same by the outputs of the components that may start fresh, its heads;
        else a head is not taken from the other's weights.
      shared: parameters, by name, that mean the same in every head.
    """

    model: MakeModel
    layouts: Mapping[str, Recipe]
    default_experiment: Callable[[Any], str]
    adapt_data: Callable[[Any, Any], Any] = lambda config, data: data
    resized: Callable[[Any, Any], Mapping[str, Callable[[Any], Any]]] = lambda ours, theirs: {}
    convention: Callable[[Any], str] = lambda config: ""
    deterministic: Callable[[Any, Sequence[int]], Any] = lambda config, lengths: config
    activations: Mapping[str, Activation] = dataclasses.field(default_factory=dict[str, Activation])
    policies: Sequence[str] = ()
    searched: Callable[[Any], Mapping[str, Recipe]] | None = None
    semantic_fields: tuple[str, ...] = ()
    same_outputs: Callable[[Any, Any], bool] = lambda ours, theirs: True
    shared: frozenset[str] = frozenset()

    def hyperparameters(self, c: Any) -> dict[str, Any]:
        """Returns the settings of a configuration's experts, where it has any, that a log of a run names beside those of
        optimizer and data (trainers/measure/mlperf_rules.py)."""
        return moe.hyperparameters(c.moe) if getattr(c, "moe", None) else {}

    def notes(self, c: Any, execution: Execution) -> list[str]:
        """Returns the lines about a configuration's experts and its execution that a run prints when it starts."""
        return moe.notes(c.moe, c.feed_forward.hidden_dim, execution) if getattr(c, "moe", None) else []


def encoder_decoder(model: MakeModel, layouts: dict[str, Recipe], **fields: Any) -> Family:
    """Returns the description of a family of encoder-decoders; `fields` are its default experiment, and where it differs."""
    common = dict(
        activations=WITH_EXPERTS,
        policies=POLICIES_WITH_EXPERTS,
        searched=lambda c: searched(layouts, experts=c.moe is not None),
        deterministic=deterministic_encoder_decoder,
        semantic_fields=MEANING_OF_BLOCKS,
    )
    settings: dict[str, Any] = common | fields
    return Family(model=model, layouts=layouts, **settings)


def deterministic_encoder_decoder(c: EncoderDecoderConfig, lengths: Sequence[int]) -> EncoderDecoderConfig:
    """Returns the configuration with nothing random; see Family.deterministic.

    Routing groups lie within rows, since rows are dealt out to microbatches.
    """
    certain = {"dropout": 0.0, "feed_forward.dropout": 0.0, "decoder.source_dropout": 0.0}
    depth = {"layers": 4 * len(c.layer_group), "decoder.layers": 0}
    return changed(c, certain | depth | {"moe": c.moe and c.moe.comparable(min(lengths))})
