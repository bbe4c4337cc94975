"""A small Conformer in double precision, utterances, and rows that they are packed in."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.conformer.config import ConformerConfig, Ctc, Mel
from models.conformer.model import Conformer
from models.execution import Execution
from tests.helpers.models import ALONE

WIDE = dataclasses.replace(ALONE, execution=Execution(dtype="float64"))


def made(**fields: Any) -> dict[str, Any]:
    return fields


SMALL = made(layers=2, model_dim=16, hidden_dim=32, heads=4, front=Mel(bands=8, channels=4), dropout=0.0)


@functools.cache
def model(**fields) -> Conformer:
    c = ConformerConfig(**{"objective": Ctc(vocab=12), "utterances": 3} | SMALL | fields)
    made = jax.device_get(jax.jit(lambda: Conformer(c, jax.random.key(0), WIDE))())
    leaves, tree = jax.tree.flatten(made)
    rng = np.random.default_rng(0)
    return jax.tree.unflatten(tree, [jnp.asarray(x + 0.1 * rng.normal(size=x.shape), jnp.float64) for x in leaves])


def utterance(seed: int, frames: int, tokens: int, width: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(frames, width)), rng.integers(1, 12, tokens)


def rows(*packed: list, length: int, tokens: int = 12, align: int = 8, seed: int = 5) -> dict[str, jax.Array]:
    """Rows of utterances at multiples of `align` with a gap behind each; padding is noise, which must not matter."""
    width = packed[0][0][0].shape[1]
    frames = 100 * np.random.default_rng(seed).normal(size=(len(packed), length, width))
    batch = {"frames_segments": np.zeros((len(packed), length), np.int32)}
    batch |= {name: np.zeros((len(packed), tokens), np.int32) for name in ("targets", "targets_segments")}
    for row, utterances in enumerate(packed):
        at = to = 0
        for number, (sound, ids) in enumerate(utterances, 1):
            frames[row, at : at + len(sound)] = sound
            batch["frames_segments"][row, at : at + len(sound)] = number
            batch["targets"][row, to : to + len(ids)] = ids
            batch["targets_segments"][row, to : to + len(ids)] = number
            at, to = at + (-(-len(sound) // align) + 1) * align, to + len(ids)
    return {k: jnp.asarray(v) for k, v in ({"frames": frames} | batch).items()}
