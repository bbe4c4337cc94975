"""Ladders of small runs: their sizes, what a page says of them, and that a prediction must have been written down before."""

import dataclasses
import json

import pytest

from models.errors import UserError
from scripts.lab import ladder
from scripts.reproductions import training
from trainers.measure.loss_law import Law, Point, fit

# The decoder's; the others are for `make test-slow`.
NAMES = [name if name == "decoder" else pytest.param(name, marks=pytest.mark.slow) for name in ladder.LADDERS]
LAW = Law(floor=1.7, log_a=14.0, log_b=16.5, size=0.3, tokens=0.4, experts=0.25)


@pytest.mark.parametrize("name", NAMES)
def test_a_large_run_has_ten_times_the_flops_of_the_largest_small_one(name):
    """By the model's own count, and none of the small runs is the large one."""
    of_name = ladder.LADDERS[name]
    flops = [ladder._size(of_name.experiment(rung)) * rung.steps for rung in of_name.rungs]
    target = ladder._size(of_name.experiment(of_name.target)) * of_name.target.steps
    assert len(flops) >= 6 and 10 <= target / max(flops) < 12


def _made(**target) -> dict:
    run = {"width": 16, "steps": 250, "experts": 4, "size": 4e4, "tokens": 5.12e5, "loss": 5.5, "losses": [5.4, 5.6]}
    large = {"width": 96, "steps": 4000, "experts": 16, "size": 5e5, "tokens": 8.2e6, "times": 10.2, "predicted": 3.5}
    large |= {"without_one": [3.41, 3.62], "earlier": [{"commit": "cde", "predicted": 3.3}]}
    return {"runs": [run], "law": dataclasses.asdict(LAW), "error": 0.0031, "target": large | target, "commit": "abc"}


def test_a_page_has_the_law_the_runs_and_the_prediction():
    """The large run stands there once it has been trained, with the commit of what was predicted."""
    text = ladder.page({"mixture": _made()})
    assert "L = 1.700 + ((1.2e+06 / (N E^0.250))^0.750 + 1.47e+07 / D)^0.400" in text and "to 0.31%" in text
    assert f"| 16 | 4 | 40,000 | 0.51 M | 5.500 | 5.400, 5.600 | {LAW.loss(4e4, 5.12e5, 4):.3f} |" in text
    assert "10.2 times the FLOPs: **3.500** (3.410 to 3.620 with one of" in text and "Measured" not in text
    text = ladder.page({"mixture": _made(loss=3.4, losses=[3.3, 3.5], committed="def")})
    assert "prediction of commit def: 3.400 (3.300, 3.500)" in text and "off by **+2.94%**" in text
    assert "Predicted before of the same run, by commit cde: 3.300, off by -2.94%." in text


@pytest.mark.integration
def test_a_prediction_that_was_not_committed_does_not_count(tmp_path, monkeypatch):
    """The large run is not trained before its prediction lies in the repository."""
    monkeypatch.setattr(ladder, "FOLDER", tmp_path)
    with pytest.raises(UserError, match=r"decoder\.json: a prediction counts if it was written down before"):
        ladder.main(["decoder", "--target", "--workdir", str(tmp_path / "runs")])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_follows_from_the_runs_that_are_recorded(name, tmp_path, monkeypatch):
    """The runs are those of the present configurations, so that none is trained again."""
    file = ladder.FOLDER / f"{name}.json"
    monkeypatch.setattr(training, "train", lambda folder, arms, seeds: {arm.name: pytest.fail(arm.name) for arm in arms})
    made, of_name = json.loads(file.read_text()), ladder.LADDERS[file.stem]
    assert ladder._trained(tmp_path, of_name, of_name.rungs, made["runs"]) == made["runs"]
    law = fit([Point(run["size"], run["tokens"], run["experts"], run["loss"]) for run in made["runs"]])
    predicted = law.loss(made["target"]["size"], made["target"]["tokens"], made["target"]["experts"])
    assert predicted == pytest.approx(made["target"]["predicted"], abs=5e-4)
