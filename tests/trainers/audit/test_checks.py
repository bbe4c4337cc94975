"""A log compared with the files that are there, and with what other logs know of it. No run is trained."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from configs import registry
from models.sharding.params import describe
from scripts import sign
from tests.helpers.signatures import keys
from trainers import runlog
from trainers.audit import checks, log
from trainers.audit.saved import Saved
from trainers.plan import abstract_model
from trainers.weights import load_any, release, signing
from trainers.weights.source import Arrays

E = registry.tiny(registry.load("gpt.quickstart"))


def write(run: Path, step: int, content: str = "") -> None:
    """A checkpoint's `meta`."""
    meta = run / "checkpoints" / str(step) / "meta" / "metadata"
    meta.parent.mkdir(parents=True, exist_ok=True)
    meta.write_text(content or f"meta of {step}")


def remove(run: Path, step: int) -> None:
    folder = run / "checkpoints" / str(step)
    (folder / "meta" / "metadata").unlink()
    (folder / "meta").rmdir()
    folder.rmdir()


def start(run: Path, *steps: int, e=E, end: bool = True) -> None:
    """Logs a start that saves these checkpoints, of which the last two stay."""
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    saved = Saved(run, epath.Path(run / "checkpoints"), True)
    record = runlog.Record(run, e, True)
    for step in steps:
        write(run, step)
        if step > 4:
            remove(run, step - 4)
        saved.note("saved")
    if end:
        with record:
            record.end(0, steps[-1])


@pytest.fixture(autouse=True)
def without_git(monkeypatch) -> None:
    """A start asks git for its revision, in a process."""
    monkeypatch.setattr(runlog, "git_revision", lambda: "")


@pytest.fixture
def run(tmp_path) -> Path:
    start(tmp_path / "run", 2, 4, 6)
    return tmp_path / "run"


def problems(run: Path, **options) -> tuple[str, ...]:
    return checks.check(run, **options).problems


def test_a_run_that_nobody_changed_has_no_problems(run):
    """The log has each start with its command and its experiment's digest, each checkpoint that came or went, and each end."""
    checked = checks.check(run)
    assert not checked.problems and not checked.notes
    assert [line["event"] for line in checked.lines] == ["start", *["checkpoints"] * 3, "stop"]
    first, *_, third, _ = checked.lines
    assert first["files"].keys() == {"experiment.json"} and first["command"] and first["config"] == runlog.config_hash(E)
    assert third["files"]["checkpoints/2/meta/metadata"] is None and third["files"]["checkpoints/6/meta/metadata"]
    assert [line["audit"] for line in runlog.events(run)] == [first["digest"], checked.head]
    assert {line["user"] for line in checked.lines} == {log.owner()}


def test_changed_fields_are_named_at_the_next_start(run):
    start(run, 8, e=dataclasses.replace(E, train=dataclasses.replace(E.train, steps=77)))
    (line,) = [line for line in checks.check(run).lines if "changed" in line]
    assert line["changed"] == [f"train.steps: {E.train.steps} -> 77"] and not problems(run)


def replaced(run: Path) -> None:
    write(run, 6, "another")


def edited(run: Path) -> None:
    file = run / "experiment.json"
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 1', 1))


def planted(run: Path) -> None:
    write(run, 5)


def taken_away(run: Path) -> None:
    remove(run, 4)


def put_back(run: Path) -> None:
    write(run, 2)


def without_log(run: Path) -> None:
    (run / log.FILE).unlink()


def cut(run: Path) -> None:
    file = run / log.FILE
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


def anew(run: Path) -> None:
    without_log(run)
    log.record("start", run)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (replaced, "checkpoints/6/meta/metadata is not what was written"),
        (edited, "experiment.json is not what was written"),
        (planted, "checkpoints/5/meta/metadata is there, and no line says who wrote it"),
        (taken_away, "checkpoints/4/meta/metadata is missing, and no line says why"),
        (put_back, "checkpoints/2/meta/metadata is there again, and the log says that it was deleted"),
        (without_log, "audit.jsonl is missing, and other logs have its lines"),
        (cut, "1 lines are missing of which run.jsonl has the digests, the first "),
        (anew, "2 lines are missing of which run.jsonl has the digests, the first "),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_was_done_to_a_run_is_named(run, change, problem):
    change(run)
    assert any(text.startswith(problem) for text in problems(run)), problems(run)


@pytest.mark.parametrize("change", [replaced, edited])
def test_a_later_start_does_not_hide_a_change(run, change):
    """It says itself that the files were not as the run left them, and that stays a problem when they are written anew."""
    change(run)
    name = "experiment.json" if change is edited else "checkpoints/6/meta/metadata"
    start(run, 8, 10)
    assert any("a start met files that somebody had changed" in text and name in text for text in problems(run))


def test_while_a_run_is_under_way_and_after_a_kill_checkpoints_may_come_and_go(run):
    """They are notes, but another content is no accident; the next start logs them."""
    start(run, 8, end=False)
    write(run, 10)
    remove(run, 6)
    checked = checks.check(run)
    assert not checked.problems and len(checked.notes) == 2
    start(run, 12)
    checked = checks.check(run)
    assert not checked.problems and not checked.notes
    (line,) = [line for line in checked.lines if line.get("why") == "at a start"]
    assert {name.split("/")[1]: bool(digest) for name, digest in line["files"].items()} == {"6": False, "10": True}
    start(run, 14, end=False)
    write(run, 14, "another")
    assert problems(run) == ("checkpoints/14/meta/metadata is not what was written",)


