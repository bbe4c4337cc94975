"""The comparison of runs, on made-up metrics."""

import json

import pytest

from configs.registry import ConfigError
from scripts import compare_runs


def write(folder, **values):
    """A run whose losses and accuracies are logged every 10 steps."""
    folder.mkdir()
    rows = [{"step": 10 * (i + 1)} | {f"eval/{k}": v[i] for k, v in values.items()} for i in range(3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"step": 1, "loss": 9}, *rows]))
    return str(folder)


@pytest.fixture
def runs(tmp_path):
    return [
        write(tmp_path / "a", cross_entropy=[5, 4, 3], accuracy=[0.1, 0.2, 0.3]),
        write(tmp_path / "b", cross_entropy=[4, 3, 2], accuracy=[0.1, 0.1, 0.2]),
    ]


def test_a_run_reaches_the_first_ones_last_value(runs, capsys):
    """3 is reached at step 20 of 30; an accuracy of .3 never is, though it is greater than others."""
    compare_runs.main([*runs, "--json"])
    a, b = map(json.loads, capsys.readouterr().out.splitlines())
    assert (a["reached"], a["share"], b["reached"], b["share"]) == (30, 1.0, 20, 20 / 30)
    compare_runs.main([*runs, "--metric", "eval/accuracy", "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[1])["reached"] is None


def test_curves_are_drawn(runs, tmp_path, capsys):
    compare_runs.main([*runs, "--plot", str(tmp_path / "curves.png")])
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "0.67 of the first run's" in capsys.readouterr().out


def test_what_no_run_logged_is_refused(runs, tmp_path):
    with pytest.raises(ConfigError, match=r"has no metric 'eval/acuracy'; did you mean 'eval/accuracy'\?"):
        compare_runs.main([*runs, "--metric", "eval/acuracy"])
    with pytest.raises(ConfigError, match=r"is no run: it has no metrics.jsonl"):
        compare_runs.main([str(tmp_path)])
