"""The page of a run: the parts about what its model says."""

import dataclasses
import json
from typing import Any, cast

import jax
import pytest

from configs import registry
from configs.registry import ConfigError
from models.errors import UserError
from models.families import family_of
from models.parts.attention.config import Learned
from models.parts.nested import changed
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import to_params
from scripts import report
from scripts.reports import translations
from tests.helpers.models import ALONE
from tests.helpers.things import write_things
from trainers.weights.source import Arrays


def weights_of(model: Any) -> Arrays:
    """Random weights."""
    return Arrays(model, to_params(jax.jit(lambda: family_of(model).model(model, jax.random.key(0), ALONE))()))


@pytest.mark.integration
def test_the_page_has_scores_baselines_and_examples(tmp_path, monkeypatch):
    """Scores beside three baselines, chrF of each source and language, and a card for each example; nothing is loaded from
    elsewhere. Sounds have no nearest picture."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    cache = write_things(tmp_path, monkeypatch)
    e = registry.tiny(registry.load("multimodal.quickstart"))
    model: Any = dataclasses.replace(e.model, vocab=json.loads((cache / "manifest.json").read_text())["vocabulary"])
    data: Any = dataclasses.replace(e.data, cache="made", seconds=1.6, targets_length=24)
    model = changed(model, {"positions": Learned(rows=24), "towers.audio.source_positions": 80})
    scored: Any = dataclasses.replace(e.eval, limit=16, max_length=8, batch_size=8)
    e = dataclasses.replace(e, model=model, data=data, eval=scored, layout=ONE_DEVICE)
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {n}, "loss": {9 - n}}}\n' for n in range(1, 4)))
    page = report.write(tmp_path, (e, weights_of(model))).read_text()
    for row in ("all", "most frequent text", "nearest picture", "nearest to the model", "seen/cs", "heard/en"):
        assert f'<td dir="auto">{row}</td>' in page
    assert page.count("<h2>") == 9 and page.count('class="card"') == 16 and "http" not in page
    (line,) = [line for line in page.replace("<tr>", "\n").splitlines() if ">heard/en</td>" in line]
    assert line.count('<td class="n"></td>') == 2 and ">seen/en/" not in page


def test_other_models_have_no_such_parts(tmp_path):
    """A model of text is refused in one line."""
    e = registry.tiny(registry.load("gpt.quickstart"))
    with pytest.raises(UserError, match="neither classifies pictures nor writes texts of pictures or sounds"):
        report.outputs(tmp_path, dataclasses.replace(e, layout=ONE_DEVICE), weights_of(e.model))


@pytest.mark.parametrize("number", [2, translations.FEW + 1])
def test_translations_that_were_scored_are_drawn(number, tmp_path, monkeypatch):
    """Scores, of each language in a table or, where they are many, in a picture; translations as text, and the devices of an
    expert tensor; damaged scores are refused."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    e = registry.load("gshard_m4.quickstart")
    folder = tmp_path / "caches" / e.data.cache
    folder.mkdir(parents=True)
    languages = {f"l{i}": {"pairs": 5 + i} for i in range(number)}
    (folder / "manifest.json").write_text(json.dumps({"languages": languages}))
    scores = dict.fromkeys(("stripped_bleu", "bleu", "stripped_chrf", "chrf"), 12.5)
    evaluation = {
        "all": scores,
        "languages": dict.fromkeys(languages, scores),
        "buckets": dict.fromkeys(("high", "middle", "low"), scores),
        "baselines": {"source copied": scores},
        "samples": [{"lang": "l0", "source": "<b>ja</b>", "output": "yes", "reference": "Yes"}],
    }
    (tmp_path / "evaluation.json").write_text(json.dumps(evaluation))
    parts = {title: content for title, content, _ in report.outputs(tmp_path, e, weights=cast(Any, None))}
    assert list(parts) == [
        "Scores on held-out test strings",
        "BLEU by language",
        "Translations of held-out strings",
        "Where an expert tensor lives",
    ]
    rows = 4 if number == 2 else 5  # the model, each language or bucket, and the source
    assert parts["Scores on held-out test strings"].count(">12.5</td>") == rows * 4
    assert bool(parts["BLEU by language"]) == (number > 2)
    assert (
        "&lt;b&gt;ja" in parts["Translations of held-out strings"]
        and "8 experts over 8 devices" in parts["Where an expert tensor lives"]
    )
    (tmp_path / "evaluation.json").write_text(json.dumps(evaluation | {"all": {}}))
    with pytest.raises(ConfigError, match=r"evaluation\.json"):
        report.outputs(tmp_path, e, weights=cast(Any, None))
