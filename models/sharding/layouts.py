"""Recipes that cut any dense model over a mesh of x by y devices, or into p pipeline stages of x by y. Each makes a Layout;
none changes a model.

A family's LAYOUTS are the recipes that `--layout NAME:XxY` offers; they take the sizes of their mesh axes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from models.sharding.layout import Layout, Pipeline, Rules, rules

BOTH = ("data", "model")
ANY = 2**30  # no limit


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A named way to make a Layout from the sizes of its mesh axes.

    Attributes:
      make: takes a size for each axis, and for pipelines also `microbatches`.
      axes: the mesh axes' names, slowest-varying first.
      largest: the largest size of the last axis for which a search of plans tries it; 0 leaves it out.
      chunks: for a pipeline, the numbers of chunks a stage that a search tries.
    """

    make: Callable[..., Layout]
    axes: tuple[str, ...] = BOTH
    largest: int = 0
    chunks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.make.__name__

    @property
    def is_pipeline(self) -> bool:
        """Returns whether the first axis is one of pipeline stages."""
        return self.axes[0] == "stage"

    def __call__(self, *sizes: int, **options: int) -> Layout:
        return self.make(*sizes, **options)


def table(*recipes: Recipe) -> dict[str, Recipe]:
    """Returns recipes by name."""
    return {recipe.name: recipe for recipe in recipes}


ONE_DEVICE = Layout(name="one_device", mesh=(("all", 1),))

# Tokens stay where the batch is cut, in every mode without expert parallelism.
TENSOR = rules(
    batch="data",
    group="data",
    expert_group="data",
    heads="model",
    mlp="model",
    vocab="model",
    act_heads="model",
    act_mlp="model",
    act_vocab="model",
    act_expert_mlp="model",
)

# For rows too long for one device: their positions are cut, and so are weights, which are gathered where they are used.
CONTEXT = rules(batch="data", length="model", res_length="model", embed=BOTH)


def also(base: Rules, **axes: str | Sequence[str] | None) -> Rules:
    """Returns these rules with others, which take precedence."""
    return tuple(sorted((dict(base) | dict(rules(**axes))).items()))


def data_parallel(x: int, y: int) -> Layout:
    """Cuts the batch over all devices; each holds the whole model, and gradients are all-reduced."""
    return Layout(name="data_parallel", mesh=(("data", x), ("model", y)), rules=rules(batch=BOTH, group=BOTH, expert_group=BOTH))


def zero1(x: int, y: int) -> Layout:
    """Cuts the batch and the optimizer state over all devices; each holds the whole model (ZeRO stage 1)."""
    base = data_parallel(x, y)
    return Layout(name="zero1", mesh=base.mesh, rules=base.rules, optimizer=rules(embed=BOTH))


def fully_sharded(x: int, y: int) -> Layout:
    """Cuts the batch over all devices, and every weight in both its dimensions, to be gathered where it is used (FSDP)."""
    return Layout(
        name="fully_sharded",
        mesh=(("data", x), ("model", y)),
        rules=rules(batch=BOTH, group=BOTH, expert_group=BOTH, embed="data", mlp="model", heads="model", vocab="model"),
    )


def fsdp_within_data(x: int, y: int) -> Layout:
    """Cuts the batch over all devices and weights over y, with whole copies over x: weights are gathered over short distances,
    and only gradients travel far (FSDP within y, data parallel over x)."""
    base = data_parallel(x, y)
    return Layout(name="fsdp_within_data", mesh=base.mesh, rules=also(base.rules, embed="model"))


def tensor_parallel(x: int, y: int) -> Layout:
    """Cuts the batch over x; heads, hidden and vocabulary dimensions over y (Megatron's cut, GSPMD's 1D)."""
    return Layout(name="tensor_parallel", mesh=(("data", x), ("model", y)), rules=TENSOR)


def sequence_parallel(x: int, y: int) -> Layout:
    """Cuts as `tensor_parallel`, and the residual stream, its norms and its dropout by positions over y (Korthikanti et al.,
    arXiv 2205.05198, section 4.2.2): it is gathered before a sub-layer and reduce-scattered after it, not all-reduced."""
    rule = also(TENSOR, res_length="model")
    return Layout(name="sequence_parallel", mesh=(("data", x), ("model", y)), rules=rule)


