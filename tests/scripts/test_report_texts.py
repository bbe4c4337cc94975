"""The page of a model that writes texts of pictures and sounds."""

import dataclasses
import json
from typing import Any

import jax
import pytest

from configs import registry
from models.errors import UserError
from models.families import family_of
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import to_params
from scripts import report_texts
from tests.helpers.models import ALONE
from tests.helpers.things import write_things
from trainers.weights.source import Arrays


def weights_of(model: Any) -> Arrays:
    """Random weights."""
    return Arrays(model, to_params(jax.jit(lambda: family_of(model).model(model, jax.random.key(0), ALONE))()))


def test_the_page_has_scores_baselines_and_examples(tmp_path, monkeypatch):
    """Curve, scores beside three baselines, chrF of each source and language, and a card for each example; nothing is loaded from
    elsewhere. Sounds have no nearest picture."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    cache = write_things(tmp_path, monkeypatch)
    e = registry.tiny(registry.load("multimodal.quickstart"))
    model: Any = dataclasses.replace(e.model, vocab=json.loads((cache / "manifest.json").read_text())["vocabulary"])
    data: Any = dataclasses.replace(e.data, cache="made", seconds=1.6, targets_length=24)
    model = dataclasses.replace(model, max_positions=24, whisper=dataclasses.replace(model.whisper, source_positions=80))
    scored: Any = dataclasses.replace(e.eval, limit=16, max_length=8, batch_size=8)
    e = dataclasses.replace(e, model=model, data=data, eval=scored, layout=ONE_DEVICE)
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "loss": {9 - n}}}\n' for n in range(1, 4)))
    page = report_texts.write(tmp_path, e, weights_of(model)).read_text()
    for row in ("all", "most frequent text", "nearest picture", "nearest to the model", "seen/cs", "heard/en"):
        assert f"<td>{row}</td>" in page
    assert page.count("<h2>") == 4 and page.count('class="card"') == 16 and "http" not in page
    (line,) = [line for line in page.replace("<tr>", "\n").splitlines() if "<td>heard/en</td>" in line]
    assert line.count('<td class="n"></td>') == 2 and "<td>seen/en/" not in page


def test_other_models_have_no_such_page(tmp_path):
    """A model of text is refused in one line."""
    e = registry.tiny(registry.load("gpt.quickstart"))
    with pytest.raises(UserError, match="does not write texts of pictures or sounds"):
        report_texts.write(tmp_path, dataclasses.replace(e, layout=ONE_DEVICE), weights_of(e.model))
