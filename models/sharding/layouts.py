"""Recipes that cut any dense model over a mesh of x by y devices, or into p pipeline stages of x by y. Each makes a Layout;
none changes a model.

A family's LAYOUTS are the recipes that `--layout NAME:XxY` offers; they take the sizes of their mesh axes.
"""

import dataclasses
from collections.abc import Sequence

from models.sharding.layout import ROWS, SLICE, Layout, Pipeline, Rules, rules

BOTH = ("data", "model")
STAGES = ("stage", *BOTH)
ANY = 2**30  # no limit


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A named way to make a Layout from the sizes of its mesh axes.

    Attributes:
      name, rules, components, optimizer, balanced: those of the layout.
      axes: the mesh axes' names, slowest-varying first.
      largest: the largest size of the last axis for which a search of plans tries it; 0 leaves it out.
      chunks: for a pipeline, the numbers of chunks a stage that a search tries.
      pipelines: as of Layout, with microbatches for each shard of the first axis.
    """

    name: str
    rules: Rules
    axes: tuple[str, ...] = BOTH
    largest: int = 0
    chunks: tuple[int, ...] = ()
    components: tuple[tuple[str, Rules], ...] = ()
    optimizer: Rules = ()
    balanced: bool = False
    pipelines: tuple[tuple[str, Pipeline], ...] = ()

    @property
    def is_pipeline(self) -> bool:
        """Returns whether the first axis is one of pipeline stages."""
        return self.axes[0] == "stage"

    def __call__(self, *sizes: int, microbatches: int = 0) -> Layout:
        """Returns the layout of these sizes; `microbatches` are those of its pipelines, by default in proportion to stages."""
        return Layout(
            name=self.name,
            mesh=tuple(zip(self.axes, sizes, strict=True)),
            rules=self.rules,
            components=self.components,
            optimizer=self.optimizer,
            pipelines=tuple(
                (path, dataclasses.replace(p, microbatches=microbatches or p.microbatches * sizes[0]))
                for path, p in self.pipelines
            ),
            balanced=self.balanced,
        )


def table(*recipes: Recipe) -> dict[str, Recipe]:
    """Returns recipes by name."""
    return {recipe.name: recipe for recipe in recipes}


def also(base: Rules, **axes: str | Sequence[str] | None) -> Rules:
    """Returns these rules with others, which take precedence."""
    return tuple(sorted((dict(base) | dict(rules(**axes))).items()))


def over_slices(layout: Layout, slices: int) -> Layout:
    """Returns the layout of so many slices, each of which is cut as the given one: their rows are others, their weights the same.

    A gradient is summed inside each slice first, to as many parts as its weight has there, and these parts over the slices.
    """
    if slices == 1:
        return layout

    def cut(table: Rules) -> Rules:
        return tuple((name, (SLICE, *axes) if name in ROWS else axes) for name, axes in table)

    return dataclasses.replace(
        layout,
        name=f"{slices}x{layout.name}",
        mesh=((SLICE, slices), *layout.mesh),
        rules=cut(layout.rules),
        components=tuple((path, cut(table)) for path, table in layout.components),
    )


ONE_DEVICE = Layout(name="one_device", mesh=(("all", 1),))

# Tokens stay where the batch is cut, in every mode without expert parallelism.
_TOKENS = rules(batch="data", group="data", expert_group="data")
TENSOR = also(_TOKENS, **dict.fromkeys(("heads", "mlp", "vocab", "act_heads", "act_mlp", "act_vocab", "act_expert_mlp"), "model"))

# For rows too long for one device: their positions are cut, and so are weights, which are gathered where they are used.
CONTEXT = rules(batch="data", length="model", res_length="model", embed=BOTH)

data_parallel = Recipe("data_parallel", rules(batch=BOTH, group=BOTH, expert_group=BOTH), largest=1)
"""Cuts the batch over all devices; each holds the whole model, and gradients are all-reduced."""

zero1 = dataclasses.replace(data_parallel, name="zero1", optimizer=rules(embed=BOTH))
"""Cuts the batch and the optimizer state over all devices; each holds the whole model (ZeRO stage 1)."""

fully_sharded = Recipe(
    "fully_sharded", also(data_parallel.rules, embed="data", mlp="model", heads="model", vocab="model"), largest=16
)
"""Cuts the batch over all devices, and every weight in both its dimensions, to be gathered where it is used (FSDP)."""

fsdp_within_data = Recipe("fsdp_within_data", also(data_parallel.rules, embed="model"), largest=ANY)
"""Cuts the batch over all devices and weights over y, with whole copies over x: weights are gathered over short distances, and
only gradients travel far (FSDP within y, data parallel over x)."""

tensor_parallel = Recipe("tensor_parallel", TENSOR, largest=64)
"""Cuts the batch over x; heads, hidden and vocabulary dimensions over y (Megatron's cut, GSPMD's 1D)."""

sequence_parallel = Recipe("sequence_parallel", also(TENSOR, res_length="model"), largest=64)
"""Cuts as `tensor_parallel`, and the residual stream, its norms and its dropout by positions over y (Korthikanti et al., arXiv
2205.05198, section 4.2.2): it is gathered before a sub-layer and reduce-scattered after it, not all-reduced."""

two_d_attempt_1 = Recipe("two_d_attempt_1", also(TENSOR, embed="data"), largest=64)
"""Cuts weights over x and y, but the residual stream by batch over x only: GSPMD's first 2D (arXiv 2105.04663, Table 1)."""

