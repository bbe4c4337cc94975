"""Tests of the second tier: which local checkpoints are whole and sound, on which mesh they are read, when they are deleted."""

import dataclasses
import errno
import functools
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from configs import registry
from configs.experiment import LocalTier
from configs.registry import ConfigError
from data import paths
from models.gpt.layouts import LAYOUTS
from tests.helpers.runs import changed_steps, curve, kept, run, shared_steps, with_train
from tests.helpers.waiting import HANGS
from trainers import runlog, trainer
from trainers.checkpoints import local
from trainers.checkpoints.checkpoint import CheckpointError, Damaged, Sound
from trainers.checkpoints.local import LocalCheckpoints, Save
from trainers.checkpoints.manager import Checkpoints
from trainers.monitoring import metrics
from trainers.plan import Plan, in_model_form, in_step_form, make_plan
from trainers.state import State, by_name, from_names


@pytest.fixture(scope="module", autouse=True)
def equal_steps():
    with shared_steps():
        yield


@functools.cache
def plan(*mesh: int) -> Plan:
    """A tiny model, fully sharded on a mesh of these sizes."""
    e = registry.tiny(registry.load("gpt.quickstart"))
    layout = LAYOUTS["fully_sharded"](*mesh)
    return make_plan(dataclasses.replace(e, layout=layout), jax.devices()[: layout.devices])


def at_step(step: int, *mesh: int) -> State:
    """A state of random numbers, which differ from step to step."""
    rng = np.random.default_rng(step)
    arrays = {
        name: jax.device_put(rng.normal(size=x.shape).astype(x.dtype), x.sharding)
        for name, x in by_name(plan(*mesh).model_form).items()
    }
    arrays["step"] = jax.device_put(np.full_like(arrays["step"], step), arrays["step"].sharding)
    return in_step_form(plan(*mesh), from_names(plan(*mesh).state, arrays))


def bits(p: Plan, state: State) -> dict[str, bytes]:
    return {name: np.asarray(x).tobytes() for name, x in by_name(in_model_form(p, state)).items()}


ONE, EIGHT = (1, 1), (2, 4)


@pytest.fixture
def tier(tmp_path) -> Callable[..., LocalCheckpoints]:
    """Opens a start's local checkpoints; each has a name of its own, as random ones have."""

    def opened(workdir: str = "run", say: Callable[[str], Any] = print) -> LocalCheckpoints:
        (tmp_path / workdir).mkdir(exist_ok=True)
        return LocalCheckpoints(tmp_path / workdir, LocalTier(every=1, folder=str(tmp_path / "host")), say)

    return opened


def write(at: LocalCheckpoints, *steps: int, mesh: tuple[int, int] = ONE, **kwargs: Any) -> None:
    for step in steps:
        at.save(plan(*mesh), at_step(step, *mesh), "data", **{"owed": None, "pinned": None} | kwargs)
    at.wait()


def files(at: LocalCheckpoints) -> list[Path]:
    return sorted(at.folder.iterdir())


def steps_of(at: LocalCheckpoints) -> list[int]:
    return sorted(int(path.name.split(".")[0]) for path in files(at))


# --- whole, partial and damaged ones -----------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [(2, 4), (4, 2), (8, 1), (1, 1)])
def test_a_state_comes_back_with_the_same_bits_on_any_mesh(tier, after):
    """Eight devices write it; it is read on the same mesh and on others."""
    at = tier()
    write(at, 7, mesh=EIGHT)
    (save,) = tier().saves()
    outcome = tier().read(save, plan(*after), "data")
    assert isinstance(outcome, Sound) and save == Save(7, at.start)
    read = from_names(plan(*after).state, outcome.arrays)
    assert bits(plan(*after), in_step_form(plan(*after), read)) == bits(plan(*EIGHT), at_step(7, *EIGHT))
    for name, form in by_name(plan(*after).model_form).items():
        assert outcome.arrays[name].sharding == form.sharding


