"""A model of pictures is trained, drawn on a page, and scored over what its experts can hold."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from configs import registry
from configs.optimizers import AdamW, Constant
from models.errors import UserError
from models.parts.nested import changed
from models.sharding.layouts import ONE_DEVICE
from scripts import report
from scripts.lab import capacity
from scripts.reports import pictures
from tests.helpers.pictures import write_picture_cache
from tests.helpers.runs import run
from trainers import trainer
from trainers.weights.load_any import open_model

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data folder with 60 pictures of two classes."""
    root = tmp_path_factory.mktemp("data")
    write_picture_cache(root, {"ant": 30, "bee": 30}, validation=0.2, test=0.2)
    return root


@pytest.fixture(scope="module")
def workdir(data, tmp_path_factory) -> Path:
    """A short run of a small mixture on them."""
    e = registry.tiny(registry.load("vit.moe_quickstart"))
    sizes = {"height": 8, "width": 8, "channels": 3}
    patches = {f"patches.{name}": size for name, size in sizes.items()}
    e = dataclasses.replace(
        e,
        layout=ONE_DEVICE,
        model=changed(e.model, {"patches.size": 2, "head.classes": 2} | patches),
        data=dataclasses.replace(e.data, cache="toy", batch_size=8, mean=(0.5,) * 3, std=(0.25,) * 3, **sizes),
        optimizer=AdamW(schedule=Constant(value=1e-2)),
        train=dataclasses.replace(e.train, steps=20, eval_every=20),
        eval=dataclasses.replace(e.eval, batch_size=4),
    )
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDZOO_DATA", str(data))
        assert run(e, folder) == trainer.DONE
    return folder


@pytest.fixture(autouse=True)
def here(data, monkeypatch):
    monkeypatch.setenv("SHARDZOO_DATA", str(data))


@pytest.mark.slow
def test_the_page_has_all_pictures(workdir):
    """Curves, mistakes with the accuracy, confusion and attention; nothing is loaded from elsewhere."""
    page = report.write(workdir, open_model(workdir)).read_text()
    titles = ("Loss", "Scores", "Expert load", "Surest mistakes", "Confusion", "Where it looks")
    assert page.count("<img") == 8 and all(f"<h2>{title}" in page for title in titles)
    assert (
        "vit.moe_quickstart" in page
        and "of 12 pictures of test right" in page
        and "http" not in page.replace("http://www.w3.org", "")
    )


def test_mistakes_are_shown():
    """Each with both classes; places that are left over are empty."""
    figure = Figure()
    wrong = [pictures.Mistake(np.eye(4)[..., None], "ant", "bee", 0.9), pictures.Mistake(np.ones((4, 4, 1)), "bee", "ant", 0.8)]
    assert pictures.mistakes(figure, wrong).startswith("2 pictures")
    shown = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in shown] == ["ant,\nnot bee: 90%", "bee,\nnot ant: 80%"]


@pytest.mark.slow
def test_capacity_is_what_decides(workdir, capsys):
    """Enough slots give the scores of a slot for every choice, in either order; one slot an expert gives others."""
    arguments = ["--checkpoint", str(workdir), "--factors", "0.01,8", "--score", "eval/cross_entropy"]
    assert capacity.main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    few, enough = result["rows"]
    for order in ("batch_priority", "first_come"):
        assert enough[order] == pytest.approx(result["dropless"], rel=1e-5)
        assert abs(few[order] - result["dropless"]) > 1e-4
    assert few["batch_priority"] != few["first_come"]
    with pytest.raises(UserError, match=r"--score eval/acuracy.*eval/accuracy"):
        capacity.main(["--checkpoint", str(workdir), "--factors", "8", "--score", "eval/acuracy"])