def test_an_older_run_has_no_log_and_goes_on_with_one(tmp_path):
    """Its run.jsonl has no digests, and its checkpoints are logged as they are met."""
    write(tmp_path, 2)
    (tmp_path / "run.jsonl").write_text(json.dumps({"event": "start", "processes": 1}) + "\n")
    assert checks.check(tmp_path).notes == ("has no audit.jsonl: it is older than such logs, or somebody removed it",)
    start(tmp_path, 4)
    assert not problems(tmp_path) and checks.check(tmp_path).lines[0]["why"] == "at a start"


def test_other_folders_of_checkpoints_are_checked_too(tmp_path):
    """A path of train.checkpoint.folder; the run's folder has a file with it."""
    run, at = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    at.mkdir()
    (run / "checkpoints").write_text(f"{at}\n")
    saved = Saved(run, epath.Path(at), True)
    meta = at / "2" / "meta" / "metadata"
    meta.parent.mkdir(parents=True)
    meta.write_text("meta")
    saved.note("saved")
    assert not problems(run)
    meta.write_text("other")
    assert problems(run) == (f"{meta} is not what was written",)


def test_processes_beside_the_first_write_nothing(tmp_path):
    write(tmp_path, 2)
    saved = Saved(tmp_path, epath.Path(tmp_path / "checkpoints"), False)
    saved.note("saved")
    assert not (tmp_path / log.FILE).exists()


# --- the log of all, and releases --------------------------------------------------------------------------------


@pytest.fixture
def common(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(log.FOLDER, str(tmp_path / "common"))
    return tmp_path / "common"


@pytest.fixture
def model(tmp_path, common) -> Path:
    """A release that was signed and logged."""
    shapes = {info.name: info.shape for info in describe(abstract_model(E))}
    arrays = Arrays(E.model, {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()})
    return release.write_weights(arrays, E, tmp_path / "model", "step 6")


def test_a_log_that_was_written_anew_shows_by_the_one_of_all(common, tmp_path, monkeypatch):
    """Also where run.jsonl was changed alike; the log of all has the run's events, with their digests."""
    run = tmp_path / "run"
    start(run, 2, 4, 6)
    logs = checks.common_logs(common)
    assert not problems(run, common=logs) and [line["head"] for line in logs[0].lines] == [
        line["digest"] for line in checks.check(run).lines
    ]
    for name in (log.FILE, "run.jsonl"):
        (run / name).unlink()
    monkeypatch.delenv(log.FOLDER)
    start(run, 8)
    assert not problems(run)
    assert problems(run, common=logs)[0].startswith("5 lines are missing of which $SHARDZOO_AUDIT has the digests, the first ")


def test_who_read_a_model_is_in_the_log_of_all(model, common, tmp_path):
    """With the digest of what was read; the release's own log has who wrote and signed it."""
    load_any.open_model(model)
    (written, read) = checks.common_logs(common)[0].lines
    assert (written["event"], read["event"], read["form"]) == ("release", "read", "a release")
    assert read["path"] == str(model.resolve()) and read["files"] == written["files"] == log.digests(model, release.SUMS)
    assert read["user"] == log.owner() and read["command"]
    assert [line["event"] for line in checks.check(model).lines] == ["release"] and not problems(model)


def test_nothing_is_read_where_it_cannot_be_logged(model, common, monkeypatch):
    (common / "file").write_text("")
    monkeypatch.setenv(log.FOLDER, str(common / "file"))
    with pytest.raises(OSError, match="file"):
        load_any.open_model(model)


def test_what_was_done_to_a_release_is_named(model, tmp_path, monkeypatch):
    """To a file of it, to the list of checksums as well, and to the signature."""
    private, public = keys(tmp_path, "own")
    monkeypatch.setattr("sys.argv", ["sign", str(model), "--key", str(private)])
    sign.main()
    assert not problems(model) and [line["event"] for line in checks.check(model).lines] == ["release", "signed"]
    signature = signing.signature_of(model / release.SUMS)
    other, _ = keys(tmp_path, "other")
    (model / "README.md").write_text("another card\n")
    assert any("README.md is damaged" in text for text in problems(model))
    sums = (model / release.SUMS).read_text().splitlines()
    line = next(line for line in sums if line.endswith("README.md"))
    good = f"{log.digest(model, 'README.md')}  README.md"
    (model / release.SUMS).write_text("".join(f"{good if each == line else each}\n" for each in sums))
    signing.sign(model / release.SUMS, other)
    assert problems(model) == ("SHA256SUMS is not what was written", f"{signature.name} is not what was written")
    monkeypatch.setenv(release.KEY, str(public))
    assert any("is not what the owner of" in text for text in problems(model))


def test_hostile_logs_are_one_line_each(tmp_path):
    """Values of other types, names that leave the folder or are no files: a line each, without control characters."""
    (tmp_path / "run.jsonl").write_text("{}\n")
    os.mkfifo(tmp_path / "pipe")
    for values in ({"files": {"pipe": "0"}}, {"files": {"../" * 20 + "etc/passwd": "0"}}, {"files": 3, "differs": {"a": 1}}):
        log.append(tmp_path / log.FILE, {"event": ["x"], "time": {"\x1b[2J": 1}} | values)
    assert len(problems(tmp_path)) == 2 and not any("\x1b" in text or "\n" in text for text in problems(tmp_path))
    (tmp_path / log.FILE).write_bytes(b"[" * 200_000 + b"\n\xff\n{}\n")
    assert len(problems(tmp_path)) == 3