def divide(path: Path, start: str, processes: int, copies: int = 1) -> list[Path]:
    """Makes a process's file the files of several, as if each had a part of the devices; each piece is in some of them."""
    with np.load(path) as archive:
        meta, members = json.loads(archive["meta"].tobytes()), {name: archive[name] for name in archive.files if name != "meta"}
    parts = []
    for process in range(processes):
        own = {
            name: [piece for n, piece in enumerate(pieces) if (process - n) % processes < copies]
            for name, pieces in meta["pieces"].items()
        }
        held = {member: members[member] for pieces in own.values() for _, member in pieces}
        text = np.frombuffer(json.dumps(meta | {"pieces": own}).encode(), np.uint8)
        parts.append(path.with_name(f"{path.name.split('.')[0]}.{start}.{process}.npz"))
        np.savez(parts[-1], **held, meta=text)
    return parts


@pytest.mark.parametrize("mesh", [EIGHT, ONE, (4, 2)])
def test_the_files_of_several_processes_are_one_state_and_nothing_less_is(tier, mesh):
    """All of three processes' files are needed, or two where each piece is in two of them; no mesh is given holes."""
    at = tier()
    write(at, 7, mesh=EIGHT)
    whole = bits(plan(*EIGHT), at_step(7, *EIGHT))
    for copies, needed in ((1, 3), (2, 2)):
        for gone in range(4 - needed):
            start = f"{10 * copies + gone:08x}"
            for path in divide(files(at)[-1], start, 3, copies)[:gone]:
                path.unlink()
            outcome = at.read(Save(7, start), plan(*mesh), "data")
            assert isinstance(outcome, Sound if 3 - gone >= needed else Damaged)
            if isinstance(outcome, Sound):
                assert {name: np.asarray(x).tobytes() for name, x in outcome.arrays.items()} == whole
            else:
                assert "process 0 has not all of" in outcome.why


def test_a_part_of_another_start_is_no_part_of_a_state(tier):
    """Two starts came to step 7, and half of each is left: neither is whole, and the halves are not put together."""
    at = tier()
    write(at, 7, mesh=EIGHT)
    for number, start in enumerate(("aaaaaaaa", "bbbbbbbb")):
        divide(files(at)[-1], start, 2)[number].unlink()
    next(path for path in files(at) if at.start in path.name).unlink()
    assert [save.start for save in at.saves()] == ["bbbbbbbb", "aaaaaaaa"]
    assert all(isinstance(at.read(save, plan(*EIGHT), "data"), Damaged) for save in at.saves())


def test_no_damaged_file_is_believed(tier):
    """Cut anywhere, or with a bit flipped anywhere: the file is refused, or every bit of the state is what was written."""
    at, rng, refused = tier(), random.Random(0), 0
    write(at, 7)
    (path,) = files(at)
    content, whole = path.read_bytes(), bits(plan(*ONE), at_step(7, *ONE))
    spoiled = [content[: rng.randrange(len(content))] for _ in range(10)] + [b"", content[:-1], b"PK", bytes(1000)]
    for _ in range(60):
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        spoiled.append(bytes(flipped))
    for other in spoiled:
        path.write_bytes(other)
        outcome = at.read(Save(7, at.start), plan(*ONE), "data")
        refused += isinstance(outcome, Damaged)
        if isinstance(outcome, Sound):
            assert {name: np.asarray(x).tobytes() for name, x in outcome.arrays.items()} == whole
        else:
            assert isinstance(outcome, Damaged) and outcome.why
    assert refused > 14 + 30  # the others are in fields of the archive that say nothing of the arrays


def test_a_file_under_another_name_is_not_of_that_step(tier):
    """A copy of step 7 is no step 9."""
    at = tier()
    write(at, 7)
    shutil.copy(files(at)[0], at.folder / f"9.{at.start}.0.npz")
    outcome = at.read(Save(9, at.start), plan(*ONE), "data")
    assert isinstance(outcome, Damaged) and "copy of checkpoint 7" in outcome.why


# --- what stays ----------------------------------------------------------------------------------------------------------


def test_the_newest_three_stay_and_what_an_earlier_start_left_until_there_are_two(tier):
    """The third save deletes what is older than the two before it, also of other processes; the newest ones stay."""
    first = tier()
    write(first, 1, 2)
    divide(files(first)[-1], first.start, 3)
    again = tier()
    write(again, 3, 4)
    assert steps_of(again) == [1, 2, 2, 2, 3, 4]
    write(again, 5)
    assert steps_of(again) == [3, 4, 5]
    write(again, 6, 7)
    assert steps_of(again) == [5, 6, 7]


