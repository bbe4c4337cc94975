"""A group of layers that a stack repeats: dense ones and a mixture of experts after or before them, or one dense layer.

B rows, L positions, M model.
"""

import dataclasses

import jax
from flax import nnx

from models.parts.transformer import AttentionInputs, Block, LayerCache, LayerSettings, Role, Statistics
from models.parts.transformer_config import StackConfig
from models.protocol import Context
from models.sharding.component import Component


class LayerGroup(nnx.Module):
    """The repeated layers of a stack: dense ones and a mixture of experts, or one dense layer (`c.layer_group`).

    Args:
      role: of the layers; the mixture is the configuration's.
    """

    def __init__(self, c: StackConfig, key: jax.Array, scope: Component, role: Role = Role()):
        self.names = c.layer_group
        for name, of_layer in zip(self.names, jax.random.split(key, len(self.names)), strict=True):
            moe = c.moe if name == "sparse" else None
            setattr(self, name, Block(c, of_layer, scope, dataclasses.replace(role, moe=moe)))

    @property
    def layers(self) -> list[Block]:
        """The layers of the group, in order."""
        return [getattr(self, name) for name in self.names]

    def __call__(
        self,
        x_BLM: jax.Array,
        g: AttentionInputs,
        context: Context,
        caches: list[LayerCache] | None = None,
        settings: LayerSettings | None = None,
    ) -> tuple[jax.Array, tuple[list[LayerCache | None], Statistics]]:
        """Returns (y_BLM, (the layers' caches with the new keys and values in them, statistics of the mixture))."""
        contexts, new_caches, statistics = context.split(len(self.names)), [], {}
        for i, layer in enumerate(self.layers):
            of_layer = settings and settings.at(i)
            x_BLM, (cache, new) = layer(x_BLM, g, contexts[i], caches[i] if caches else None, of_layer)
            statistics |= new
            new_caches.append(cache)
        return x_BLM, (new_caches, statistics)
