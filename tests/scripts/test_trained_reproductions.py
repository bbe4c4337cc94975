"""Helpers of trained reproductions: arms over seeds, runs that resume or are found finished, error bars and verdicts."""

import math
import os
import signal
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_allclose

from configs import registry
from data.paths import ROOT
from models.errors import UserError
from scripts import cli
from scripts.reproductions import at_once, pictures, training
from scripts.reproductions.entry import Entry, ReproductionError, entries
from tests.helpers.runs import changed_steps


def run_of(tmp_path, *curve: tuple[int, float]) -> training.Run:
    """A run that has logged these held-out losses."""
    return training.Run(tmp_path, False, [{"step": step, "eval/cross_entropy": value} for step, value in curve])


def test_a_mean_has_the_standard_error_of_its_sample():
    """1, 2 and 3 have mean 2 and a standard deviation of 1, so that the error is 1 / sqrt 3; one value has none."""
    result = training.mean([1.0, 2.0, 3.0])
    assert result.value == 2 and result.error == pytest.approx(1 / math.sqrt(3)) and result.freedom == 2
    assert str(result) == "2 +- 0.58" and str(training.mean([4.0])) == "4"


def test_differences_are_taken_seed_by_seed():
    """A difference that all arms of a seed share cancels: 1 apart at every seed is 1 +- 0, however far apart the seeds
    are. A figure that no seed changes is taken from each."""
    assert training.differences([11.0, 21.0, 31.0], [10.0, 20.0, 30.0]) == [1.0, 1.0, 1.0]
    assert training.less([11.0, 21.0, 31.0], [10.0, 20.0, 30.0]) == training.Mean(1.0, 0.0, 2)
    assert training.less([1.0, 3.0], 2) == training.Mean(0.0, 1.0, 1)


def test_the_error_of_a_sample_is_added_to_that_over_seeds():
    """Their squares are; a single seed has none of its own. The larger the sample's part, the more degrees of freedom."""
    both = training.sampled(training.Mean(1.0, 0.3, 2), 0.4)
    assert (both.value, both.error, both.freedom) == (1.0, 0.5, pytest.approx(2 * (0.5 / 0.3) ** 4))
    assert training.sampled(training.Mean(1.0, None), 0.3, 0.4) == training.Mean(1.0, 0.5, math.inf)


def test_a_shorter_experiment_ends_with_its_schedule():
    """Steps, schedule, evaluations and checkpoints agree; other fields are changed as on a command line."""
    e: Any = registry.load("gpt.quickstart")
    short: Any = training.shortened(e, 40, "--train.log_every=5", evaluations=4)
    assert (short.train.steps, short.optimizer.schedule.steps, short.optimizer.schedule.warmup) == (40, 40, 4)
    assert (short.train.eval_every, short.train.checkpoint.every, short.train.log_every) == (10, 20, 5)
    as_it_is: Any = training.shortened(e, 80, warm=False)
    assert as_it_is.optimizer.schedule.warmup == e.optimizer.schedule.warmup and as_it_is.train.eval_every == 0


def test_a_claim_needs_its_side_of_zero_by_students_t():
    """Three seeds need 4.3 standard errors: 3 are noise, on the other side it is the opposite; the row says which."""
    holds, noise, opposite = (training.claim("loss", training.Mean(value, 0.1, 2), -1, "below 0") for value in (-0.5, -0.3, 0.5))
    assert holds.comes_out and holds.differs == "" and holds.deviation is None
    assert not noise.comes_out and noise.differs == "0 is in its interval of 95 %, +- 0.43"
    assert not opposite.comes_out and opposite.differs.startswith("surely the other way round")


def test_steps_to_a_loss_are_counted_between_evaluations(tmp_path):
    """From 5 at step 100 to 3 at step 200, a loss of 4.5 is reached at step 125; 2 is never."""
    run = run_of(tmp_path, (100, 5.0), (200, 3.0))
    assert training.step_to(run, "eval/cross_entropy", 4.5) == 125
    assert training.step_to(run, "eval/cross_entropy", 5.0) == 100
    assert training.step_to(run, "eval/cross_entropy", 2.0) == math.inf