def test_a_state_that_the_store_waits_for_stays(tier):
    """Step 2 is pinned until it is not; what other processes wrote in this start is theirs."""
    at = tier()
    write(at, 1)
    write(at, 2, 3, 4, 5, 6, pinned=2)
    assert steps_of(at) == [2, 4, 5, 6]
    other = files(at)[0].rename(at.folder / f"2.{at.start}.1.npz")
    write(at, 7, 8)
    assert steps_of(at) == [2, 6, 7, 8] and other.exists()


def test_only_the_save_that_was_restored_stays_at_a_start(tier):
    """Later, older and half-written ones go; then the folder of a run that ends, and the run's name for it."""
    at = tier()
    write(at, 1, 2, 3)
    (at.folder / f".4.{at.start}.0.npz.unfinished").write_text("half")
    at.forget(but=Save(2, at.start))
    assert steps_of(at) == [2]
    at.remove()
    assert not at.folder.exists() and not (at.folder.parent.parent / "run" / local.IDENTITY).exists()


def test_a_full_disk_is_said_once_and_stops_nothing(tier, monkeypatch):
    """Saves at steps 2 and 3 fail; a line says so, another one that step 4 was written, and no half is left."""
    said: list[str] = []
    at, real = tier(say=said.append), np.savez
    write(at, 1)

    def full(file: Any, **members: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    write(at, 2)
    write(at, 3)
    monkeypatch.setattr(np, "savez", real)
    write(at, 4)
    assert steps_of(at) == [1, 4]
    assert [line.partition(" (")[0] for line in said] == ["a local save failed", "local saves succeed again"]
    assert "No space left on device); training goes on" in said[0]


# --- which checkpoint a run goes on from -----------------------------------------------------------------------------------


@pytest.fixture
def both(tmp_path) -> Callable[..., tuple[Checkpoints, list[str]]]:
    """Opens both tiers of a run, and what they say."""

    def opened(workdir: Path = tmp_path / "run", **changes: Any) -> tuple[Checkpoints, list[str]]:
        said: list[str] = []
        settings = dataclasses.replace(
            plan(*ONE).experiment.train.checkpoint, **{"local": LocalTier(every=1, folder=str(tmp_path / "host"))} | changes
        )
        workdir.mkdir(exist_ok=True)
        return Checkpoints(workdir, settings, say=said.append), said

    return opened


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(plan(*ONE), at_step(step, *ONE), "data", final=True)


def save_locally(checkpoints: Checkpoints, *steps: int, scores: dict[str, float] | None = None) -> None:
    for step in steps:
        checkpoints.save_locally(plan(*ONE), at_step(step, *ONE), "data", scores)
    assert checkpoints._local
    checkpoints._local.wait()


def restored(checkpoints: Checkpoints, **kwargs: Any) -> tuple[int, str]:
    """(The step that a run goes on from, or -1; the tier); every bit is what was saved."""
    state = checkpoints.restore(plan(*ONE), kwargs.pop("fingerprint", "data"), **kwargs)
    checkpoints.close()
    if state is None:
        return -1, checkpoints.origin
    step = int(state.step)
    assert bits(plan(*ONE), state) == bits(plan(*ONE), at_step(step, *ONE))
    return step, checkpoints.origin


def in_both(both: Callable, *, stored: tuple[int, ...] = (10, 20), on_host: tuple[int, ...] = (18, 21, 22)) -> list[Path]:
    """Saves checkpoints in both tiers, and returns the local files."""
    checkpoints, _ = both()
    save(checkpoints, *stored)
    save_locally(checkpoints, *on_host)
    checkpoints.close()
    return files(checkpoints._local)


@pytest.mark.parametrize(
    ("on_host", "wanted"),
    [((18, 21, 22), (22, "a local checkpoint")), ((18, 20), (20, "a local checkpoint")), ((5, 18), (20, "a checkpoint"))],
)
def test_the_newest_of_both_tiers_is_restored(both, on_host, wanted):
    """Whichever holds it; then hosts keep that one alone."""
    in_both(both, on_host=on_host)
    checkpoints, said = both()
    assert restored(checkpoints) == wanted and not said
    assert steps_of(checkpoints._local) == [wanted[0]] * (wanted[1] == "a local checkpoint")


def test_damaged_local_ones_give_way_to_older_ones_and_to_the_store(both):
    """Step 22 is cut off, 21 is of no process: a line names each. Step 20 of the store is restored."""
    in_both(both)
    for path in in_both(both, stored=()):
        if path.name.startswith("22"):
            path.write_bytes(path.read_bytes()[:-100])
        else:
            path.unlink()
    checkpoints, said = both()
    assert restored(checkpoints) == (20, "a checkpoint")
    assert len(said) == 2 and all(line.startswith("local checkpoint") for line in said)
    assert "22 is damaged or not whole (22." in said[0] and said[0].endswith("trying the one before it")
    assert steps_of(checkpoints._local) == []


def test_a_damaged_checkpoint_of_the_store_gives_way_to_an_older_local_one(both):
    """Local 18 is newer than 10, which is all that the store has left; the damaged one is moved aside."""
    in_both(both, on_host=(17, 18))
    checkpoints, said = both()
    (Path(checkpoints.folder) / "20" / "_CHECKPOINT_METADATA").write_text("[")
    shutil.rmtree(Path(checkpoints.folder) / "20" / "state")
    assert restored(checkpoints) == (18, "a local checkpoint")
    assert "20 is damaged" in said[0] and kept(Path(checkpoints.folder).parent) == [10]


def test_a_rewind_goes_to_a_checkpoint_of_the_store_and_forgets_the_local_ones(both):
    """Hosts may have lost theirs, so that only the store's are the same in every start."""
    in_both(both)
    checkpoints, _ = both()
    assert int(checkpoints.restore(plan(*ONE), "data").step) == 22
    assert int(checkpoints.restore(plan(*ONE), "data", until=21).step) == 20
    assert steps_of(checkpoints._local) == [22]
    checkpoints.forget_after(20)
    assert steps_of(checkpoints._local) == []
    checkpoints.close()


def test_local_checkpoints_of_another_experiment_are_refused(both):
    """The error names the difference; nothing is deleted."""
    left = in_both(both, stored=())
    checkpoints, _ = both()
    with pytest.raises(CheckpointError, match=r"local checkpoint .*22 is of another experiment: the prepared data changed"):
        restored(checkpoints, fingerprint="other")
    assert files(checkpoints._local) == left


def test_runs_that_are_not_this_one_are_not_looked_at(both, tmp_path):
    """A new folder in the place of a run's, and a copy of one, have no local checkpoints; neither has a run that went on without
    them in between, since they are of another past."""
    in_both(both)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert restored(both(tmp_path / "copy")[0]) == (20, "a checkpoint")
    shutil.copytree(tmp_path / "run", tmp_path / "later")
    (tmp_path / "run").rename(tmp_path / "away")
    assert restored(both()[0]) == (-1, "")
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "away").rename(tmp_path / "run")
    assert restored(both(local=LocalTier())[0]) == (20, "a checkpoint")
    assert restored(both()[0]) == (20, "a checkpoint")


