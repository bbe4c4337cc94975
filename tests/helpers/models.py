"""Tiny models of the zoo's experiments, and batches for them."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs import registry
from configs.experiment import Experiment
from models.bert.model import Bert
from models.execution import Execution
from models.families import family_of
from models.parts.nested import changed
from models.sharding.component import Component
from models.sharding.layout import Layout
from models.sharding.params import describe, with_params
from tests.parity.live import FIXTURES
from trainers.weights import source as weights
from trainers.weights.huggingface import HuggingFace

LENGTH = 12
ALONE = Component(Layout(name="one", mesh=(("all", 1),)))


def varied(e: Experiment, **fields: Any) -> Experiment:
    """The experiment with these fields of its model, by dotted paths, or of its execution changed."""
    names = [field.name for field in dataclasses.fields(Execution)]
    execution = dataclasses.replace(e.execution, **{name: fields.pop(name) for name in names if name in fields})
    return dataclasses.replace(e, model=changed(e.model, fields), execution=execution)


@functools.cache
def model_of(name: str, scope: Component = ALONE, **fields):
    """A tiny model of this experiment in double precision, without dropout, every bias and scale made to matter."""
    e = varied(registry.tiny(registry.load(name)), dtype="float64", dropout=0.0, remat="none", layers=2)
    e = varied(e, **fields)
    c, scope = e.model, dataclasses.replace(scope, execution=e.execution)

    @jax.jit
    def make():
        model = family_of(c).model(c, jax.random.key(0), scope)
        leaves, tree = jax.tree.flatten(model)
        keys = jax.random.split(jax.random.key(1), len(leaves))
        noisy = [x.astype(jnp.float64) + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
        return jax.tree.unflatten(tree, noisy)

    return make()


def fixture(name: str) -> Any:
    """The model of a parity fixture, in double precision."""
    source, scope = HuggingFace(FIXTURES / name), dataclasses.replace(ALONE, execution=Execution(dtype="float64"))
    empty = jax.eval_shape(lambda key: family_of(source.config).model(source.config, key, scope), jax.random.key(0))
    shapes = {info.name: info.shape for info in describe(empty)}
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return with_params(empty, weights.load(source, dict.fromkeys(shapes, host), shapes, np.float64))


def batch_of(*rows: list[int]) -> dict[str, np.ndarray]:
    """Rows of packed examples of these lengths, filled with different tokens; the rest is padding."""
    rng = np.random.default_rng(0)
    segments = np.zeros((len(rows), LENGTH), np.int32)
    positions = np.zeros_like(segments)
    for row, lengths in enumerate(rows):
        at = 0
        for number, n in enumerate(lengths, 1):
            segments[row, at : at + n], positions[row, at : at + n] = number, np.arange(n)
            at += n
    tokens = rng.integers(3, 64, segments.shape) * (segments > 0)
    batch = {"tokens": tokens, "segments": segments, "positions": positions, "types": positions % 2}
    return {k: v.astype(np.int32) for k, v in batch.items()}


@jax.jit
def compiled(model, batch) -> jax.Array:
    return model.encode(batch) if isinstance(model, Bert) else model(batch)
