"""Faults inside one process: spikes, corruption, divergence, stores that fail, and signals before a run begins."""

import dataclasses
import errno
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.helpers.runs import changed_steps, curve, run, with_train
from trainers import checkpoint, metrics, runlog, trainer
from trainers.corruption import Checker
from trainers.state import State


def events(workdir: Path, event: str) -> list[dict]:
    return [found for found in runlog.events(workdir) if found["event"] == event]


def kept(workdir: Path) -> list[int]:
    return sorted(int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdigit())


# --- spikes --------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_spike_sends_the_run_back_and_past_its_batches(m4, tmp_path, monkeypatch, capsys):
    """Batches 8 and 9 spike: the run goes back from step 9 to checkpoint 6 and takes batches 10, 11, ... from there; a run that
    is stopped after it and goes on logs the same numbers."""
    asked: list[int] = []

    class Batches(trainer.Batches):
        def __call__(self, step: int) -> Any:
            asked.append(step)
            return super().__call__(step)

    monkeypatch.setattr(trainer, "Batches", Batches)
    changed_steps(
        monkeypatch,
        lambda call, state, metrics: (
            state,
            metrics | {"loss": metrics["loss"] * (9.0 if asked[-1] in (8, 9) else 1.0)},
        ),
    )
    e = with_train(m4, steps=12, log_every=1, save_every=3, spike=3.0, spike_skip=4)
    assert run(e, tmp_path / "whole") == trainer.DONE
    assert asked == [*range(9), *range(10, 16)]
    assert "going back to step 6, and from there past 4 batches" in capsys.readouterr().out
    (rewind,) = events(tmp_path / "whole", "rewind")
    assert (rewind["at"], rewind["to"], rewind["skip"]) == (9, 6, 4)
    assert [line["step"] for line in curve(tmp_path / "whole")] == list(range(1, 13))

    for steps in (10, 12):
        assert run(with_train(e, steps=steps), tmp_path / "stopped") == trainer.DONE
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")


# --- corruption ------------------------------------------------------------------------------------------------------


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
    """Of four replicas the third differs by a bit; of two it cannot be known which is wrong."""
    x = np.arange(8, dtype=np.float32)
    checker, state = one_array([x, x, flipped(x), x])
    assert checker(state, {})[2] == "params.w has other bits on device 2 (process 0) than on 3 others"
    checker, state = one_array([x, flipped(x)])
    assert "replicas of params.w differ" in checker.replicas(state)
    checker, state = one_array([x, x])
    assert checker(state, {})[2] == ""


@pytest.mark.integration
def test_a_step_that_computes_other_bits_the_second_time_ends_the_run(m4, tmp_path, monkeypatch, capsys):
    """Step 4 is computed twice, and one bit of one array differs: the run ends with a code of its own, names the array, and keeps
    checkpoint 2 alone. Without a fault the checks change no number."""

    def corrupt(call: int, state: State, metrics: Any) -> Any:
        if call == 6:  # steps 1, 2 twice, 3, 4 twice
            params = dict(state.params)
            params["softmax"] = jax.device_put(flipped(np.asarray(params["softmax"])), params["softmax"].sharding)
            state = dataclasses.replace(state, params=params)
        return state, metrics

    e = with_train(m4, steps=4, log_every=1, save_every=2, check_every=2)
    assert run(e, tmp_path / "sound") == trainer.DONE
    with monkeypatch.context() as patch:
        changed_steps(patch, corrupt)
        assert run(e, tmp_path / "corrupt") == trainer.CORRUPTED
    said = "computed twice, it gave other bits of state.params.softmax"
    assert f"step 4 is corrupt: {said}; nothing is saved" in capsys.readouterr().out
    assert events(tmp_path / "corrupt", "stop")[0]["error"] == said and kept(tmp_path / "corrupt") == [2]
    assert run(with_train(e, check_every=0), tmp_path / "corrupt") == trainer.DONE
    assert curve(tmp_path / "corrupt") == curve(tmp_path / "sound")


# --- divergence ------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_divergence_leaves_sound_checkpoints_and_the_next_start_its_allowance(m4, tmp_path, monkeypatch, capsys):
    """From step 4 on every step is skipped: checkpoints 2 and 4 stay, though two are kept and one is due at every second step.
    Another start skips as many steps again before it gives up."""

    def poisoned(call: int, state: State, metrics: Any) -> Any:
        del call
        if int(state.step) > 4:
            past = int(state.step) - 4
            state = dataclasses.replace(state, skipped=state.skipped + 1)
            metrics = metrics | {"loss": metrics["loss"] * jnp.nan, "skipped": jnp.int32(past)}
        return state, metrics

    changed_steps(monkeypatch, poisoned)
    e = with_train(m4, steps=40, log_every=1, save_every=2, keep=2, max_nonfinite=5)
    for _ in range(2):
        assert run(e, tmp_path) == trainer.DIVERGED
        assert kept(tmp_path) == [2, 4] and metrics.read(tmp_path)[-1]["step"] == 10
        assert "step 6: not saved, since every step after 4 was skipped" in capsys.readouterr().out


# --- stores that fail --------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_failing_store_delays_saves_and_ends_the_run_past_its_limit(m4, tmp_path, monkeypatch, capsys):
    """Saves at steps 2 and 4 fail: each is named, training goes on, step 6 is saved and no number changes. Where all fail, the
    run ends after one more than `train.save_failures`, with a line and a code of its own, and goes on later."""
    real, attempts = checkpoint._Manager.save, []
    broken = {1, 2}

    def save(self, step: int, *args: Any, **kwargs: Any) -> Any:
        attempts.append(step)
        if len(attempts) in broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, step, *args, **kwargs)

    e = with_train(m4, steps=6, log_every=1, save_every=2, keep=10)
    assert run(e, tmp_path / "sound") == trainer.DONE
    monkeypatch.setattr(checkpoint._Manager, "save", save)
    assert run(with_train(e, save_failures=2), tmp_path / "delayed") == trainer.DONE
    said = capsys.readouterr().out
    assert "checkpoint 2 could not be saved" in said and "No space left on device); training goes on" in said
    assert attempts == [2, 4, 6] and kept(tmp_path / "delayed") == [6]
    assert curve(tmp_path / "delayed") == curve(tmp_path / "sound")

    attempts.clear()
    broken = set(range(2, 100))
    with pytest.raises(runlog.StoreError, match=r"checkpoint 6 could not be saved .*; 2 in a row were not written"):
        run(with_train(e, save_failures=1), tmp_path / "full")
    assert kept(tmp_path / "full") == [2] and events(tmp_path / "full", "stop")[0]["exit_code"] == runlog.UNSAVED
    broken = set()
    assert run(e, tmp_path / "full") == trainer.DONE
    assert curve(tmp_path / "full") == curve(tmp_path / "sound")


# --- signals before a run begins ------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_imports_ends_with_its_code_and_one_line(number, tmp_path):
    """As soon as the process listens, which is before it imports anything large, a signal means: run the same command again."""
    command = [sys.executable, "-m", "scripts.train", "gpt.quickstart", "--tiny", "--workdir", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    listens, deadline = 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1), time.monotonic() + 60
    while time.monotonic() < deadline:
        status = Path(f"/proc/{process.pid}/status").read_text()
        if int(status.split("SigCgt:")[1].split()[0], 16) & listens == listens:
            break
        time.sleep(0.001)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (75, "", f"error: stopped by {number.name}; run the same command again\n")
    assert not (tmp_path / "run").exists()
