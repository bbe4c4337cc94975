"""`--prepare` fetches what an experiment starts from, and nothing else."""

import pytest

from configs import registry
from data.packages import weights
from scripts import train
from scripts.recipes import prepare as recipes
from tests.parity.live import FIXTURES


@pytest.mark.parametrize(
    ("name", "want"),
    {
        "bert.minilm_debian_sections_1k": ["minilm_l6", "debian_sections_1k"],
        "gpt.quickstart": ["gpt_small"],
        "gpt.gspmd_1t": [],
    }.items(),
)
def test_prepare_fetches_what_is_read(name, want, monkeypatch):
    """Weights by name and the cache; an experiment on random tokens needs nothing."""
    asked = []
    monkeypatch.setattr(weights, "fetch_weights", asked.append)
    monkeypatch.setattr(recipes, "prepare", asked.append)
    train.prepare(registry.load(name))
    assert asked == want


def test_prepare_takes_the_vocabulary_of_the_weights(monkeypatch):
    """Where the data leaves its vocabulary open, it is that of the folder which the run starts from."""
    asked = []
    monkeypatch.setattr(recipes, "prepare", lambda cache, vocabulary: asked.append((cache, vocabulary)))
    e, folder = registry.load("nllb.catalogues"), FIXTURES / "translator_nllb"
    train.prepare(e.with_finetune(init_from=str(folder)))
    assert asked == [("m4_quickstart_released", folder)]
