"""Recipes that cut an encoder-decoder, dense or a mixture of experts, over a mesh. Each makes a Layout; none changes a model."""

import dataclasses
from collections.abc import Sequence

from models.sharding.layout import Pipeline, rules
from models.sharding.layouts import ANY, BOTH, TENSOR, Recipe, also, table
from models.sharding.layouts import LAYOUTS as DENSE

EXPERT_AXES = ("data", "expert")
_STAGES = ("stage", *EXPERT_AXES)

expert_parallel = Recipe(
    "expert_parallel",
    rules(batch=EXPERT_AXES, group=EXPERT_AXES, expert="expert", act_expert="expert", expert_group="data"),
    EXPERT_AXES,
    ANY,
)
"""GShard's own: batch over all devices, experts over y, dense weights everywhere; tokens travel by all-to-all."""


def _gathered(
    base: Recipe, name: str, stacks: Sequence[str], dense: str | Sequence[str], inside: str | None = None, **axes: str
) -> Recipe:
    """Returns a recipe with weights also cut along the model dimension, and gathered where they are used: dense ones over the
    mesh axes `dense`, those of the stacks' experts over `inside`."""
    components = tuple((f"{stack}.moe", rules(embed=inside)) for stack in stacks)
    return dataclasses.replace(base, name=name, rules=also(base.rules, embed=dense, **axes), components=components)


def fully_sharded_with_experts(*stacks: str) -> tuple[Recipe, Recipe]:
    """Returns two recipes, of a model with these stacks, that cut dense weights over all devices: expert_fully_sharded, expert
    parallel with the dense and embedding weights as in FSDP; and expert_fsdp, with every weight cut over all devices: an expert's
    over x, the dense ones over x and y, gathered where they are used."""
    return (
        _gathered(expert_parallel, "expert_fully_sharded", stacks, EXPERT_AXES),
        _gathered(expert_parallel, "expert_fsdp", stacks, EXPERT_AXES, "data", latent="expert"),
    )


STACKS = ("decoder", "encoder")
expert_fully_sharded, expert_fsdp = fully_sharded_with_experts(*STACKS)

expert_parallel_2d = Recipe(
    "expert_parallel_2d", also(expert_parallel.rules, expert=EXPERT_AXES, act_expert=EXPERT_AXES, expert_group=None), EXPERT_AXES
)
"""Expert parallel over both axes of the mesh, as many experts as devices or a multiple: tokens travel to all of them."""

expert_parallel_2d_fsdp = _gathered(expert_parallel_2d, "expert_parallel_2d_fsdp", STACKS, "data")
"""`expert_parallel_2d`, with the dense weights cut over x and gathered where they are used: whole everywhere, they would take the
optimizer longer than a chip's experts do."""

expert_zero1 = dataclasses.replace(expert_parallel, name="expert_zero1", optimizer=rules(embed=EXPERT_AXES))
"""Expert parallel, with the optimizer state cut over all devices: that of experts over the replicas of each (ZeRO-1)."""

expert_tensor_parallel = Recipe(
    "expert_tensor_parallel", also(TENSOR, expert="data", act_expert="data", expert_group=None), BOTH, 16
)
"""Sparse and dense layers cut together (GSPMD, arXiv 2105.04663): batch and experts over x, heads and hidden dimensions, inside
experts too, over y; a device has 1/(xy) of the experts and 1/y of the dense weights."""

expert_model_parallel = Recipe(
    "expert_model_parallel",
    also(TENSOR, batch=EXPERT_AXES, group=EXPERT_AXES, expert="expert", act_expert="expert", expert_group="data"),
    (*EXPERT_AXES, "model"),
)
"""Experts over e, and inside experts and dense layers tensor parallel over y, as T5X's mesh of expert replicas, experts and model
partitions: batch over x and e, tokens travel over e alone (Switch Transformer, arXiv 2101.03961, section 5.5)."""


