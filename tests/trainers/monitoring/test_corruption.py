"""Bits that change by themselves are found, and the device or the array is named."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.helpers.runs import changed_steps, curve, events, kept, run, with_train
from trainers import runlog
from trainers.monitoring.corruption import Checker
from trainers.state import State


def one_array(values: list[np.ndarray]) -> tuple[Checker, State]:
    """A state whose one parameter has these values as its replicas, and a checker of a step that changes nothing."""
    devices = jax.devices()[: len(values)]
    everywhere = NamedSharding(Mesh(np.array(devices), ("all",)), PartitionSpec())
    pieces = [jax.device_put(v, d) for v, d in zip(values, devices, strict=True)]
    w = jax.make_array_from_single_device_arrays(values[0].shape, everywhere, pieces)
    zero = jax.device_put(jnp.zeros((), jnp.int32), everywhere)
    state = State(zero, zero, {"w": w}, ())
    plan: Any = SimpleNamespace(mesh=everywhere.mesh, shardings=jax.tree.map(lambda x: x.sharding, state))
    return Checker(plan, lambda state, batch: (state, {})), state


def flipped(x: np.ndarray) -> np.ndarray:
    """The lowest bit of one value, the other way round."""
    y = x.copy()
    y.view(np.uint32).flat[3] ^= 1
    return y


def test_one_flipped_bit_of_one_replica_is_found_and_its_device_named():
    """The third of four replicas differs by a bit; of two it cannot be known which is wrong."""
    x = np.arange(8, dtype=np.float32)
    checker, state = one_array([x, x, flipped(x), x])
    assert checker(state, {})[2] == "params.w has other bits on device 2 (process 0) than on 3 others"
    checker, state = one_array([x, flipped(x)])
    assert "replicas of params.w differ" in checker.replicas(state)
    checker, state = one_array([x, x])
    assert checker(state, {})[2] == ""


@pytest.mark.integration
def test_a_step_that_computes_other_bits_the_second_time_ends_the_run(small, tmp_path, monkeypatch, capsys):
    """Step 4 is computed twice, and one bit of one array differs: the run ends with a code of its own, names the array, and keeps
    checkpoint 2 alone. Without a fault the checks change no number."""

    def corrupt(call: int, state: State, metrics: Any) -> Any:
        if call == 6:  # steps 1, 2 twice, 3, 4 twice
            scale = state.params["final_norm.scale"]
            scale = jax.device_put(flipped(np.asarray(scale)), scale.sharding)
            state = dataclasses.replace(state, params=state.params | {"final_norm.scale": scale})
        return state, metrics

    e = with_train(small, steps=4, log_every=1, checkpoint={"every": 2}, faults={"check_every": 2})
    assert run(e, tmp_path / "sound") == runlog.DONE
    with monkeypatch.context() as patch:
        changed_steps(patch, corrupt)
        assert run(e, tmp_path / "corrupt") == runlog.CORRUPTED
    said = "computed twice, it gave other bits of state.params.final_norm.scale"
    assert f"step 4 is corrupt: {said}; nothing is saved" in capsys.readouterr().out
    assert events(tmp_path / "corrupt", "stop")[0]["error"] == said and kept(tmp_path / "corrupt") == [2]
    assert run(with_train(e, faults={"check_every": 0}), tmp_path / "corrupt") == runlog.DONE
    assert curve(tmp_path / "corrupt") == curve(tmp_path / "sound")
