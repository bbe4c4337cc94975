"""Processes of one run compare what they are about to do. Runs of several are in tests/multi_device."""

import dataclasses
from types import SimpleNamespace

import jax
import pytest

from data import paths
from trainers import processes, runlog


def test_a_disagreement_names_what_differs_and_between_whom():
    """Each setting is named with its value on process 0 and on the first process that has another, or none."""
    common = {"train.seed": "0", "train.steps": "10"}
    settings = [common | {"optimizer.b1": "0.9"}, common | {"optimizer.b1": "0.9"}, common | {"train.seed": "1"}]
    assert processes.disagreement(settings) == (
        "the processes of this run differ: process 2 has optimizer.b1=none, process 0 has 0.9; "
        "process 2 has train.seed=1, process 0 has 0"
    )


def test_a_disagreement_stays_one_short_line():
    """Four settings are named, the others counted, and long values cut."""
    mine, other = ({f"field{n}": letter * 1000 for n in range(9)} for letter in "ab")
    line = processes.disagreement([mine, other])
    assert line.endswith("; and 5 more") and line.count("process 1 has") == 4 and len(line) < 1200


def test_processes_with_other_numbers_of_devices_are_refused(monkeypatch):
    """Every process sees all devices: where one has fewer, none begins to gather anything, which would fail."""
    devices = [SimpleNamespace(process_index=n) for n in (0, 0, 0, 1)]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "devices", lambda: devices)
    with pytest.raises(processes.DisagreementError, match="process 1 has devices=1, process 0 has 3"):
        processes.agree({})


def test_shared_settings_change_with_experiment_folder_and_source(m4, tmp_path, monkeypatch):
    """A field of the experiment, the working folder or one source file that differs is one setting that differs."""
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / "layer.py"
    file.write_text("scale = 1.0\n")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    before = runlog.shared_settings(m4, tmp_path)
    assert {"train.seed", "data.seed", "version of jax", "jax_enable_x64"} < before.keys()

    def changed(after: dict[str, str]) -> set[str]:
        return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

    other = dataclasses.replace(m4, train=dataclasses.replace(m4.train, seed=1))
    assert changed(runlog.shared_settings(other, tmp_path)) == {"train.seed"}
    assert changed(runlog.shared_settings(m4, tmp_path / "other")) == {"workdir"}
    file.write_text("scale = 2.0\n")
    assert changed(runlog.shared_settings(m4, tmp_path)) == {"source models/layer.py"}


def test_no_process_waits_for_one_that_failed(monkeypatch):
    """A failure here is told to the others before it is raised; a failure elsewhere is raised here with its process's number."""
    told = []
    monkeypatch.setattr(processes, "gather", lambda flag: told.append(flag) or [flag, True])
    with pytest.raises(FileNotFoundError):
        processes.jointly(open, "/nowhere/at/all")
    with pytest.raises(processes.DisagreementError, match="process 1 failed; its own output has the error"):
        processes.jointly(str, 5)
    assert told == [True, False]
    monkeypatch.undo()
    assert processes.jointly(str, 5) == "5"