def test_curves_have_the_steps_that_all_seeds_have(tmp_path):
    """A mean over two of three seeds would not be comparable."""
    runs = {"arm": [run_of(tmp_path, (10, 3.0), (20, 2.0)), run_of(tmp_path, (10, 5.0))]}
    (row,) = training.curve_rows(runs, "eval/cross_entropy")
    assert (row.at, row.ours, row.error) == (10, 4.0, 1.0)


def test_pictures_show_curves_or_points_with_errors(tmp_path):
    """Rows with a place are curves by series; other rows are points, and claims have a panel of their own."""
    entry = Entry("toy.entry", "", "trained", ("printed",), 1, "nats", lambda _: iter(()), "A claim.", list)
    claims = [training.claim("b less a", training.Mean(-1.0, 0.1), -1)]
    curves = [training.measured("a, step 1", [1.0, 2.0], series="a", at=1)]
    assert pictures.draw(tmp_path / "curves.svg", entry, [*curves, *claims])
    assert pictures.draw(tmp_path / "points.svg", entry, [training.measured("the loss of a", [1.0, 2.0], 1.5), *claims])
    assert "the loss of a" in (tmp_path / "points.svg").read_text() and "b less a" in (tmp_path / "points.svg").read_text()
    assert not pictures.draw(tmp_path / "none.svg", entry, [])


@pytest.mark.integration
@pytest.mark.slow
def test_runs_resume_and_finished_ones_are_left_alone(tmp_path, monkeypatch):
    """A signal stops the second seed; the same call goes on from its checkpoint and ends with the losses of runs that were never
    stopped. A third call trains nothing, and other settings in the same folder are refused."""
    e = cli.synthetic(registry.tiny(registry.load("gpt.quickstart")))
    arm = training.arm("toy", e, "--train.steps=4", "--train.log_every=1")
    whole = training.train(tmp_path / "whole", [arm], seeds=(0, 1))["toy"]
    first, second = (run.last("loss") for run in whole)
    assert first != second

    def stop_at_six(call, state, metrics):
        if call == 6:  # the second step of the second seed
            os.kill(os.getpid(), signal.SIGTERM)
        return state, metrics

    with monkeypatch.context() as patch:
        calls = iter(range(1, 100))
        changed_steps(patch, lambda _, *result: stop_at_six(next(calls), *result))
        with pytest.raises(ReproductionError, match="toy-seed1 was stopped"):
            training.train(tmp_path / "cut", [arm], seeds=(0, 1))
    starts = (tmp_path / "cut/toy-seed0/run.jsonl").read_text()
    cut = training.train(tmp_path / "cut", [arm], seeds=(0, 1))["toy"]
    assert [run.curve("loss") for run in cut] == [run.curve("loss") for run in whole]
    assert (tmp_path / "cut/toy-seed0/run.jsonl").read_text() == starts
    assert '"restored": 2' in (tmp_path / "cut/toy-seed1/run.jsonl").read_text()
    changed_steps(monkeypatch, lambda call, *result: pytest.fail("a finished run was trained again"))
    again = training.train(tmp_path / "cut", [arm], seeds=(0, 1))["toy"]
    assert [run.curve("loss") for run in again] == [run.curve("loss") for run in whole]
    other = training.arm("toy", arm.experiment, "--train.steps=5")
    with pytest.raises(ReproductionError, match="holds a run with other settings"):
        training.train(tmp_path / "cut", [other], seeds=(0,))


@pytest.mark.integration
@pytest.mark.nightly
def test_runs_at_a_time_are_those_one_after_the_other(tmp_path, capfd, real_draws):
    """Processes of their own train the same, and print on standard error alone."""
    e = cli.synthetic(registry.tiny(registry.load("gpt.quickstart")))
    arms = [
        training.arm(name, e, "--train.log_every=1", f"--train.clip_norm={norm}") for name, norm in {"a": 0, "b": 0.5}.items()
    ]
    alone = training.train(tmp_path / "alone", arms, seeds=(0, 1))
    capfd.readouterr()
    with at_once.processes(2):
        together = training.train(tmp_path / "together", arms, seeds=(0, 1))
        said = capfd.readouterr()
        for name, runs in alone.items():
            for run, other in zip(runs, together[name], strict=True):
                assert_allclose(run.curve("loss"), other.curve("loss"), rtol=1e-5)
        assert "a-seed1: 3 steps" in said.err and said.out == ""
    with pytest.raises(ReproductionError, match="--processes 0: must be at least 1"), at_once.processes(0):
        pass


