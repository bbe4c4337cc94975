"""Pictures of placements and timelines, small enough to check by eye."""

from models.sharding.layout import Layout, rules
from models.sharding.pipelines.schedule import Schedule
from trainers.programs.drawings import placement, timeline

LAYOUT = Layout(
    name="drawn",
    mesh=(("data", 2), ("model", 4)),
    rules=rules(batch="data", embed="data", mlp="model", vocab=("model", "data")),
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
    assert (
        lines[-1] == "22 ticks; idle 5.00% of the working time, counted; (p - 1) / (v m) = (2 - 1) / (1 x 20) = 5.00%"
    )
