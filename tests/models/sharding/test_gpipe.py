"""Parts of GPipe that need no program."""

from typing import Any

import jax
from flax import nnx

from configs import registry
from models.families import family_of
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE, tensor_parallel
from models.sharding.pipelines.gpipe import with_layout


def test_modules_are_put_under_another_layout_and_keep_their_arrays():
    """Components alone are replaced, at any depth: an array that is traced may have a `layout`, too."""
    e = registry.tiny(registry.load("gpt.quickstart"))
    other = tensor_parallel(2, 4)
    structure, state = nnx.split(family_of(e.model).model(e.model, scope=Component(ONE_DEVICE), key=jax.random.key(0)))

    def total(state: Any) -> jax.Array:
        model: Any = nnx.merge(structure, state)
        changed = with_layout(model, other)
        assert changed.scope.layout == changed.decoder.scope.layout == other
        assert model.scope.layout == model.decoder.scope.layout == ONE_DEVICE
        before, after = (jax.tree.leaves(nnx.state(each, nnx.Param)) for each in (model, changed))
        assert len(before) > 5 and all(x is y for x, y in zip(before, after, strict=True))
        return sum(x.sum() for x in after)  # pyright: ignore[reportReturnType]

    jax.eval_shape(jax.grad(total), state)