def test_a_checkpoint_that_was_under_way_is_written_from_its_local_copy(both, tmp_path):
    """The run was killed before checkpoint 20 was written, at a later step: 20 is not lost, nor its score; 15 had no save."""
    checkpoints, _ = both(best="eval/accuracy", keep=1)
    save(checkpoints, 10)
    save_locally(checkpoints, 15)
    save_locally(checkpoints, 20, scores={"eval/accuracy": 0.9})
    save_locally(checkpoints, 21)
    checkpoints.close()
    again, said = both(best="eval/accuracy", keep=1)
    assert restored(again) == (21, "a local checkpoint")
    assert said == ["checkpoint 20 was under way when the last start ended; it is written from its local copy"]
    last, _ = both(best="eval/accuracy", keep=1)
    last.save(plan(*ONE), at_step(30, *ONE), "data", {"eval/accuracy": 0.2}, final=True)
    last.close()
    assert kept(tmp_path / "run") == [20, 30]


def test_a_checkpoint_that_the_store_has_deleted_since_is_not_written_again(both, tmp_path):
    """Steps 10, 20 and 30 were saved in both tiers, and the store keeps one: the local copies of the others owe it nothing."""
    checkpoints, _ = both(keep=1)
    for step in (10, 20, 30):
        save(checkpoints, step)
        save_locally(checkpoints, step, scores={})
    checkpoints.close()
    again, said = both(keep=1)
    assert restored(again) == (30, "a local checkpoint") and not said
    assert kept(tmp_path / "run") == [30]


