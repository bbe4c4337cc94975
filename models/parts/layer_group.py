"""A stack of layer groups: some dense layers and a mixture of experts after or before them, or one dense layer, repeated.

B rows, L positions, M model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.parts.layers import split_key
from models.parts.losses import Loss, zero_loss
from models.parts.moe.config import MoeConfig
from models.parts.moe.layer import routing_loss
from models.parts.transformer import AttentionInputs, Block, Key, LayerCache, LayerSettings, Statistics
from models.parts.transformer_config import StackConfig
from models.sharding.component import Component
from models.sharding.params import scan


class LayerGroup(nnx.Module):
    """The layers that a stack repeats: dense layers and a mixture of experts, or one dense layer (`c.layer_group`).

    Args:
      causal: whether it is a decoder's.
      attends_to_source: whether its layers attend to another sequence too.
    """

    def __init__(
        self, c: StackConfig, key: jax.Array, scope: Component, *, causal: bool = False, attends_to_source: bool = False
    ):
        self.names = c.layer_group
        keys = jax.random.split(key, len(self.names))
        for i, name in enumerate(self.names):
            moe = c.moe if name == "sparse" else None
            block = Block(c, keys[i], scope, attends_to_source=attends_to_source, moe=moe, causal=causal)
            setattr(self, name, block)

    @property
    def layers(self) -> list[Block]:
        """The layers of the group, in order."""
        return [getattr(self, name) for name in self.names]

    def __call__(
        self, x_BLM: jax.Array, g: AttentionInputs, caches: list[LayerCache] | None, key: Key, kind: LayerSettings | None = None
    ) -> tuple[jax.Array, tuple[list[LayerCache | None], Statistics]]:
        """Returns (y_BLM, (the layers' caches with the new keys and values in them, statistics of the mixture))."""
        kept, statistics = [], {}
        keys = split_key(key, len(self.names))
        for i, layer in enumerate(self.layers):
            x_BLM, (cache, new) = layer(x_BLM, g, caches[i] if caches else None, keys[i], kind and kind.at(i))
            statistics |= new
            kept.append(cache)
        return x_BLM, (kept, statistics)


def run_groups(
    units: LayerGroup, x_BLM: jax.Array, g: AttentionInputs, keys: Key, scope: Component, of_layers: LayerSettings | None = None
) -> tuple[jax.Array, Statistics]:
    """Runs a stack of layer groups, outside training without keys; returns (y_BLM, statistics of its mixtures, stacked).

    Args:
      of_layers: the settings of the layers, [groups, layers of a group].
    """

    def unit(x_BLM, inputs, g: AttentionInputs):
        layers, key, kind = inputs
        x_BLM, (_, statistics) = layers(x_BLM, g, None, key, kind)
        return x_BLM, statistics

    return scan(unit, x_BLM, (units, keys, of_layers), g, scope=scope)


def routers_loss(c: MoeConfig | None, statistics: Statistics, total: jax.Array, stack: str, dtype: jnp.dtype) -> Loss:
    """Returns what the mixtures of a stack add to the loss; zero where there are none.

    Args:
      total: tokens of the whole batch.
      stack: names the stack in the metrics.
      dtype: of the stack's activations.
    """
    return zero_loss(dtype) if c is None else routing_loss(c, statistics, total, stack)
