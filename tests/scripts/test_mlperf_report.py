"""scripts.mlperf_report on logs with a clock of their own."""

import json
from pathlib import Path

import pytest
from mlperf_logging.mllog import mllog

from configs import registry
from models.errors import UserError
from scripts import mlperf_report
from trainers.measure import mlperf_log, mlperf_rules


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes attempts at translation to BLEU 20 that take so many seconds; None is one that does not get there in 100."""
    now = [0.0]
    monkeypatch.setattr(mllog, "_current_time_ms", lambda: int(1000 * now[0]))
    e = registry.load("gshard_m4.quickstart")
    names = mlperf_rules.benchmark(e, 20.0)
    values = mlperf_rules.settings(e, names) | {
        "submission_benchmark": names.name,
        "submission_division": "open",
        "submission_org": "us",
        "experiment": e.name,
        "submission_platform": "8x cpu",
        "train_samples": 100,
        "eval_samples": 10,
        "cache_clear": False,
    }

    def attempts(*lasting: float | None, **changes) -> Path:
        for seconds in lasting:
            with mlperf_log.Attempt(names, e.data.batch_size, mlperf_log.new_log(tmp_path)) as attempt:
                attempt.describe(now[0], values | changes)
                attempt.start()
                for score in (10.0, 25.0 if seconds else 15.0):
                    now[0] += (seconds or 100) / 2
                    attempt.step += 4
                    attempt.stats(2.0, (seconds or 100) / 8)
                    attempt.eval_start()
                    attempt.eval_stop({names.metric: score}, more=score == 10)
        return tmp_path

    return attempts


def said(folder: Path, monkeypatch, capsys, *options: str) -> tuple[int, str]:
    """The command's exit code and output."""
    monkeypatch.setattr("sys.argv", ["mlperf_report", str(folder), *options])
    return mlperf_report.main(), capsys.readouterr().out


def test_the_score_drops_the_fastest_and_the_slowest(write, monkeypatch, capsys, tmp_path):
    """10, 20, 30 and 50 s make 25 s; throughput is rows over seconds; curves are drawn."""
    picture = tmp_path / "curves.png"
    code, text = said(write(50.0, 10.0, 30.0, 20.0), monkeypatch, capsys, "--plot", str(picture))
    assert code == 0 and "score: 25.00 s to the target" in text and text.count("passes") == 4
    result = mlperf_report.attempts(tmp_path)
    assert [a.seconds for a in result] == [50.0, 10.0, 30.0, 20.0]
    assert result[1].throughput == pytest.approx(32 * 8 / 10)
    assert result[0].scores == [(25 / 60, 128, 10.0), (50 / 60, 256, 25.0)]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_one_attempt_may_miss_the_target(write, monkeypatch, capsys):
    """It counts as the slowest: with 10, 20 and 30 s beside it the score is 25 s. A second one leaves none."""
    folder = write(10.0, None, 20.0, 30.0)
    code, text = said(folder, monkeypatch, capsys)
    assert code == 0 and "score: 25.00 s" in text and text.count("passes as aborted") == 1
    assert "no score: 3 of 5 attempts met" in said(write(None), monkeypatch, capsys)[1]


def test_a_log_that_breaks_off_is_refused(write, monkeypatch, capsys):
    """A killed run's log has no end: the checker says so, it counts as missed, and the exit code is 1."""
    folder = write(10.0, 20.0, 30.0)
    path = folder / "result_2.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    code, text = said(folder, monkeypatch, capsys)
    assert code == 1 and "Required EXACTLY_ONE occurrence of 'run_stop' but found 0" in text
    assert "score: 20.00 s" in text
    shown = json.loads(said(folder, monkeypatch, capsys, "--json")[1])
    assert shown["score_seconds"] == 20 and shown["attempts"][2]["seconds"] is None
    assert shown["attempts"][2]["status"] == ""


def test_different_runs_have_no_common_score(write, monkeypatch, capsys):
    """Attempts on other machines are not averaged; the line says what differs."""
    write(10.0, 20.0)
    _, text = said(write(30.0, submission_platform="4x TPU v4"), monkeypatch, capsys)
    assert "no score: attempts 0 and 2 differ in submission_platform" in text


def test_what_cannot_be_read_or_drawn_is_refused(write, tmp_path, monkeypatch, capsys):
    """A folder without logs, a damaged line, a picture in no known format."""
    with pytest.raises(UserError, match="no MLPerf logs in"):
        said(tmp_path, monkeypatch, capsys)
    folder = write(10.0)
    with pytest.raises(UserError, match=r"format '.doc'; choose from .*png"):
        said(folder, monkeypatch, capsys, "--plot", str(tmp_path / "a.doc"))
    with (folder / "result_0.txt").open("a") as file:
        file.write(":::MLLOG {half")
    with pytest.raises(UserError, match=r"result_0.txt: line .* is no :::MLLOG line"):
        said(folder, monkeypatch, capsys)