def test_settings_that_make_no_sense_are_refused():
    """A tier without a place, at an address, or at a negative interval."""
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"every": 5}, "every=5 needs a `folder` on each host"),
        ({"every": 5, "folder": "gs://bucket/run"}, "must be a path on each host"),
        ({"every": -1, "folder": "x"}, "every=-1 must be at least 0"),
    )
    for settings, said in refused:
        with pytest.raises(ValueError, match=said):
            LocalTier(**settings)


# --- runs --------------------------------------------------------------------------------------------------------------------


class Lost(BaseException):
    """The end of a process, for which nothing is prepared."""


def lost_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Ends the run after this call of the step, in which no save can be made any more."""

    def change(call: int, state: State, values: Any) -> Any:
        if call == step:
            raise Lost
        return state, values

    changed_steps(monkeypatch, change)


@pytest.mark.integration
def test_a_run_goes_on_from_its_local_checkpoint_with_the_same_numbers(small, tmp_path, monkeypatch, capsys):
    """Lost at step 8, with a checkpoint at 5 and local ones at 2, 4, 5 and 6: it goes on from 6 and logs what a run logs that
    nothing stopped. In the end no host holds anything of it."""
    host = tmp_path / "host"
    e = with_train(small, steps=10, log_every=1, checkpoint={"every": 5, "local": LocalTier(every=2, folder=str(host))})
    assert run(with_train(e, checkpoint={"local": LocalTier()}), tmp_path / "whole") == runlog.DONE
    with monkeypatch.context() as patch:
        lost_at(patch, 8)
        with pytest.raises(Lost):
            run(e, tmp_path / "lost")
    (folder,) = host.iterdir()
    assert sorted(int(path.name.split(".")[0]) for path in folder.iterdir()) == [4, 5, 6]
    assert metrics.read(tmp_path / "lost")[-1]["step"] == 7
    assert run(e, tmp_path / "lost") == runlog.DONE
    assert "starting at step 6 from a local checkpoint" in capsys.readouterr().out
    assert curve(tmp_path / "lost") == curve(tmp_path / "whole") and kept(tmp_path / "lost") == kept(tmp_path / "whole")
    assert not list(host.iterdir()) and not (tmp_path / "lost" / local.IDENTITY).exists()


@pytest.mark.integration
@pytest.mark.nightly
def test_kills_at_random_moments_lose_nothing_that_was_complete():
    """Six SIGKILLs, most of them while a state is written: each start goes on from the newest complete checkpoint of either tier,
    and the run ends with the bits of one that was left alone."""
    command = [sys.executable, "-m", "tests.faults", "--kills", "6", "--runs", "two tiers", "--json"]
    result = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, timeout=HANGS, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (tally,) = json.loads(result.stdout)
    assert tally["kills"] == 6 and tally["in_saves"] > 0


@pytest.mark.integration
def test_a_diverged_run_leaves_no_local_states(small, tmp_path, monkeypatch):
    """They are of steps that the user will not go on from; the store's, which are sound, stay."""

    def poisoned(call: int, state: State, values: Any) -> Any:
        if call > 4:
            state = dataclasses.replace(state, skipped=state.skipped + 1)
            values = values | {"loss": values["loss"] * np.nan, "skipped": np.int32(call - 4)}
        return state, values

    changed_steps(monkeypatch, poisoned)
    tier = LocalTier(every=1, folder=str(tmp_path / "host"))
    e = with_train(small, steps=40, log_every=1, checkpoint={"every": 2, "local": tier}, faults={"max_nonfinite": 3})
    assert run(e, tmp_path / "run") == runlog.DIVERGED
    assert kept(tmp_path / "run") == [2, 4] and not list((tmp_path / "host").iterdir())


def test_a_benchmark_has_no_local_checkpoints(small, tmp_path):
    """An attempt starts at step 0 and never resumes: the setting is refused before anything is written."""
    e = with_train(small, checkpoint={"local": LocalTier(every=1, folder=str(tmp_path / "host"))})
    with pytest.raises(ConfigError, match=r"train\.checkpoint\.local\.every=1: a benchmark's run.*never resumes"):
        trainer.check_settings(e, trainer.mlperf_log.Request(folder=tmp_path / "log"), None)
    assert not list(tmp_path.iterdir())
