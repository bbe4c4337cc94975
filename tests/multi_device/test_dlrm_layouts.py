"""DLRM under every layout of its family computes what one device computes, and no table is gathered."""

import dataclasses
import math

import jax
import pytest

from configs import registry
from configs.optimizers import AdaGrad, AdamW, ByComponent, Constant, OfComponent
from models.dlrm.layouts import LAYOUTS
from models.sharding.layout import LayoutError
from tests.helpers.layouts import MESH, STEPS, assert_equal_to_one_device, case_id, cases, experiment, laid_out, run, trial
from trainers.hlo import equality
from trainers.plan import make_plan

pytestmark = pytest.mark.integration

NAME, MULTI_HOT = "dlrm.quickstart", "dlrm.dcnv2"
# All-to-alls of a step: ids, vectors and their gradients; sums and their gradients; ids, weights, sums and their gradients.
ROWS, COLUMNS, TABLES = 3, 2, 4
TABLE = [
    *cases(NAME, keep=("mixed",), slow=("row_wise", "table_wise"), nightly=("data_parallel", "column_wise", "mixed_tables")),
    *cases(MULTI_HOT, slow=("row_wise", "column_wise", "table_wise"), nightly=("mixed", "mixed_tables")),
]


@pytest.mark.parametrize(("name", "layout", "mesh"), TABLE, ids=case_id)
def test_numbers_are_those_of_one_device(name, layout, mesh):
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision."""
    assert_equal_to_one_device(name, layout, mesh)


def assert_exchanged(layout: str, least: dict[str, int]) -> None:
    """Fails unless a step has so many all-to-alls of each component of tables, and gathers nothing as large as one of them."""
    collectives = trial(NAME, layout, MESH[2]).collectives
    exchanged = [c.op_name for c in collectives if c.kind == "all-to-all"]
    sizes = {name: math.prod(a.shape) for name, a in make_plan(laid_out(NAME, layout, MESH[2])).state.params.items()}
    for name, n in least.items():
        assert len([op for op in exchanged if f"(tables.{name})" in op and "while" not in op]) >= n, (name, exchanged)
    smallest = min(sizes[f"tables.{name}.table"] for name in least)
    gathered = [shape for c in collectives if c.kind == "all-gather" for shape in c.shapes]
    assert all(shape.size < smallest for shape in gathered), gathered


def test_what_is_looked_up_is_exchanged():
    """Under `mixed`, ids and vectors of tables that are cut go by all-to-all, and small tables are where they are used."""
    assert_exchanged("mixed", {"large": ROWS, "middle": COLUMNS})


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "least"), [("row_wise", ROWS), ("column_wise", COLUMNS), ("table_wise", TABLES)])
def test_what_is_looked_up_is_exchanged_in_every_mode(layout, least):
    """The same where all tables are cut alike."""
    assert_exchanged(layout, dict.fromkeys(("large", "middle", "small"), least))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["mixed", "table_wise"])
def test_optimizers_of_tables_are_cut_as_tables_are(layout):
    """Row-wise AdaGrad of large tables, Adam of the others, AdaGrad of the network: three steps equal those of one device, and
    rows' sums of squares lie where the rows are."""
    rate = Constant(value=0.1)
    optimizer = ByComponent(
        others=AdaGrad(schedule=rate, initial=0.1),
        components=(
            OfComponent(path="tables", rule=AdamW(schedule=rate, eps=1e-3)),
            OfComponent(path="tables.large", rule=AdaGrad(schedule=rate, initial=0.1, by_row=True)),
        ),
    )
    e = dataclasses.replace(experiment(NAME), optimizer=optimizer)
    with jax.enable_x64(True):
        start = equality.start(e)
        want = equality.reference(e, STEPS, start)
    e = dataclasses.replace(laid_out(NAME, layout, MESH[2]), optimizer=optimizer)
    far = equality.differences(run(e, start), want)
    assert max(far["losses"], far["parameters"]) < 1e-9, far
    plan = make_plan(e)
    specs = {
        name: tuple(spec) for name, (x, spec) in plan.optimizer_specs().items() if "squares['tables.large" in name and x.ndim
    }
    assert list(specs.values()) == [tuple(plan.infos["tables.large.table"].spec())[:2]], specs


def test_tables_in_too_few_bins_are_refused():
    """MLPerf's five largest tables are in one bin, which is on no two devices."""
    e = registry.load(MULTI_HOT)
    with pytest.raises(LayoutError, match=r"'bins' of size 1 is not divisible by the 8 shards"):
        make_plan(dataclasses.replace(e, layout=LAYOUTS["table_wise"](2, 4)), abstract=True)


def test_tables_that_are_cut_twice_are_refused():
    """By rows over one axis and by columns over another: one line says so."""
    e = laid_out(NAME, "mixed", MESH[2])
    cut = dict(e.layout.components) | {"tables.middle": (("embed", ("model",)), ("vocab", ("data",)))}
    e = dataclasses.replace(e, layout=dataclasses.replace(e.layout, components=tuple(cut.items())))
    with pytest.raises(LayoutError, match=r"'tables.middle': tables are cut in one dimension, not in 'vocab' and 'embed'"):
        equality.trial(e, 1)
