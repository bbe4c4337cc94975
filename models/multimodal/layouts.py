"""The layouts of models of pictures and sounds: `LAYOUTS` is what `--layout NAME` offers. Each makes a Layout; none changes the
model. Components of one mesh run in different modes, and an array changes cuts where a tower's output reaches the decoder.
"""

from models.sharding.expert_layouts import expert_parallel_2d
from models.sharding.layout import Pipeline, Rules, rules
from models.sharding.layouts import ANY, BOTH, STAGES, TENSOR, Recipe, also, table
from models.sharding.layouts import LAYOUTS as DENSE

VISION, AUDIO = "vision_tower", "audio_tower"
GPIPE = Pipeline(microbatches=2, schedule="gpipe")

# A stack in stages over the mesh's first axis, its batch over the second.
_STAGED = rules(batch="model", group="model", layers="data")
announcement = Recipe(
    "announcement",
    rules(batch="data", vocab="model", act_vocab="model"),
    BOTH,
    ANY,
    components=((AUDIO, _STAGED), ("decoder", also(_STAGED, expert="model", act_expert="model")), (VISION, _STAGED)),
    pipelines=((f"{AUDIO}.encoder", GPIPE), ("decoder", GPIPE), (f"{VISION}.encoder", GPIPE)),
)
"""The figure of GSPMD's announcement (Google AI blog, December 2021): one axis is data in embedding and softmax, and stages in
the towers and the decoder; the other is the vocabulary, the batch, or the experts."""

_GATHERED = rules(embed="model", expert=None, act_expert=None, expert_group=None)
_EVERYWHERE = ("replica", *BOTH)
gathered_towers = Recipe(
    "gathered_towers",
    rules(batch=_EVERYWHERE, group=_EVERYWHERE, expert=BOTH, act_expert=BOTH, expert_group="replica", embed="model"),
    _EVERYWHERE,
    ANY,
    components=((AUDIO, _GATHERED), ("decoder.moe", rules(embed=None)), (VISION, _GATHERED)),
)
"""The weights of both towers, and of what is dense in the decoder, cut over y and gathered where they are used (FSDP within y);
experts over x and y, in r copies; the batch over all devices. On pods the fastest that was found (BENCHMARKS.md)."""


def _mixed(name: str, vision: Rules) -> Recipe:
    return Recipe(
        name,
        rules(batch=STAGES, group=STAGES, expert=BOTH, act_expert=BOTH, expert_group="stage"),
        STAGES,
        ANY,
        components=(
            (AUDIO, rules(layers="stage", batch=BOTH, group=None, expert=None, act_expert=None, expert_group=None)),
            (VISION, also(vision, expert=None, act_expert=None, expert_group=None)),
        ),
        pipelines=((f"{AUDIO}.encoder", GPIPE),),
    )


_ROWS = ("stage", "data")
towers = _mixed("towers", also(TENSOR, batch=_ROWS, group=_ROWS, embed=_ROWS))
"""The audio tower in p pipeline stages, the image tower in 2D (its batch and weights over the first two axes, tensor parallel
over y), and the decoder's batch over all devices, its experts over x and y."""

_SPACE = rules(batch=_ROWS, height="model", length="model", res_length="model", embed=_ROWS)
towers_in_space = _mixed("towers_in_space", _SPACE)
"""As `towers`, with the image tower cut in space over y: rows of pixels, of patches, then positions. A class token, which is in
no part, is refused."""

_SINGLE = {name: DENSE[name] for name in ("data_parallel", "zero1", "fully_sharded", "tensor_parallel", "two_d")}
LAYOUTS = _SINGLE | table(expert_parallel_2d, announcement, towers, towers_in_space, gathered_towers)
