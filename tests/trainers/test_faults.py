"""Faults inside one process: divergence, stores that fail, and signals before a run begins."""

import dataclasses
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from models.errors import exit_code
from tests.helpers.runs import changed_steps, curve, events, fill_disk_of, kept, run, shared_steps, with_train
from tests.helpers.waiting import HANGS, wait_until
from trainers import runlog
from trainers.checkpoints import checkpoint
from trainers.monitoring import metrics
from trainers.state import State


@pytest.fixture(scope="module", autouse=True)
def equal_steps():
    with shared_steps():
        yield


# --- divergence ------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_divergence_leaves_sound_checkpoints_and_the_next_start_its_allowance(small, tmp_path, monkeypatch, capsys):
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
    e = with_train(small, steps=40, log_every=1, checkpoint={"every": 2, "keep": 2}, faults={"max_nonfinite": 5})
    for _ in range(2):
        assert run(e, tmp_path) == runlog.DIVERGED
        assert kept(tmp_path) == [2, 4] and metrics.read(tmp_path)[-1]["step"] == 10
        assert "step 6: not saved, since every step after 4 was skipped" in capsys.readouterr().out


# --- stores that fail --------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_failing_store_delays_saves_and_ends_the_run_past_its_limit(small, tmp_path, monkeypatch, capsys):
    """Saves at steps 2 and 4 fail: each is named, training goes on, step 6 is saved and no number changes. Where all fail, the
    run ends after one more than `train.checkpoint.max_failures`, with a line and a code of its own, and goes on later."""
    real, attempts = checkpoint.Manager.save, []
    broken = {1, 2}

    def save(self, step: int, *args: Any, **kwargs: Any) -> Any:
        attempts.append(step)
        if len(attempts) in broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, step, *args, **kwargs)

    e = with_train(small, steps=6, log_every=1, checkpoint={"every": 2, "keep": 10})
    assert run(e, tmp_path / "sound") == runlog.DONE
    monkeypatch.setattr(checkpoint.Manager, "save", save)
    assert run(with_train(e, checkpoint={"max_failures": 2}), tmp_path / "delayed") == runlog.DONE
    said = capsys.readouterr().out
    assert "checkpoint 2 could not be saved" in said and "No space left on device); training goes on" in said
    assert attempts == [2, 4, 6] and kept(tmp_path / "delayed") == [6]
    assert curve(tmp_path / "delayed") == curve(tmp_path / "sound")

    attempts.clear()
    broken = set(range(2, 100))
    with pytest.raises(runlog.StoreError, match=r"checkpoint 6 could not be saved .*; 2 in a row were not written"):
        run(with_train(e, checkpoint={"max_failures": 1}), tmp_path / "full")
    assert kept(tmp_path / "full") == [2] and events(tmp_path / "full", "stop")[0]["exit_code"] == runlog.UNSAVED
    broken = set()
    assert run(e, tmp_path / "full") == runlog.DONE
    assert curve(tmp_path / "full") == curve(tmp_path / "sound")


@pytest.mark.integration
@pytest.mark.parametrize("name", ["metrics.jsonl", pytest.param("tensorboard", marks=pytest.mark.slow)])
def test_a_disk_that_is_full_ends_the_run_and_a_free_one_lets_it_go_on(small, tmp_path, monkeypatch, name):
    """A log cannot be written from step 4 on: the run ends there with its code, also in its record.
    The same command then gives what a run gives that was never stopped."""
    e = with_train(small, steps=6, log_every=1, checkpoint={"every": 3})
    assert run(e, tmp_path / "sound") == runlog.DONE

    def full(call: int, state: State, metrics: Any) -> Any:
        if call == 4:
            fill_disk_of(tmp_path / "full" / name)
        return state, metrics

    with monkeypatch.context() as patch:
        changed_steps(patch, full)
        with pytest.raises(runlog.StoreError, match=rf"{name}.* cannot be written: No space left on device"):
            run(e, tmp_path / "full")
    assert kept(tmp_path / "full") == [3] and events(tmp_path / "full", "stop")[0]["exit_code"] == runlog.UNSAVED
    assert run(e, tmp_path / "full") == runlog.DONE
    assert curve(tmp_path / "full") == curve(tmp_path / "sound")


@pytest.mark.integration
def test_a_save_under_way_that_fails_as_the_run_ends_is_one_line(small, tmp_path, monkeypatch):
    """The disk is full for the logs and for the checkpoint that is being written: that is no bug, with a traceback."""

    def full(call: int, state: State, metrics: Any) -> Any:
        if call == 4:
            fill_disk_of(tmp_path / "metrics.jsonl")
            monkeypatch.setattr(checkpoint.Manager, "wait_until_finished", unfinished)
        return state, metrics

    def unfinished(self) -> None:
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

    changed_steps(monkeypatch, full)
    e = with_train(small, steps=6, log_every=1, checkpoint={"every": 0})
    with pytest.raises(runlog.StoreError, match=r"the last save failed .*RESOURCE_EXHAUSTED"):
        run(e, tmp_path)
    assert events(tmp_path, "stop")[0]["exit_code"] == runlog.UNSAVED


def test_a_full_disk_has_its_code_wherever_it_is_met():
    """An error of the system about a full disk or a quota ends a command with 74; others have their own code or the given one."""
    for number in (errno.ENOSPC, errno.EDQUOT):
        assert exit_code(OSError(number, "full"), 2) == runlog.UNSAVED
    assert exit_code(runlog.StoreError("full"), 2) == runlog.UNSAVED
    assert exit_code(OSError(errno.ENOENT, "missing"), 2) == 2 and exit_code(KeyError(), 1) == 1


@pytest.mark.integration
def test_a_full_disk_under_the_output_ends_a_run_in_one_line(tmp_path):
    """Its output goes to a file that cannot grow: the run ends with its code and without a traceback."""
    command = [sys.executable, "-m", "scripts.train", "gpt.quickstart", "--tiny", "--workdir", str(tmp_path)]
    flags = {"XLA_FLAGS": ""}  # as many devices as the command simulates
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=os.environ | flags, check=False)
    assert (ended.returncode, ended.stderr) == (runlog.UNSAVED, "error: [Errno 28] No space left on device\n")


# --- signals before a run begins ------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_place_in_the_imports_loses_a_signal(number, tmp_path):
    """A child is forked where one of 20 functions, or a callback of importlib, is called first. It gets the signal there and ends
    with its code and its line, whatever catches exceptions around it."""
    words = tmp_path / "words"
    command = [sys.executable, "-m", "tests.scripts.interrupted", number.name, "20", str(words)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    signals = int(lines[-1].removesuffix(" signals"))
    assert lines == lines[-1:] and signals > 30
    assert words.read_text() == f"error: stopped by {number.name}; run the same command again\n" * signals


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_imports_ends_with_its_code_and_one_line(number, tmp_path):
    """As soon as the process listens, which is before it imports anything large, a signal means: run the same command again."""
    command = [sys.executable, "-m", "scripts.train", "gpt.quickstart", "--tiny", "--workdir", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    listens = 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGINT - 1)

    def listening() -> bool:
        status = Path(f"/proc/{process.pid}/status").read_text()
        return int(status.split("SigCgt:")[1].split()[0], 16) & listens == listens

    wait_until(listening, "the process does not listen", every=0.001)
    process.send_signal(number)
    out, err = process.communicate(timeout=HANGS)
    assert (process.returncode, out, err) == (75, "", f"error: stopped by {number.name}; run the same command again\n")
    assert not (tmp_path / "run").exists()
