"""Releases and checkpoints of before still open, and their models compute the same loss (tests/fixtures/before/expected.json)."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.contexts import EVALUATION
from tests.parity import ours
from trainers.weights import load_any

BEFORE = Path(__file__).parent / "fixtures" / "before"
RELEASES = json.loads((BEFORE / "expected.json").read_text())["releases"]


@pytest.mark.integration
@pytest.mark.parametrize("folder", ["releases", "runs"])
@pytest.mark.parametrize("name", RELEASES)
def test_weights_of_before_compute_the_same(name, folder, monkeypatch):
    """The loss of four rows is that of the code that wrote the weights, to single precision; parameters have the same names."""
    monkeypatch.setenv("SHARDZOO_DATA", str(BEFORE))  # a run's vocabulary lies in its cache
    expected, path = RELEASES[name], BEFORE / folder / name
    _, weights = load_any.open_model(path)
    assert {k: list(v) for k, v in weights.shapes.items()} == expected["parameters"]
    batch = {k: jnp.asarray(v, jnp.int32) for k, v in expected["batch"].items()}
    loss = jax.jit(lambda model, batch: model.loss(batch, EVALUATION))(ours.model(weights), batch)
    assert float(loss.value) == pytest.approx(expected["loss"]["tests"], rel=1e-6)