two_d = Recipe("two_d", also(TENSOR, embed="data", act_embed="model"), largest=64)
"""Cuts weights over x and y, and the residual stream by batch over x and by its model dimension over y, so that a device holds
1/(xy) of everything: GSPMD's finalised 2D (arXiv 2105.04663, Table 1)."""

two_d_sequence = Recipe("two_d_sequence", also(TENSOR, embed="data", res_length="model"), largest=64)
"""Cuts weights as `two_d`, and the residual stream by batch over x and by positions over y."""

context_gathered = Recipe("context_gathered", CONTEXT)
"""Cuts positions over y: a device has some of a row's queries, and gathers all its keys and values (Llama 3, arXiv 2407.21783,
section 3.3.2)."""

context_ring = Recipe("context_ring", also(CONTEXT, keys="model"))
"""Cuts positions over y; keys and values go round (ring attention, arXiv 2310.01889), and no device holds all of a row's."""

context_ring_balanced = dataclasses.replace(context_ring, name="context_ring_balanced", balanced=True)
"""Cuts as `context_ring`, with rows in zigzag order: a causal model computes what is seen, half as much on each device."""

LAYOUTS = table(
    *(data_parallel, zero1, fully_sharded, fsdp_within_data, tensor_parallel, sequence_parallel),
    *(two_d_attempt_1, two_d, two_d_sequence, context_gathered, context_ring, context_ring_balanced),
)


def pipelines(component: str) -> dict[str, Recipe]:
    """Returns recipes that run a model's stack of layers in p pipeline stages, each tensor parallel over y, the batch over x.

    The tables of the vocabulary, and the logits, are cut over stages and y together, so that no stage waits for them.
    Microbatches are twice the stages unless an experiment says otherwise.

    gpipe runs all forward passes, then all backward passes (arXiv 1811.06965); pipeline_1f1b each backward pass as soon as
    possible: at most 2 p - 1 inputs are kept (PipeDream-Flush); pipeline_interleaved the same with two chunks of layers a stage,
    which halves the bubble (Megatron, arXiv 2104.04473, section 2.2).
    """
    cut = also(TENSOR, vocab=("stage", "model"), act_vocab=("stage", "model"))
    kinds = {
        "gpipe": (Pipeline(microbatches=2, schedule="gpipe"), (1,)),
        "pipeline_1f1b": (Pipeline(microbatches=2), (1,)),
        "pipeline_interleaved": (Pipeline(microbatches=2, chunks=2), (2, 4)),
    }
    stages = ((component, rules(layers="stage")),)
    return table(
        *(Recipe(name, cut, STAGES, 16, tried, stages, pipelines=((component, p),)) for name, (p, tried) in kinds.items())
    )
