"""Layouts refuse what they cannot do, in one line that names the thing, the value and the nearest choice."""

import ast
import dataclasses
import importlib
import itertools
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from jax.sharding import PartitionSpec

from configs import registry
from models.sharding.component import Component, _by_slice, make_mesh
from models.sharding.layout import AXES, Layout, LayoutError, rules
from models.sharding.layouts import LAYOUTS, over_slices
from models.sharding.params import describe
from trainers.plan import abstract_model, make_plan

MESH = (("data", 2), ("model", 4))
ROOT = Path(__file__).resolve().parents[3]


def layout(**kwargs) -> Layout:
    return Layout(name="mine", mesh=MESH, **kwargs)


def message(call) -> str:
    with pytest.raises(LayoutError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_long_names_make_no_long_lines():
    """A layout may come out of somebody's experiment.json."""
    long = "n" * 4000
    for table in (((long, ("data",)),), (("batch", (long,)),)):
        assert len(message(lambda table=table: layout(rules=table))) < 1000
    assert len(message(lambda: Layout(name="mine", mesh=((long, 2),), rules=rules(batch="data")))) < 1000


def test_names_become_mesh_axes():
    """Each logical name goes where its rule says, several mesh axes may cut one dimension, no rule means whole."""
    scope = Component(layout(rules=rules(batch=("data", "model"), mlp="model")))
    assert scope.spec(("batch", "length", None)) == PartitionSpec(("data", "model"), None, None)
    assert scope.spec(("embed", "mlp")) == PartitionSpec(None, "model")


def test_a_component_overrides_and_the_longest_path_wins():
    """Rules apply to a component and all below it; a rule for a deeper component replaces only what it names."""
    mine = layout(
        rules=rules(mlp="model", embed=None), components=(("decoder.moe", rules(mlp=None)), ("decoder", rules(embed="data")))
    )
    assert Component(mine, "encoder.ffn").spec(("embed", "mlp")) == PartitionSpec(None, "model")
    assert Component(mine, "decoder.ffn").spec(("embed", "mlp")) == PartitionSpec("data", "model")
    assert Component(mine, "decoder.moe").spec(("embed", "mlp")) == PartitionSpec("data", None)
    assert Component(mine, "decoders").spec(("embed", "mlp")) == PartitionSpec(None, "model")


def test_an_unknown_logical_name_is_refused():
    """A misspelt name, in a rule or in a model, is an error with the nearest name of the alphabet."""
    assert "did you mean 'embed'?" in message(lambda: layout(rules=rules(embd="data")))
    scope = Component(layout())
    assert "did you mean 'heads'?" in message(lambda: scope.spec(("embed", "head")))


def test_an_unknown_mesh_axis_is_refused():
    """A rule to a mesh axis that the mesh lacks names the nearest one it has."""
    assert "did you mean 'model'?" in message(lambda: layout(rules=rules(mlp="modle")))


def test_two_dimensions_on_one_mesh_axis_are_refused():
    """The error names the tensor and both logical names, instead of silently dropping one."""
    scope = Component(layout(rules=rules(embed="model", mlp="model")), "encoder.ffn")
    text = message(lambda: scope.spec(("embed", "mlp"), tensor="wi"))
    assert "wi" in text and "'embed'" in text and "'mlp'" in text and "'model'" in text


def test_an_indivisible_dimension_is_refused():
    """A dimension that its mesh axes do not divide is an error with the nearest count that does."""
    scope = Component(layout(rules=rules(heads="model")), "encoder.attention")
    text = message(lambda: scope.spec(("embed", "heads", "kv"), (16, 6, 8), tensor="q"))
    assert "'heads' of size 6" in text and text.endswith("the nearest that fits is 3, or 'heads' in the layout's pad")


def test_what_may_be_padded_is_cut_in_unequal_parts():
    """On request; not for a shard_map, whose parts are equal, and never what loops and kernels cut themselves."""
    scope = Component(layout(rules=rules(heads="model", batch="data"), pad=("heads",)), "encoder.attention")
    assert scope.spec(("embed", "heads", "kv"), (16, 6, 8)) == PartitionSpec(None, "model", None)
    assert scope.layout.shard_size((16, 6, 8), ((), ("model",), ())) == 16 * 2 * 8
    assert message(lambda: scope.spec(("heads",), (6,), manual=True)).endswith("the nearest that fits is 3")
    assert message(lambda: scope.spec(("batch",), (5,))).endswith("the nearest that fits is 1")
    assert "pad: no such logical name 'vocabulary'; did you mean 'vocab'?" in message(lambda: layout(pad=("vocabulary",)))
    assert "pad: 'layers' cannot be padded; choose from act_embed, " in message(lambda: layout(pad=("layers",)))


def test_a_rule_for_a_component_that_does_not_exist_is_refused(m4):
    """Components are those of the model at hand: `decoder.mo` is told apart from `decoder.moe`."""
    wrong = dataclasses.replace(m4, layout=dataclasses.replace(m4.layout, components=(("decoder.mo", rules()),)))
    assert "did you mean 'decoder.moe'?" in message(lambda: make_plan(wrong, jax.devices()[:1]))


def test_a_mesh_of_another_size_than_the_devices_is_refused():
    """The error gives both numbers."""
    text = message(lambda: make_mesh(layout(), jax.devices()[:6]))
    assert "needs 8 devices" in text and "6 are here" in text


def test_slices_have_the_same_weights_and_other_rows():
    """Whatever cuts rows cuts them over slices too, in components as well, and nothing else is cut over them. Devices that know
    no slices are taken in blocks."""
    two = over_slices(layout(rules=rules(batch="data", mlp="model"), components=(("decoder", rules(batch=())),)), 2)
    assert two.mesh == (("slice", 2), *MESH) and two.mesh_of_slice == MESH and (two.name, two.slices) == ("2xmine", 2)
    assert Component(two).spec(("batch", "mlp")) == PartitionSpec(("slice", "data"), "model")
    assert Component(two, "decoder").spec(("batch",)) == PartitionSpec("slice")
    devices = make_mesh(over_slices(LAYOUTS["fully_sharded"](2, 2), 2), jax.devices()[:8]).devices
    assert [[d.id for d in block.flat] for block in devices] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_tpus_of_another_number_of_slices_are_refused():
    """Otherwise layers would be cut over the network between slices. The devices of a slice lie along its torus."""
    at = itertools.product(range(2), range(2), range(2))
    tpus = [SimpleNamespace(platform="tpu", process_index=i, slice_index=i, coords=(x, y, 0)) for x, y, i in at]
    one = LAYOUTS["fully_sharded"](8, 1)
    assert "is for 1 slice, but the devices are of 2" in message(lambda: make_mesh(one, tpus))
    two = over_slices(LAYOUTS["fully_sharded"](4, 1), 2)
    devices = _by_slice(two, tpus)
    assert [[d.slice_index for d in block] for block in devices] == [[0] * 4, [1] * 4]
    assert "is for 2 slices, but the devices are of 1" in message(lambda: make_mesh(two, [tpus[0]] * 8))


@pytest.mark.parametrize(
    ("mesh", "cut", "parts"),
    [
        ((("slice", 2), ("data", 4)), rules(embed=("slice", "data")), ["'embed'", "'slice'", "batch, group, expert_group"]),
        ((("data", 4), ("slice", 2)), rules(batch=("data", "slice")), ["'slice' must be the first of ['data', 'slice']"]),
    ],
)
def test_what_makes_no_sense_between_slices_is_refused(mesh, cut, parts):
    """A weight that is gathered over the network at each layer; neighbours on the torus in different slices."""
    text = message(lambda: Layout(name="mine", mesh=mesh, rules=cut))
    assert all(part in text for part in parts), text


def test_a_batch_that_the_mesh_does_not_divide_is_refused():
    """Found before anything is compiled."""
    e = registry.tiny(registry.load("gshard_m4.quickstart"), (1, 8))
    e = dataclasses.replace(e, data=dataclasses.replace(e.data, batch_size=12))
    line = message(lambda: make_plan(e))
    assert line.startswith("data.batch_size=12 is not divisible") and line.endswith("the nearest that fits is 8 or 16")


def test_optimizer_rules_use_each_mesh_axis_once():
    """ZeRO-1 cuts what the parameter leaves whole, and leaves alone what is cut already."""
    mine = layout(rules=rules(expert="model"), optimizer=rules(embed=("data", "model")))
    scope = Component(mine)
    assert scope.spec(("embed", "mlp"), extra=mine.optimizer) == PartitionSpec(("data", "model"), None)
    assert scope.spec(("expert", "embed", "mlp"), extra=mine.optimizer) == PartitionSpec("model", "data", None)


def test_model_files_name_no_mesh_axis():
    """A layout's mesh axes are unknown to the models: the same alphabet serves any mesh."""
    from pathlib import Path

    files = [f for f in (Path(__file__).parents[3] / "models").rglob("*.py") if not f.name.endswith(("layouts.py", "layout.py"))]
    assert len(files) > 8
    for path in files:
        text = path.read_text()
        assert '"data"' not in text and '"model"' not in text, path


def test_every_parameter_knows_its_component(m4):
    """Components are dotted paths below the model's root."""
    paths = {info.scope.path for info in describe(abstract_model(m4))}
    assert {"encoder.attention", "encoder.moe", "decoder.cross_attention", "softmax"} <= paths


def test_no_model_file_names_a_mesh_axis():
    """Layouts alone know which axes a mesh has: no other file under models/ has the name of one."""
    axes = {}
    for family in ("bert", "gpt", "gshard_m4"):
        made = importlib.import_module(f"models.{family}.layouts").LAYOUTS
        axes |= {axis: name for name, make in made.items() for axis, _ in make(*(1,) * len(make.axes)).mesh}
    names = axes.keys() - AXES.keys()  # "expert" is also what a model calls its experts
    assert names == {"data", "model", "stage"}
    files = [path for path in ROOT.glob("models/**/*.py") if not path.name.endswith("layouts.py")]
    assert len(files) > 20
    for path in files:
        written = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not names & {text for text in written if isinstance(text, str)}, path
