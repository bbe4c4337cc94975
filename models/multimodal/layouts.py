"""The layouts of models of pictures and sounds: `LAYOUTS` is what `--layout NAME` offers. Each makes a Layout; none changes the
model. Components of one mesh run in different modes, and an array changes cuts where a tower's output reaches the decoder.
"""

from models.sharding.expert_layouts import expert_parallel_2d
from models.sharding.layout import Layout, Pipeline, Rules, rules
from models.sharding.layouts import ANY, BOTH, TENSOR, Recipe, also, table
from models.sharding.layouts import LAYOUTS as DENSE

VISION, AUDIO = "vision_tower", "audio_tower"
_SEAMS = ("vision_seam", "audio_seam")

# Batch over all devices, experts over all of them, as `expert_parallel_2d`: of the decoder, and of what it attends to.
_EVERYWHERE = rules(batch=BOTH, group=BOTH, expert=BOTH, act_expert=BOTH)
# A stack in stages over the mesh's first axis, its batch over the second.
_STAGES = rules(batch="model", group="model", layers="data")
_TENSOR_2D = also(TENSOR, embed="data")
_SPACE = rules(batch="data", height="model", length="model", res_length="model", embed=BOTH)


def _staged(x: int, *stacks: str) -> tuple[tuple[str, Pipeline], ...]:
    return tuple((stack, Pipeline(microbatches=2 * x, schedule="gpipe")) for stack in stacks)


def announcement(x: int, y: int) -> Layout:
    """The figure of GSPMD's announcement (Google AI blog, December 2021): one axis is data in embedding and softmax, and stages
    in the towers and the decoder; the other is the vocabulary, the batch, or the experts."""
    return Layout(
        name="announcement",
        mesh=(("data", x), ("model", y)),
        rules=rules(batch="data", vocab="model", act_vocab="model"),
        components=(
            (AUDIO, _STAGES),
            ("decoder", also(_STAGES, expert="model", act_expert="model")),
            (VISION, _STAGES),
        ),
        pipelines=_staged(x, f"{AUDIO}.encoder", "decoder", f"{VISION}.encoder"),
    )


def towers(x: int, y: int) -> Layout:
    """The audio tower in stages, the image tower in 2D (weights over both axes, tensor parallel over one), and the decoder's
    experts over all devices."""
    return _mixed("towers", x, y, _TENSOR_2D)


def towers_in_space(x: int, y: int) -> Layout:
    """As `towers`, with the image tower cut in space: rows of pixels, then of patches, then positions. A class token, which is in
    no part, is refused."""
    return _mixed("towers_in_space", x, y, _SPACE)


def _mixed(name: str, x: int, y: int, vision: Rules) -> Layout:
    return Layout(
        name=name,
        mesh=(("data", x), ("model", y)),
        rules=_EVERYWHERE,
        components=(
            (AUDIO, also(_STAGES, expert=None, act_expert=None)),
            (VISION, also(vision, expert=None, act_expert=None)),
        ),
        pipelines=_staged(x, f"{AUDIO}.encoder"),
    )


_SINGLE = {name: DENSE[name] for name in ("data_parallel", "zero1", "fully_sharded", "tensor_parallel", "two_d")}
LAYOUTS = (
    _SINGLE
    | table(Recipe(expert_parallel_2d, ("data", "expert")))
    | table(Recipe(announcement, BOTH, ANY), Recipe(towers, BOTH, ANY), Recipe(towers_in_space, BOTH, ANY))
)
