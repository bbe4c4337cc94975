"""Pictures of placements and timelines, small enough to check by eye."""

import dataclasses

from models.parts.activations import DENSE
from models.sharding.component import Component
from models.sharding.layout import Layout, rules
from models.sharding.layouts import also
from models.sharding.params import ParamInfo
from models.sharding.pipelines.schedule import Schedule
from trainers.hlo.diagrams import pictures, placement, roles, timeline

LAYOUT = Layout(
    name="drawn", mesh=(("data", 2), ("model", 4)), rules=rules(batch="data", embed="data", mlp="model", vocab=("model", "data"))
)


def test_a_weight_cut_in_two_dimensions_is_a_grid():
    """Devices are numbered along the mesh, its last axis fastest; each cell names those that hold the piece."""
    assert placement(LAYOUT, "", ("embed", "mlp"), "w") == [
        "w (embed, mlp)  embed->data  mlp->model",
        "          mlp 0 | mlp 1 | mlp 2 | mlp 3 ",
        "embed 0   0     | 1     | 2     | 3     ",
        "embed 1   4     | 5     | 6     | 7     ",
    ]


def test_an_axis_that_cuts_nothing_repeats():
    """A batch cut over two of eight devices lies on four each."""
    assert placement(LAYOUT, "", ("batch", "length"), "x")[1:] == ["   batch 0 | batch 1 ", "   0 1 2 3 | 4 5 6 7 "]


def test_two_axes_cut_one_dimension_major_first():
    """vocab -> (model, data): the model axis counts whole halves."""
    assert placement(LAYOUT, "", ("vocab",), "t")[2].split("|")[1].strip() == "4"


def test_an_uncut_tensor_is_said_to_be_whole():
    """Nothing is drawn of what lies everywhere."""
    assert placement(LAYOUT, "", ("length",), "x") == ["x (length)  whole on every device"]


def test_a_timeline_is_cut_where_it_gets_long_and_counted_whole():
    """Sixteen ticks are drawn; the last line counts all of them."""
    lines = timeline(Schedule(2, 1, 20), backward=True)
    assert lines[0].startswith("stage   0 |F0") and lines[0].endswith("...")
    assert lines[-1] == "22 ticks; idle 5.00% of the working time, counted; (p - 1) / (v m) = (2 - 1) / (1 x 20) = 5.00%"


def test_activations_are_drawn_that_a_part_has_and_that_lie_differently():
    """A part with a feed-forward network alone shows what passes between its layers and its hidden dimension: it has no heads,
    and what the network returns lies as its input does."""
    scope = Component(LAYOUT, "tower")
    weights = [
        ParamInfo("tower.wi", (2, 8, 16), "float32", ("layers", "embed", "mlp"), scope),
        ParamInfo("tower.wo", (2, 16, 8), "float32", ("layers", "mlp", "embed"), scope),
    ]
    layout = dataclasses.replace(LAYOUT, rules=also(LAYOUT.rules, act_mlp="model", act_heads="model"))
    titles = [line for line in pictures(weights, layout, DENSE) if line.startswith("tower: ")]
    assert [title.partition(" (")[0] for title in titles] == [f"tower: {DENSE[name].what}" for name in ("carry", "up")]
    assert not any(line.startswith("tower: ") for line in pictures(weights, layout))


def test_what_an_axis_does_in_each_part():
    """Each axis shows what it cuts of a part's own weights, and of what passes through it; one that cuts nothing holds copies."""
    layout = dataclasses.replace(
        LAYOUT,
        rules=also(LAYOUT.rules, act_vocab="model"),
        components=(("tower", rules(batch="model", layers="data", embed=None)),),
    )
    infos = [
        ParamInfo("tower.wi", (2, 8), "float32", ("layers", "embed"), Component(layout, "tower")),
        ParamInfo("head.weight", (8, 16), "float32", ("embed", "vocab"), Component(layout, "head")),
        ParamInfo("seam.scale", (8,), "float32", ("in_channels",), Component(layout, "seam")),
    ]
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in roles(infos, layout)]
    assert cells == [
        ["part", "data 2", "model 4"],
        ["head", "batch, vocabulary, weights", "vocabulary"],
        ["seam", "batch", "copies"],
        ["tower", "stages", "batch"],
    ]
