"""Processes of one run compare what they are about to do. Runs of several are in tests/multi_device."""

import dataclasses
import re
from types import SimpleNamespace

import jax
import pytest

from data import paths
from trainers import runlog
from trainers.runtime import processes


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


@pytest.mark.parametrize(
    ("flags", "differ"),
    [
        ("--a=1 --b", {}),
        ("--b   --a=1 --xla_force_host_platform_device_count=3 --xla_dump_to=/tmp/dump", {}),  # of this process alone
        ("--a=1 --b --xla_cpu_enable_fast_math=true", {"XLA_FLAGS --xla_cpu_enable_fast_math": "true"}),
        ("--a=1 --b --a=2", {"XLA_FLAGS --a": "2"}),  # the last one counts
    ],
)
def test_flags_of_xla_are_compared_one_by_one(tmp_path, monkeypatch, flags, differ):
    """Their order does not matter, nor whether they stand in a file; flags that show or place a process are left out."""
    monkeypatch.setenv("XLA_FLAGS", "--a=1 --b")
    before = processes.jax_settings()
    assert before.items() >= {("XLA_FLAGS --a", "1"), ("XLA_FLAGS --b", "set")}
    (tmp_path / "flags").write_text(flags.replace(" ", "\n"))
    for value in (flags, str(tmp_path / "flags")):
        monkeypatch.setenv("XLA_FLAGS", value)
        assert dict(processes.jax_settings().items() - before.items()) == differ
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_x=1")
    assert processes.jax_settings()["LIBTPU_INIT_ARGS --xla_tpu_x"] == "1"


def test_all_settings_of_jax_that_can_change_a_number_are_compared():
    """Settings that are left out show a process, place it or keep its caches: none names precision, random numbers or types."""
    compared = processes.jax_settings()
    assert {
        "jax_enable_x64",
        "jax_default_matmul_precision",
        "jax_default_prng_impl",
        "jax_random_seed_offset",
        "jax_threefry_partitionable",
        "jax_numpy_dtype_promotion",
        "jax_softmax_custom_jvp",
        "jax_use_shardy_partitioner",
        "jax_disable_most_optimizations",
        "jax_debug_nans",
        "jax_platforms",
    } < compared.keys()
    left_out = jax.config.values.keys() - compared.keys()
    assert left_out and not [name for name in left_out if re.search("prng|random|precision|dtype|x64|opt", name)]


def test_no_process_waits_for_one_that_failed(monkeypatch):
    """A failure here is told to the others before it is raised; a failure elsewhere is raised here with its process's number."""
    flags = []
    monkeypatch.setattr(processes, "gather", lambda flag: flags.append(flag) or [flag, True])
    with pytest.raises(FileNotFoundError):
        processes.jointly(open, "/nowhere/at/all")
    with pytest.raises(processes.DisagreementError, match="process 1 failed; its own output has the error"):
        processes.jointly(str, 5)
    assert flags == [True, False]
    monkeypatch.undo()
    assert processes.jointly(str, 5) == "5"
