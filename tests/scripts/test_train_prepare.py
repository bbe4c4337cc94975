"""`--prepare` fetches what an experiment starts from, and nothing else."""

import pytest

from configs import registry
from data.packages import weights
from scripts import train
from scripts.recipes import teach


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
    monkeypatch.setattr(teach, "prepare", asked.append)
    train.prepare(registry.load(name))
    assert asked == want