def _staged(name: str, **schedules: Pipeline) -> Recipe:
    """Returns a recipe of stacks in p stages with experts over y inside every stage; the vocabulary is cut over the stages."""
    return Recipe(
        name,
        also(expert_parallel.rules, vocab="stage", act_vocab="stage"),
        _STAGES,
        ANY,
        (1, 2),
        tuple((stack, rules(layers="stage")) for stack in schedules),
        pipelines=tuple(schedules.items()),
    )


pipelines_with_experts = _staged(
    "pipelines_with_experts",
    encoder=Pipeline(microbatches=1, schedule="gpipe"),
    decoder=Pipeline(microbatches=1, schedule="1f1b"),
)
"""Both towers in p pipeline stages, the decoder as 1F1B, with experts over y inside every stage."""


def of_stack(component: str) -> dict[str, Recipe]:
    """Returns the recipes with experts of a model that has one stack of layers.

    Those of its own: pipeline_with_experts, the stack in p stages of 1F1B; and expert_two_d, experts over x and hidden dimensions
    over y, dense weights over both, the residual stream by batch over x and by positions over y: GLaM's cut (arXiv 2112.06905,
    section 5.1), after GSPMD.
    """
    fully_sharded, fsdp = fully_sharded_with_experts(component)
    expert_two_d = dataclasses.replace(
        expert_tensor_parallel,
        name="expert_two_d",
        rules=also(expert_tensor_parallel.rules, embed="data", latent="data", res_length="model"),
        components=((f"{component}.moe", rules(embed=None)),),
    )
    pipeline_with_experts = _staged("pipeline_with_experts", **{component: Pipeline(microbatches=2)})
    return table(
        *(expert_parallel, expert_parallel_2d, expert_zero1, fully_sharded, fsdp),
        *(expert_tensor_parallel, expert_two_d, expert_model_parallel, pipeline_with_experts),
    )


SHARED = {name: DENSE[name] for name in ("data_parallel", "zero1", "fully_sharded", "tensor_parallel", "sequence_parallel")}


def recipes(decoder: Sequence[str]) -> dict[str, Recipe]:
    """Returns the recipes of a family.

    Those of its own: mixed, encoder and decoder in different modes of one mesh: a tensor-parallel encoder, an expert-parallel
    decoder; and encoder_pipelined, the encoder in p pipeline stages by GPipe, under a decoder that cuts its batch over them.

    Args:
      decoder: the components that go with the decoder where the two stacks are in different modes.
    """
    whole = ("heads", "mlp", "vocab", "act_heads", "act_mlp", "act_vocab", "act_expert_mlp")
    experts = rules(batch=BOTH, group=BOTH, expert="model", act_expert="model", expert_group="data", **dict.fromkeys(whole))
    mixed = Recipe("mixed", TENSOR, components=tuple((path, experts) for path in decoder))
    over_stages = rules(batch=_STAGES, group=_STAGES, expert_group=("stage", "data"))
    encoder_pipelined = Recipe(
        "encoder_pipelined",
        expert_parallel.rules,
        _STAGES,
        components=(("encoder", also(expert_parallel.rules, layers="stage")), *((path, over_stages) for path in decoder)),
        pipelines=(("encoder", Pipeline(microbatches=2, schedule="gpipe")),),
    )
    return SHARED | table(
        *(expert_parallel, expert_parallel_2d, expert_parallel_2d_fsdp, expert_zero1, expert_fully_sharded, expert_fsdp),
        *(expert_tensor_parallel, expert_model_parallel, mixed, encoder_pipelined, pipelines_with_experts),
    )


def searched(layouts: dict[str, Recipe], *, experts: bool) -> dict[str, Recipe]:
    """Returns those of a family's recipes that a search of plans tries for a mixture of experts, or for a dense model."""
    if experts:
        return {name: recipe for name, recipe in layouts.items() if name not in SHARED}
    return SHARED | table(dataclasses.replace(layouts["pipelines_with_experts"], largest=1))
