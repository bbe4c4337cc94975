"""Vectors of texts."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from configs import registry
from models.errors import UserError
from models.families import family_of
from models.parts.nested import changed
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import to_params
from tests.helpers.labelled_packages import write_tokenizer
from tests.helpers.models import ALONE
from trainers.inference.embedding import TextEmbedder
from trainers.inference.load import load
from trainers.weights.source import Arrays


def test_a_texts_vector_does_not_depend_on_its_neighbours(tmp_path):
    """Unit vectors in the order of the texts: a text alone has the vector that it has among others, in a row or in the next."""
    write_tokenizer(tmp_path / "tokenizer.json")
    e = registry.tiny(registry.load("bert.minilm_l6"))
    c = changed(e.model, {"dropout": 0.0})
    served = load(Arrays(c, to_params(jax.jit(lambda: family_of(c).model(c, jax.random.key(0), ALONE))())), e.execution)
    embed = TextEmbedder(served.model, dataclasses.replace(e, layout=ONE_DEVICE), tmp_path)
    texts = ["cat sat mat", "cat", "mat on the mat", *["sat"] * 20]
    vectors = embed(served.params, texts)
    assert vectors.shape == (23, c.model_dim)
    assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    for at in (0, 2, 22):
        assert_allclose(embed(served.params, [texts[at]])[0], vectors[at], atol=1e-5)
    assert abs(vectors[0] - vectors[1]).max() > 0.01


@pytest.mark.parametrize("name", ["gpt.quickstart", "bert.quickstart"])
def test_other_models_give_no_vectors(name, tmp_path):
    """One line names the experiment, and one that does; a family whose models may give vectors has others too."""
    e = registry.tiny(registry.load(name))
    model: Any = family_of(e.model).model(e.model, jax.random.key(0), ALONE)
    with pytest.raises(UserError, match=rf"{name}: this model gives texts no vectors; bert\.minilm_l6 does"):
        TextEmbedder(model, e, tmp_path)
