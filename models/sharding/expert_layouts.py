"""Recipes that cut an encoder-decoder, dense or a mixture of experts, over a mesh. Each makes a Layout; none changes a model."""

import dataclasses
from collections.abc import Callable, Sequence

from models.sharding.layout import Layout, Pipeline, rules
from models.sharding.layouts import ANY, BOTH, TENSOR, Recipe, also, table
from models.sharding.layouts import LAYOUTS as DENSE

EXPERT_AXES = ("data", "expert")


def expert_parallel(x: int, y: int) -> Layout:
    """GShard's own: batch over all devices, experts over y, dense weights everywhere; tokens travel by all-to-all."""
    both = ("data", "expert")
    return Layout(
        name="expert_parallel",
        mesh=(("data", x), ("expert", y)),
        rules=rules(batch=both, group=both, expert="expert", act_expert="expert", expert_group="data"),
    )


def _gathered(
    base: Layout, name: str, stacks: Sequence[str], dense: str | Sequence[str], inside: str | None = None, **axes: str
) -> Layout:
    """Returns a layout with weights also cut along the model dimension, and gathered where they are used: dense ones over the
    mesh axes `dense`, those of the stacks' experts over `inside`."""
    return dataclasses.replace(
        base,
        name=name,
        rules=also(base.rules, embed=dense, **axes),
        components=tuple((f"{stack}.moe", rules(embed=inside)) for stack in stacks),
    )


def fully_sharded_with_experts(*stacks: str) -> tuple[Callable[[int, int], Layout], Callable[[int, int], Layout]]:
    """Returns the two layouts, of a model with these stacks, that cut dense weights over all devices."""

    def expert_fully_sharded(x: int, y: int) -> Layout:
        """Expert parallel, with the dense weights cut over all devices as well (dense and embedding weights as in FSDP)."""
        return _gathered(expert_parallel(x, y), "expert_fully_sharded", stacks, EXPERT_AXES)

    def expert_fsdp(x: int, y: int) -> Layout:
        """Expert parallel, with every weight cut over all devices: an expert's over x, the dense ones over x and y; they are
        gathered where they are used."""
        return _gathered(expert_parallel(x, y), "expert_fsdp", stacks, EXPERT_AXES, "data", latent="expert")

    return expert_fully_sharded, expert_fsdp


STACKS = ("decoder", "encoder")
expert_fully_sharded, expert_fsdp = fully_sharded_with_experts(*STACKS)


def expert_parallel_2d(x: int, y: int) -> Layout:
    """Expert parallel over both axes of the mesh, as many experts as devices or a multiple: tokens travel to all of them."""
    base = expert_parallel(x, y)
    both = ("data", "expert")
    return Layout(
        name="expert_parallel_2d", mesh=base.mesh, rules=also(base.rules, expert=both, act_expert=both, expert_group=None)
    )


def expert_parallel_2d_fsdp(x: int, y: int) -> Layout:
    """`expert_parallel_2d`, with the dense weights cut over x and gathered where they are used: whole everywhere, they would take
    the optimizer longer than a chip's experts do."""
    return _gathered(expert_parallel_2d(x, y), "expert_parallel_2d_fsdp", STACKS, "data")


def expert_zero1(x: int, y: int) -> Layout:
    """Expert parallel, with the optimizer state cut over all devices: that of experts over the replicas of each (ZeRO-1)."""
    base = expert_parallel(x, y)
    return Layout(name="expert_zero1", mesh=base.mesh, rules=base.rules, optimizer=rules(embed=("data", "expert")))


def expert_tensor_parallel(x: int, y: int) -> Layout:
    """Sparse and dense layers cut together (GSPMD, arXiv 2105.04663): batch and experts over x, heads and hidden dimensions,
    inside experts too, over y; a device has 1/(xy) of the experts and 1/y of the dense weights."""
    return Layout(
        name="expert_tensor_parallel",
        mesh=(("data", x), ("model", y)),
        rules=also(TENSOR, expert="data", act_expert="data", expert_group=None),
    )


def expert_model_parallel(x: int, e: int, y: int) -> Layout:
    """Experts over e, and inside experts and dense layers tensor parallel over y, as T5X's mesh of expert replicas, experts and
    model partitions: batch over x and e, tokens travel over e alone (Switch Transformer, arXiv 2101.03961, section 5.5)."""
    rows = ("data", "expert")
    return Layout(
        name="expert_model_parallel",
        mesh=(("data", x), ("expert", e), ("model", y)),
        rules=also(TENSOR, batch=rows, group=rows, expert="expert", act_expert="expert", expert_group="data"),
    )


def pipelines_with_experts(p: int, x: int, y: int) -> Layout:
    """Both towers in p pipeline stages, the decoder as 1F1B, with experts over y inside every stage."""
    base = expert_parallel(x, y)
    stages = rules(layers="stage")
    return Layout(
        name="pipelines_with_experts",
        mesh=(("stage", p), *base.mesh),
        rules=also(base.rules, vocab="stage", act_vocab="stage"),
        components=(("encoder", stages), ("decoder", stages)),
        pipelines=(
            ("encoder", Pipeline(microbatches=p, schedule="gpipe")),
            ("decoder", Pipeline(microbatches=p, schedule="1f1b")),
        ),
    )


