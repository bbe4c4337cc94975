"""The layouts of models of pictures and sounds: `LAYOUTS` is what `--layout NAME` offers. Each makes a Layout; none changes the
model. Components of one mesh run in different modes, and an array changes cuts where a tower's output reaches the decoder.
"""

from models.sharding.expert_layouts import expert_parallel_2d
from models.sharding.layout import Layout, Pipeline, Rules, rules
from models.sharding.layouts import ANY, BOTH, TENSOR, Recipe, also, table
from models.sharding.layouts import LAYOUTS as DENSE

VISION, AUDIO = "vision_tower", "audio_tower"
STAGES = ("stage", *BOTH)

# A stack in stages over the mesh's first axis, its batch over the second.
_STAGES = rules(batch="model", group="model", layers="data")


def _staged(x: int, *stacks: str) -> tuple[tuple[str, Pipeline], ...]:
    return tuple((stack, Pipeline(microbatches=2 * x, schedule="gpipe")) for stack in stacks)


def announcement(x: int, y: int) -> Layout:
    """The figure of GSPMD's announcement (Google AI blog, December 2021): one axis is data in embedding and softmax, and stages
    in the towers and the decoder; the other is the vocabulary, the batch, or the experts."""
    return Layout(
        name="announcement",
        mesh=(("data", x), ("model", y)),
        rules=rules(batch="data", vocab="model", act_vocab="model"),
        components=((AUDIO, _STAGES), ("decoder", also(_STAGES, expert="model", act_expert="model")), (VISION, _STAGES)),
        pipelines=_staged(x, f"{AUDIO}.encoder", "decoder", f"{VISION}.encoder"),
    )


def towers(p: int, x: int, y: int) -> Layout:
    """The audio tower in p pipeline stages, the image tower in 2D (its batch and weights over the first two axes, tensor parallel
    over y), and the decoder's batch over all devices, its experts over x and y."""
    rows = ("stage", "data")
    return _mixed("towers", p, x, y, also(TENSOR, batch=rows, group=rows, embed=rows))


def towers_in_space(p: int, x: int, y: int) -> Layout:
    """As `towers`, with the image tower cut in space over y: rows of pixels, of patches, then positions. A class token, which
    is in no part, is refused."""
    space = rules(batch=("stage", "data"), height="model", length="model", res_length="model", embed=("stage", "data"))
    return _mixed("towers_in_space", p, x, y, space)


def gathered_towers(r: int, x: int, y: int) -> Layout:
    """The weights of both towers, and of what is dense in the decoder, cut over y and gathered where they are used (FSDP within
    y); experts over x and y, in r copies; the batch over all devices. On pods the fastest that was found (BENCHMARKS.md)."""
    inner, everywhere = ("data", "model"), ("replica", "data", "model")
    gathered = rules(embed="model", expert=None, act_expert=None, expert_group=None)
    return Layout(
        name="gathered_towers",
        mesh=(("replica", r), ("data", x), ("model", y)),
        rules=rules(batch=everywhere, group=everywhere, expert=inner, act_expert=inner, expert_group="replica", embed="model"),
        components=((AUDIO, gathered), ("decoder.moe", rules(embed=None)), (VISION, gathered)),
    )


def _mixed(name: str, p: int, x: int, y: int, vision: Rules) -> Layout:
    inner, everywhere = ("data", "model"), ("stage", "data", "model")
    decoder = rules(batch=everywhere, group=everywhere, expert=inner, act_expert=inner, expert_group="stage")
    return Layout(
        name=name,
        mesh=(("stage", p), ("data", x), ("model", y)),
        rules=decoder,
        components=(
            (AUDIO, rules(layers="stage", batch=inner, group=None, expert=None, act_expert=None, expert_group=None)),
            (VISION, also(vision, expert=None, act_expert=None, expert_group=None)),
        ),
        pipelines=_staged(p, f"{AUDIO}.encoder"),
    )


_SINGLE = {name: DENSE[name] for name in ("data_parallel", "zero1", "fully_sharded", "tensor_parallel", "two_d")}
LAYOUTS = (
    _SINGLE
    | table(Recipe(expert_parallel_2d, ("data", "expert")))
    | table(Recipe(announcement, BOTH, ANY), Recipe(towers, STAGES, ANY), Recipe(towers_in_space, STAGES, ANY))
    | table(Recipe(gathered_towers, ("replica", *BOTH), ANY))
)
