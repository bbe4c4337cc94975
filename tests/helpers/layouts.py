"""The first steps of tiny experiments under layouts of eight devices, beside the same steps on one device.

Results are kept for the process, so that the tests of a family share its runs.
"""

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from configs import registry
from configs.experiment import Experiment
from configs.optimizers import Adafactor, Constant
from models.families import family_of
from scripts.cli import named_layout
from tests.helpers import contracts
from trainers import state
from trainers.hlo import equality
from trainers.hlo.equality import Trial

MESH = {2: (2, 4), 3: (2, 2, 2)}  # by the number of sizes that a layout takes
STEPS = 3
GAVE_UP = "nvoluntary full rematerialization"  # XLA: a tensor is copied whole because nothing better was found


def cases(name: str, keep: Iterable[str] = (), slow: Iterable[str] = (), nightly: Iterable[str] = ()) -> list:
    """(experiment, layout, mesh) for layouts of an experiment's family. `make layouts` runs all of them, of every family.

    Args:
      keep: the layouts that `make test` runs.
      slow: those that `make test-all` has beside them.
      nightly: those that only `make test-nightly` runs.
    """
    makes = family_of(registry.load(name).model).layouts
    return [
        pytest.param(name, layout, MESH[len(makes[layout].axes)], marks=marks)
        for layouts, marks in ((keep, []), (slow, [pytest.mark.slow]), (nightly, [pytest.mark.nightly]))
        for layout in layouts
    ]


def case_id(value: object) -> object:
    """A mesh as 2x4, a name as it is."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else value


@contextlib.contextmanager
def without_program_cache() -> Iterator[None]:
    """Programs are really compiled inside: one that is read from a cache can't warn."""
    for enabled in (False, True):
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()  # JAX decides once, at the first program, whether there is a cache
        if not enabled:
            yield


@contextlib.contextmanager
def said_by_xla() -> Iterator[Callable[[], str]]:
    """Yields a function that returns what was written to the process's standard error inside the block."""
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)

        def text() -> str:
            return os.pread(file.fileno(), 1 << 20, 0).decode()

        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)


@functools.cache
def experiment(name: str) -> Experiment:
    return equality.comparable(registry.tiny(registry.load(name)))


@functools.cache
def initial(name: str) -> state.State:
    """The state before the first step, made on one device."""
    with jax.enable_x64(True):
        return equality.start(experiment(name))


@functools.cache
def reference(name: str) -> Trial:
    """The first steps on one device."""
    with jax.enable_x64(True):
        return equality.reference(experiment(name), STEPS, initial(name))


def run(e: Experiment, start: state.State) -> Trial:
    """The first steps on all devices; fails if XLA gave up on a tensor."""
    with jax.enable_x64(True), without_program_cache(), said_by_xla() as said:
        result = equality.trial(e, STEPS, jax.devices(), start)
        # Between steps a move of padded arrays, to the step's form or from it, may copy one whole; the step itself never.
        moved = ("jit(move_all)", 'op_name="arrays[') if e.layout.pad else ()
        lines = [line for line in said().splitlines() if GAVE_UP in line and not any(name in line for name in moved)]
        assert not lines, f"{e.layout.name}: {lines[0][:600]}"
        return result


def laid_out(name: str, layout: str, mesh: tuple[int, ...]) -> Experiment:
    e = experiment(name)
    return dataclasses.replace(e, layout=named_layout(e, f"{layout}:{case_id(mesh)}"))


@functools.cache
def trial(name: str, layout: str, mesh: tuple[int, ...]) -> Trial:
    return run(laid_out(name, layout, mesh), initial(name))


def assert_equal_to_one_device(name: str, layout: str, mesh: tuple[int, ...]) -> None:
    """Losses and parameters of the first three steps and the first gradients equal those of one device to 1e-9 in double
    precision, tokens go to the same experts, and the step sends what its contract says, if it has one."""
    want, got = reference(name), trial(name, layout, mesh)
    far = equality.differences(got, want)
    assert max(far["losses"], far["gradients"], far["parameters"]) < 1e-9 and far["routing"] < 1e-6, far
    assert len({float(m["loss"]) for m in want.metrics}) == STEPS  # the steps do something
    contracts.assert_kept(laid_out(name, layout, mesh), got.collectives)


def assert_variant_equal_to_one_device(e: Experiment, layout: str) -> None:
    """The same of an experiment that is no experiment's own, as one with other settings of its model, without a contract."""
    with jax.enable_x64(True):
        start = equality.start(e)
        want = equality.reference(e, STEPS, start)
    far = equality.differences(run(dataclasses.replace(e, layout=named_layout(e, layout)), start), want)
    assert max(far["losses"], far["gradients"], far["parameters"]) < 1e-9, far
    assert len({float(m["loss"]) for m in want.metrics}) == STEPS


@functools.cache
def random_reference(name: str, length: int) -> tuple[Experiment, state.State, Trial]:
    """An experiment with random draws, in rows of this length unless 0, its first state, and the first steps on one device."""
    e = registry.tiny(registry.load(name))
    e = dataclasses.replace(e, model=dataclasses.replace(e.model, dropout=0.1))
    if length:
        e = dataclasses.replace(e, data=dataclasses.replace(e.data, batch_size=2, length=length))
    e = dataclasses.replace(equality.exact(e), optimizer=Adafactor(schedule=Constant(value=0.3)))
    with jax.enable_x64(True):
        start = equality.start(e)
        return e, start, equality.reference(e, STEPS, start)


def assert_same_draws(name: str, layout: str, length: int = 0) -> None:
    """With dropout and second experts dropped at random, and Adafactor's factored statistics, losses are those of one device."""
    e, start, want = random_reference(name, length)
    result = run(dataclasses.replace(e, layout=family_of(e.model).layouts[layout](2, 4)), start)
    far = equality.differences(result, want)
    assert max(far["losses"], far["parameters"]) < 1e-9 and far["routing"] < 1e-6, far
