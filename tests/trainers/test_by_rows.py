"""Steps that change the rows alone that a batch reads: their numbers, and what they are not offered for."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from configs.optimizers import AdaGrad, AdamW, LazyAdam, Sgd
from configs.registry import ConfigError
from data.reading.batches import Batches
from data.reading.examples import open_source
from models.parts.nested import changed
from tests.helpers.row_updates import ADAGRAD, NAMES, RATE, ROW_WISE, copies, experiment, whole
from trainers import state, step
from trainers.hlo import equality
from trainers.plan import fresh_state, make_plan

LAZY = LazyAdam(schedule=RATE, eps=1e-3)


@pytest.mark.parametrize(
    ("rule", "rows"),
    [
        (ADAGRAD, NAMES),
        (AdaGrad(schedule=RATE, by_row=True), NAMES),
        (Sgd(schedule=RATE), NAMES),
        (LAZY, NAMES),
        (Sgd(schedule=RATE, momentum=0.9), set()),
        (AdamW(schedule=RATE), set()),
    ],
    ids=lambda x: type(x).__name__,
)
def test_rules_that_leave_other_rows_alone_are_applied_by_rows(rule, rows):
    """AdaGrad, gradient descent without momentum, and LazyAdam; Adam and momentum move every row."""
    assert make_plan(experiment(rule), abstract=True).by_rows.keys() == rows


def test_tables_of_fewer_rows_than_ids_are_changed_whole():
    """1,024 examples have 2,048 ids of small tables, which have 320 rows, and 3,072 of middle ones, which have 2,432;
    LazyAdam goes by rows all the same."""
    e = changed(experiment(), {"data.batch_size": 1024})
    assert make_plan(e, abstract=True).by_rows.keys() == {"tables.large.table"}
    assert make_plan(changed(experiment(LAZY), {"data.batch_size": 1024}), abstract=True).by_rows.keys() == NAMES


def test_lazy_adam_is_refused_where_a_model_reads_all_rows():
    """In one line, with the parameter and the nearest rule."""
    e = dataclasses.replace(experiment(), optimizer=LAZY)
    with pytest.raises(ConfigError, match=r"'bottom.layer_0.bias' by rows, but the model reads it whole; the nearest is AdamW"):
        make_plan(e, abstract=True)
    e = experiment(LAZY).with_finetune(freeze_layers=1)
    with pytest.raises(ConfigError, match=r"LazyAdam changes 'tables.large.table' by rows, but train.finetune.freeze_layers=1"):
        make_plan(e, abstract=True)


def test_the_state_has_one_form():
    """A checkpoint fits a step by rows and one by whole tables: arrays have the same names and shapes."""
    e = experiment()
    by_rows, dense = (make_plan(x, abstract=True) for x in (e, changed(e, {"data.batch_size": 65_536})))
    assert by_rows.by_rows and not dense.by_rows
    assert state.by_name(by_rows.state) == state.by_name(dense.state)


def trials(e: Any, monkeypatch: pytest.MonkeyPatch, steps: int = 3) -> tuple[equality.Trial, equality.Trial]:
    """The first steps by rows, and by whole tables."""
    start = equality.start(e)
    got = equality.reference(e, steps, start)
    with monkeypatch.context() as patch:
        whole(patch)
        return got, equality.reference(e, steps, start)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (ROW_WISE, {"train.clip_norm": 0.05, "train.microbatches": 2}),
        pytest.param(ADAGRAD, {}, marks=pytest.mark.slow),
        pytest.param(Sgd(schedule=RATE), {"train.clip_norm": 0.05}, marks=pytest.mark.slow),
    ],
    ids=["row-wise, clipped, in microbatches", "adagrad", "descent, clipped"],
)
def test_steps_equal_those_of_whole_tables(rule, settings, float64, monkeypatch):
    """Losses, norms and parameters of three steps to 1e-9; rows that no batch reads keep every bit."""
    e = changed(experiment(rule), settings)
    got, want = trials(e, monkeypatch)
    far = equality.differences(got, want)
    assert max(far["losses"], far["gradients"], far["parameters"]) < 1e-9, far
    for a, b in zip(got.metrics, want.metrics, strict=True):
        assert_allclose(a["gradient_norm"], b["gradient_norm"], rtol=1e-9)
    assert want.metrics[0]["gradient_norm"] > 0.05  # it is clipped, where it is
    start = equality.start(e).params
    for name in NAMES:
        untouched = (np.asarray(want.parameters[name]) == start[name]).all(-1)
        assert 0.3 < untouched.mean() < 1
        assert_array_equal(np.asarray(got.parameters[name])[untouched], start[name][untouched])


@pytest.mark.integration
def test_lazy_adam_is_adam_of_the_rows_that_are_read(float64):
    """Its first step is Adam's where a batch reads; rows that only the first batch reads rest in the second step."""
    e = experiment(LAZY)
    first, second = (equality.reference(e, n, equality.start(e)).parameters for n in (1, 2))
    adam = experiment(AdamW(schedule=RATE, eps=LAZY.eps))
    want, want_second = (equality.reference(adam, n, equality.start(adam)).parameters for n in (1, 2))
    start = equality.start(e).params
    for name in NAMES:
        assert_allclose(first[name], want[name], rtol=1e-9, atol=1e-12)
        read = (first[name] != start[name]).any(-1)
        stays = (second[name] == first[name]).all(-1)
        assert (read & stays).any() and (~read & ~stays).any()
        assert (want_second[name] != want[name])[read & stays].all()


@pytest.mark.integration
def test_a_step_that_is_not_finite_changes_no_row(float64):
    """Tables and their sums of squares keep every bit; the step is counted."""
    plan = make_plan(experiment(), jax.devices()[:1])
    compiled, current = step.compile_step(plan), fresh_state(plan)
    batches = Batches(open_source(plan.experiment.data, plan.experiment.model), plan.experiment.data, plan.batch_shardings())
    before, batch = jax.device_get(current), batches(0)
    batches.close()
    after, metrics = compiled(current, batch | {"dense": batch["dense"] * np.float32(np.nan)})
    assert int(metrics["skipped"]) == 1
    jax.tree.map(assert_array_equal, after.params, before.params)


@pytest.mark.integration
def test_a_step_has_no_second_table(monkeypatch):
    """Beside its state, which it changes in place, a step by rows needs less than the smallest table; one by whole tables has a
    gradient of all."""

    def compiled() -> Any:
        with jax.enable_x64(True):
            return step.compile_step(make_plan(experiment(rows=64), jax.devices()[:1]))

    sizes = [x.size for name, x in make_plan(experiment(rows=64), abstract=True).state.params.items() if name in NAMES]
    program = compiled()
    memory = program.memory_analysis()
    assert not copies(program.as_text(), min(sizes))
    assert memory.temp_size_in_bytes < 8 * min(sizes) and memory.alias_size_in_bytes > 8 * sum(sizes)
    whole(monkeypatch)
    assert compiled().memory_analysis().temp_size_in_bytes > 8 * sum(sizes)


def test_experiments_say_which_tables_go_by_rows():
    """MLPerf's large tables do; its others have fewer rows than a batch has ids."""
    assert make_plan(registry.load("dlrm.dcnv2"), abstract=True).by_rows.keys() == {"tables.large.table"}
