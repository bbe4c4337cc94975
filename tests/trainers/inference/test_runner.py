"""Functions of a model that are compiled for one shape of batch, and models that are loaded without an experiment."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from configs import registry
from configs.registry import ConfigError
from data.features import Feature, slots
from models.execution import Execution
from models.interchange import InterchangeError
from models.sharding.layouts import data_parallel
from models.sharding.params import to_params
from tests.helpers.models import model_of
from trainers.inference.load import Served, load
from trainers.inference.runner import Runner
from trainers.weights.source import Arrays

FEATURES = {"numbers": slots(2), "weight": Feature((), (), fill=1)}


def weights() -> Arrays:
    """Random weights of a small decoder."""
    model = model_of("gpt.quickstart")
    return Arrays(model.c, to_params(model))


@pytest.fixture(scope="module")
def served() -> Served:
    return load(weights(), Execution())


def weighted(model, batch, factor=1):
    """Returns sums of numbers times a weight; the model's vocabulary shows that it has its parameters."""
    weight_B = batch["weight"] * factor
    return {"sum": jnp.sum(batch["numbers"], axis=1) * weight_B, "vocab": jnp.full(len(weight_B), model.vocab)}


def test_rows_come_back_in_their_order_without_padding(served):
    """Five examples are two batches of four rows, of which three are filled up; none are an empty result."""
    runner = Runner(served.model, FEATURES, 4, weighted)
    examples = [{"numbers": np.array([n, 1], np.int32), "weight": np.array(2, np.int32)} for n in range(5)]
    outputs = runner.map(served.params, examples)
    assert_array_equal(outputs["sum"], [2, 4, 6, 8, 10])
    assert [len(batch["sum"]) for batch in runner.batches(served.params, examples)] == [4, 4]
    assert [x.shape for x in runner.map(served.params, []).values()] == [(0,), (0,)]
    assert runner.shapes()["vocab"].shape == (4,)


def test_lengths_may_change_and_further_arguments_are_passed_on(served):
    """A feature of length -1 takes batches of any length."""
    runner = Runner(served.model, FEATURES | {"numbers": slots(-1)}, 2, weighted)
    for length in (1, 3):
        batch = {"numbers": np.ones((2, length), np.int32), "weight": np.ones(2, np.int32)}
        assert_array_equal(runner(served.params, batch, 10)["sum"], [10 * length] * 2)


def test_a_function_is_the_same_under_a_layout(served):
    """Rows are cut over devices, and every process reads all outputs."""
    cut = load(weights(), Execution(), data_parallel(8, 1))
    examples = [{"numbers": np.array([n, 1], np.int32), "weight": np.array(2, np.int32)} for n in range(11)]
    outputs = [Runner(s.model, FEATURES, 8, weighted).map(s.params, examples)["sum"] for s in (served, cut)]
    assert_array_equal(*outputs)


def test_weights_of_another_model_are_refused(served):
    """A parameter that is missing or of another shape is named."""
    lacking = weights()
    lacking.shapes = {name: shape for name, shape in lacking.shapes.items() if name != "embedding.table"}
    with pytest.raises(ConfigError, match=r"^the weights lack embedding\.table: "):
        load(lacking, Execution())
    other = dataclasses.replace(registry.tiny(registry.load("gpt.quickstart")).model, vocab=served.model.vocab + 8)
    with pytest.raises(InterchangeError, match="are not those of this model of family 'gpt'"):
        load(weights(), Execution(), config=other)
