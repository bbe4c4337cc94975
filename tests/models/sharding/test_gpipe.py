"""Parts of GPipe that need no program."""

import jax
from flax import nnx

from configs import registry
from models.families import family_of
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE, tensor_parallel
from models.sharding.pipelines.gpipe import with_layout


def test_modules_are_put_under_another_layout_and_keep_their_arrays():
    """Components alone are replaced, at any depth: an array may have a `layout` of its own, as JAX's have."""
    e = registry.tiny(registry.load("gpt.quickstart"))
    model = family_of(e.model).model(e.model, where=Component(ONE_DEVICE), key=jax.random.key(0))
    other = tensor_parallel(2, 4)
    changed = with_layout(model, other)
    assert changed.where.layout == changed.decoder.where.layout == other and model.decoder.where.layout == ONE_DEVICE
    before, after = nnx.state(model, nnx.Param), nnx.state(changed, nnx.Param)
    assert jax.tree.all(jax.tree.map(lambda a, b: a is b, before, after))