def two_d_attempt_1(x: int, y: int) -> Layout:
    """Cuts weights over x and y, but the residual stream by batch over x only: GSPMD's first 2D (arXiv 2105.04663, Table 1)."""
    rule = also(TENSOR, embed="data")
    return Layout(name="two_d_attempt_1", mesh=(("data", x), ("model", y)), rules=rule)


def two_d(x: int, y: int) -> Layout:
    """Cuts weights over x and y, and the residual stream by batch over x and by its model dimension over y, so that a device
    holds 1/(xy) of everything: GSPMD's finalised 2D (arXiv 2105.04663, Table 1)."""
    return Layout(name="two_d", mesh=(("data", x), ("model", y)), rules=also(TENSOR, embed="data", act_embed="model"))


def two_d_sequence(x: int, y: int) -> Layout:
    """Cuts weights as `two_d`, and the residual stream by batch over x and by positions over y."""
    rule = also(TENSOR, embed="data", res_length="model")
    return Layout(name="two_d_sequence", mesh=(("data", x), ("model", y)), rules=rule)


def context_gathered(x: int, y: int) -> Layout:
    """Cuts positions over y: a device has some of a row's queries, and gathers all its keys and values (Llama 3,
    arXiv 2407.21783, section 3.3.2)."""
    return Layout(name="context_gathered", mesh=(("data", x), ("model", y)), rules=CONTEXT)


def context_ring(x: int, y: int) -> Layout:
    """Cuts positions over y; keys and values go round (ring attention, arXiv 2310.01889), and no device holds all of a row's."""
    return Layout(name="context_ring", mesh=(("data", x), ("model", y)), rules=also(CONTEXT, keys="model"))


def context_ring_balanced(x: int, y: int) -> Layout:
    """Cuts as `context_ring`, with rows in zigzag order: a causal model computes what is seen, half as much on each device."""
    return dataclasses.replace(context_ring(x, y), name="context_ring_balanced", balanced=True)


def pipelines(component: str) -> dict[str, Recipe]:
    """Returns recipes that run a model's stack of layers in p pipeline stages, each tensor parallel over y, the batch over x.

    The tables of the vocabulary, and the logits, are cut over stages and y together, so that no stage waits for them.
    Microbatches are twice the stages unless an experiment says otherwise.
    """

    def layout(name: str, p: int, x: int, y: int, schedule: Literal["1f1b", "gpipe"], chunks: int, m: int) -> Layout:
        return Layout(
            name=name,
            mesh=(("stage", p), ("data", x), ("model", y)),
            rules=also(TENSOR, vocab=("stage", "model"), act_vocab=("stage", "model")),
            components=((component, rules(layers="stage")),),
            pipelines=((component, Pipeline(microbatches=m or 2 * p, chunks=chunks, schedule=schedule)),),
        )

    def gpipe(p: int, x: int, y: int, *, microbatches: int = 0) -> Layout:
        """Runs all forward passes, then all backward passes (arXiv 1811.06965)."""
        return layout("gpipe", p, x, y, "gpipe", 1, microbatches)

    def pipeline_1f1b(p: int, x: int, y: int, *, microbatches: int = 0) -> Layout:
        """Runs each backward pass as soon as possible: at most 2 p - 1 inputs are kept (PipeDream-Flush)."""
        return layout("pipeline_1f1b", p, x, y, "1f1b", 1, microbatches)

    def pipeline_interleaved(p: int, x: int, y: int, *, microbatches: int = 0) -> Layout:
        """Runs 1F1B with two chunks of layers a stage, which halves the bubble (Megatron, arXiv 2104.04473, section 2.2)."""
        return layout("pipeline_interleaved", p, x, y, "1f1b", 2, microbatches)

    axes = ("stage", *BOTH)
    return table(
        Recipe(gpipe, axes, 16, (1,)), Recipe(pipeline_1f1b, axes, 16, (1,)), Recipe(pipeline_interleaved, axes, 16, (2, 4))
    )


LAYOUTS = table(
    Recipe(data_parallel, largest=1),
    Recipe(zero1, largest=1),
    Recipe(fully_sharded, largest=16),
    Recipe(fsdp_within_data, largest=ANY),
    Recipe(tensor_parallel, largest=64),
    Recipe(sequence_parallel, largest=64),
    Recipe(two_d_attempt_1, largest=64),
    Recipe(two_d, largest=64),
    Recipe(two_d_sequence, largest=64),
    Recipe(context_gathered),
    Recipe(context_ring),
    Recipe(context_ring_balanced),
)