def a_process(folder: Path, name: str) -> None:
    """Leaves a file; one called "fails" raises once another has begun, and all others wait for a signal."""
    (folder / name).touch()
    while not (name == "fails" and (folder / "waits").exists()):
        time.sleep(0.05)
    raise UserError("it fails")


@pytest.mark.integration
@pytest.mark.slow
def test_an_error_ends_the_others_and_begins_none(tmp_path, capfd):
    """It is said in one line; the process beside it gets a signal, and what was left is not begun."""
    arguments = [(tmp_path, name) for name in ("fails", "waits", "is left")]
    with at_once.processes(2), pytest.raises(ReproductionError, match="a run ended with exit code 2; what it said is above"):
        at_once.call(a_process, arguments)
    assert capfd.readouterr().err.splitlines()[-1] == "error: it fails"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fails", "waits"]
    at_once.call(a_process, arguments)  # not several at a time: the caller does it


def test_what_is_computed_from_weights_is_kept_beside_them(tmp_path):
    """The second call reads the file."""
    run = run_of(tmp_path, (1, 1.0))
    assert training.kept(run, "scores", lambda: {"accuracy": 0.5}) == {"accuracy": 0.5}
    assert training.kept(run, "scores", lambda: pytest.fail("computed again")) == {"accuracy": 0.5}


class Logged(dict):
    """A line of a log, or scores, with a number between .1 and .9 for every name; it lists two of them."""

    def __init__(self, of: str, **values: float):
        super().__init__(values)
        self.of = of
        self |= {name: self[name] for name in ("one", "other")}

    def __missing__(self, name: str) -> float:
        return 0.1 + zlib.crc32(f"{self.of} {name}".encode()) / 2**32 * 0.8

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


@pytest.mark.parametrize("name", [name for name, entry in entries().items() if entry.kind == "trained"])
def test_a_page_has_the_rows_that_its_script_makes(name, tmp_path, monkeypatch):
    """A script makes of made-up runs the rows that its page has, one for one, in the classes that it names: a page whose training
    took an hour cannot fall behind its script unnoticed."""

    def train(folder, arms, seeds=training.SEEDS):
        return {arm.name: [_logged(tmp_path, arm, seed) for seed in seeds] for arm in arms}

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(training, "started", lambda folder, arm: Logged(of="start"))
    monkeypatch.setattr(training, "evaluated", lambda run, name, change=None: Logged(of=f"{run.workdir.name} {name}"))
    monkeypatch.setattr(training, "kept", lambda run, name, compute: Logged(of=f"{run.workdir.name} {name}"))
    rows = list(entries()[name].make(tmp_path))
    lines = (ROOT / "docs" / "reproductions" / f"{name}.md").read_text().splitlines()
    cells = [line[2:].split(" | ") for line in lines if line.startswith("| ")][2:]
    assert [row.label for row in rows] == [label for label, *_ in cells], f"run: python -m scripts.reproduce {name}"
    assert [row.stated for row in rows] == [stated for _, _, stated, *_ in cells]
    assert {row.stated for row in rows} - {"", *entries()[name].stated} <= {"derived"}


def _logged(folder, arm: training.Arm, seed: int) -> training.Run:
    """A run that has logged and evaluated whenever its arm does."""
    e = arm.experiment.train
    every = math.gcd(e.eval_every or e.steps, e.log_every)
    lines = [Logged(of=f"{arm.name} {seed} {step}", step=step) for step in sorted({*range(every, e.steps + 1, every), e.steps})]
    for line in lines:
        if e.eval_every and line["step"] % e.eval_every and line["step"] < e.steps:
            line.update({"eval/cross_entropy": None, "eval/ctc": None})
    return training.Run(folder / f"{arm.name}-seed{seed}", False, lines)