def of_stack(component: str) -> dict[str, Recipe]:
    """Returns the layouts with experts of a model that has one stack of layers."""
    fully_sharded, fsdp = fully_sharded_with_experts(component)

    def pipeline_with_experts(p: int, x: int, y: int, *, microbatches: int = 0) -> Layout:
        """The stack in p stages of 1F1B, with experts over y inside every stage; the vocabulary is cut over the stages."""
        base = expert_parallel(x, y)
        return Layout(
            name="pipeline_with_experts",
            mesh=(("stage", p), *base.mesh),
            rules=also(base.rules, vocab="stage", act_vocab="stage"),
            components=((component, rules(layers="stage")),),
            pipelines=((component, Pipeline(microbatches=microbatches or 2 * p)),),
        )

    def expert_two_d(x: int, y: int) -> Layout:
        """Experts over x and hidden dimensions over y, dense weights over both, the residual stream by batch over x and by
        positions over y: GLaM's cut (arXiv 2112.06905, section 5.1), after GSPMD."""
        base = expert_tensor_parallel(x, y)
        return Layout(
            name="expert_two_d",
            mesh=base.mesh,
            rules=also(base.rules, embed="data", latent="data", res_length="model"),
            components=((f"{component}.moe", rules(embed=None)),),
        )

    return table(
        Recipe(expert_parallel, EXPERT_AXES, ANY),
        Recipe(expert_parallel_2d, EXPERT_AXES),
        Recipe(expert_zero1, EXPERT_AXES, ANY),
        Recipe(fully_sharded, EXPERT_AXES, ANY),
        Recipe(fsdp, EXPERT_AXES, ANY),
        Recipe(expert_tensor_parallel, BOTH, 16),
        Recipe(expert_two_d, BOTH, 16),
        Recipe(expert_model_parallel, (*EXPERT_AXES, "model")),
        Recipe(pipeline_with_experts, ("stage", *EXPERT_AXES), ANY, (1, 2)),
    )


SHARED = {name: DENSE[name] for name in ("data_parallel", "zero1", "fully_sharded", "tensor_parallel", "sequence_parallel")}


def recipes(decoder: Sequence[str]) -> dict[str, Recipe]:
    """Returns the layouts of a family.

    Args:
      decoder: the components that go with the decoder where the two stacks are in different modes.
    """

    def mixed(x: int, y: int) -> Layout:
        """Encoder and decoder in different modes of one mesh: a tensor-parallel encoder, an expert-parallel decoder."""
        rules_of_decoder = rules(
            batch=BOTH,
            group=BOTH,
            expert="model",
            act_expert="model",
            expert_group="data",
            heads=None,
            mlp=None,
            vocab=None,
            act_heads=None,
            act_mlp=None,
            act_vocab=None,
            act_expert_mlp=None,
        )
        return Layout(
            name="mixed",
            mesh=(("data", x), ("model", y)),
            rules=TENSOR,
            components=tuple((path, rules_of_decoder) for path in decoder),
        )

    def encoder_pipelined(p: int, x: int, y: int) -> Layout:
        """The encoder in p pipeline stages by GPipe, under a decoder that cuts its batch over them."""
        both, everywhere = ("data", "expert"), ("stage", "data", "expert")
        experts = rules(batch=both, group=both, expert="expert", act_expert="expert", expert_group="data", layers="stage")
        rules_of_decoder = rules(batch=everywhere, group=everywhere, expert_group=("stage", "data"))
        return Layout(
            name="encoder_pipelined",
            mesh=(("stage", p), ("data", x), ("expert", y)),
            rules=expert_parallel(x, y).rules,
            components=(("encoder", experts), *((path, rules_of_decoder) for path in decoder)),
            pipelines=(("encoder", Pipeline(microbatches=2 * p, schedule="gpipe")),),
        )

    return SHARED | table(
        Recipe(expert_parallel, EXPERT_AXES, ANY),
        Recipe(expert_parallel_2d, EXPERT_AXES),
        Recipe(expert_parallel_2d_fsdp, EXPERT_AXES),
        Recipe(expert_zero1, EXPERT_AXES, ANY),
        Recipe(expert_fully_sharded, EXPERT_AXES, ANY),
        Recipe(expert_fsdp, EXPERT_AXES, ANY),
        Recipe(expert_tensor_parallel, BOTH, 16),
        Recipe(expert_model_parallel, (*EXPERT_AXES, "model")),
        Recipe(mixed, BOTH),
        Recipe(encoder_pipelined, ("stage", *EXPERT_AXES)),
        Recipe(pipelines_with_experts, ("stage", *EXPERT_AXES), ANY, (1, 2)),
    )


def searched(layouts: dict[str, Recipe], *, experts: bool) -> dict[str, Recipe]:
    """Returns those of a family's layouts that a search of plans tries for a mixture of experts, or for a dense model."""
    if experts:
        return {name: recipe for name, recipe in layouts.items() if name not in SHARED}
    return SHARED | table(dataclasses.replace(layouts["pipelines_with_experts"], largest=1))
