"""A model of a gridded series is trained, scored with decisions of another split, drawn, and measured beside baselines."""

import dataclasses
import json
import sys

import pytest

from configs import registry
from configs.experiment import Experiment
from configs.optimizers import AdamW, Constant
from data.grids.config import Forecasts, GridData
from models.sharding.layouts import ONE_DEVICE
from scripts import evaluate as evaluate_script
from scripts import forecast
from scripts.lab import halo, nowcast
from tests.helpers.grids import write_grid_cache
from tests.helpers.runs import run
from trainers import trainer
from trainers.monitoring import metrics

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("forecast")
    write_grid_cache(root, steps=120, frames=7, leads=4, motion=True)
    return root


@pytest.fixture(autouse=True)
def here(root, monkeypatch):
    monkeypatch.setenv("SHARDZOO_DATA", str(root))


@pytest.fixture
def e() -> Experiment:
    """The quickstart, tiny, on the prepared series."""
    e = registry.tiny(registry.load("metnet2.quickstart"))
    assert isinstance(e.data, GridData)
    data = dataclasses.replace(
        e.data,
        cache="toy",
        channels=("rain", "wind"),
        target="rain",
        leads=4,
        area=dataclasses.replace(e.data.area, height=8, width=8, target_height=4, target_width=4),
        scored=(1, 4),
        frames=2,
        every=3,
        batch_size=4,
    )
    model = dataclasses.replace(e.model, channels=2, masks=2, leads=4, crop=(4, 4))
    return dataclasses.replace(
        e,
        data=data,
        model=model,
        layout=ONE_DEVICE,
        optimizer=AdamW(schedule=Constant(value=1e-2)),
        eval=Forecasts(batch_size=4),
        train=dataclasses.replace(e.train, steps=6, eval_every=6),
    )


def command(script, monkeypatch, capsys, *arguments: object) -> str:
    """Returns the output of a command."""
    monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
    capsys.readouterr()
    assert not script.main()
    return capsys.readouterr().out


@pytest.mark.slow
def test_from_training_to_a_page(e, tmp_path, monkeypatch, capsys):
    """The loss falls, scores are logged, the test is scored by decisions of the validation, and the page shows both."""
    assert run(e, tmp_path / "run") == trainer.DONE
    lines = metrics.read(tmp_path / "run")
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
    logged = next(line for line in lines if "eval/lead_4/csi_0.2" in line)
    assert 0 <= logged["eval/lead_4/csi_0.2"] <= 1 and logged["eval/lead_1/crps"] > 0

    def scored(*more: str) -> dict[str, float]:
        out = command(evaluate_script, monkeypatch, capsys, "--checkpoint", tmp_path / "run", "--json", *more)
        return json.loads(out)["all"]

    assert scored()["lead_4/brier_1"] == pytest.approx(logged["eval/lead_4/brier_1"], rel=1e-5)
    test = scored("--split", "test")
    assert test["examples"] == 8 and test["lead_4/brier_1"] != pytest.approx(logged["eval/lead_4/brier_1"], rel=1e-3)
    page = tmp_path / "page.html"
    printed = json.loads(command(forecast, monkeypatch, capsys, "--checkpoint", tmp_path / "run", "--to", page, "--json"))
    assert [f["minutes"] for f in printed["forecasts"]] == [5, 10, 15, 20]
    text = page.read_text()
    assert text.count("<img") == 1 and printed["time"] in text
    with pytest.raises(Exception, match="--time 2020-01-01T00:10: no window of test ends there; the nearest is 2020-01-01T09:00"):
        command(forecast, monkeypatch, capsys, "--checkpoint", tmp_path / "run", "--time", "2020-01-01T00:10")


def test_baselines_are_scored_on_the_same_points(e, monkeypatch, capsys):
    """Showers that move a column a step are forecast by a translation; both tables have every lead time and threshold."""
    monkeypatch.setattr(registry, "load", lambda name: e)
    printed = json.loads(command(nowcast, monkeypatch, capsys, "metnet2.quickstart", "--split", "test", "--json"))
    scores = printed["scores"]
    assert set(scores["translation"]) == {
        f"lead_{n}/{k}" for n in (1, 4) for k in ("csi_0.2", "csi_1", "csi_2", "csi_4", "csi_8", "crps")
    }
    assert scores["translation"]["lead_1/csi_0.2"] > 0.8 > scores["persistence"]["lead_1/csi_0.2"]
    table = command(nowcast, monkeypatch, capsys, "metnet2.quickstart")
    assert "20 min" in table and "motion" in table


def test_what_a_convolution_sends_is_printed(monkeypatch, capsys):
    """At a dilation of many shards ours sends less than the plain one, which gathers; at 1 both exchange with neighbours."""
    small = ("--grids", "8x1", "--size", 32, "--channels", 2, "--dilations", "1,16")
    rows = json.loads(command(halo, monkeypatch, capsys, *small, "--json"))["rows"]
    assert rows[1]["ours"]["mib"] < rows[1]["plain"]["mib"] and "all-gather" in rows[1]["plain"]["collectives"]
    assert {tuple(row["ours"]["collectives"]) for row in rows} == {("collective-permute",)}
    assert "8x1" in command(halo, monkeypatch, capsys, *small)
