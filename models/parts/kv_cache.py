"""The key-value cache of a decoder: keys and values of the rows that it continues, in slots.

B rows, K hypotheses, P positions of a row's beginning, T steps, S = P + T K slots, G heads of keys and values, D size of a head.

The hypotheses of a row share its beginning, and none is ever copied: a beam search that gives a hypothesis another's past only
says whose slot of each step it reads. They read the row's slots as the queries of one product, masked, which costs K times the
products of a cache for each and saves moving it at every step.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from models.parts.attention.mask import AttentionMask
from models.parts.attention.module import KeysValues


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LayerCache:
    """The cache of a decoder's layer: keys [B, G, D, S] and values [B, G, S, D], as attention multiplies them.

    Attributes:
      own: in the slots.
      source: of the source, where the layer attends to one; S are its positions.
    """

    own: KeysValues
    source: KeysValues | None = None


def to_cache(kv: KeysValues) -> KeysValues:
    """Returns keys and values [B, S, G, D] as caches have them."""
    return kv[0].transpose(0, 2, 3, 1), kv[1].swapaxes(1, 2)


def from_cache(kv: KeysValues) -> KeysValues:
    """Returns keys and values [B, S, G, D] of a cache."""
    return kv[0].transpose(0, 3, 1, 2), kv[1].swapaxes(1, 2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """The position that each slot holds, and its hypothesis: P slots of the row's beginning, then K of each step.

    Attributes:
      ancestors_BKT: int32, the hypothesis whose slot of a step each hypothesis reads.
      first_B: int32, the position of step 0, up to which the beginning is read; its batch may be 1.
      beginning: P.
    """

    ancestors_BKT: jax.Array
    first_B: jax.Array
    beginning: int = dataclasses.field(metadata=dict(static=True))

    @classmethod
    def empty(cls, rows: int, hypotheses: int, steps: int, first_B: jax.Array, beginning: int) -> "Slots":
        """Returns slots in which no step has been written."""
        own_K1 = jnp.arange(hypotheses, dtype=jnp.int32)[:, None]
        return cls(jnp.broadcast_to(own_K1, (rows, hypotheses, steps)), first_B, beginning)

    @property
    def reach_B1(self) -> jax.Array:
        """The number of positions that each row may have in the end."""
        return self.first_B[:, None] + 1 + self.ancestors_BKT.shape[2]

    @property
    def number(self) -> int:
        """S."""
        _, hypotheses, steps = self.ancestors_BKT.shape
        return self.beginning + steps * hypotheses

    def at(self, at: jax.Array) -> "Step":
        """Returns the step that is decoded: one for all, or [B, K]. From here on each hypothesis reads its own slot of it."""
        at_BK = jnp.broadcast_to(at, (1, 1)) if at.ndim == 0 else at
        _, hypotheses, steps = self.ancestors_BKT.shape
        here_BKT = jnp.arange(steps) == at_BK[..., None]
        own_K1 = jnp.arange(hypotheses, dtype=jnp.int32)[:, None]
        return Step(dataclasses.replace(self, ancestors_BKT=jnp.where(here_BKT, own_K1, self.ancestors_BKT)), at_BK)

    def reordered(self, parent_BK: jax.Array) -> "Slots":
        """Returns the slots by which hypothesis k of a row has the past that hypothesis parent[b, k] had."""
        ancestors_BKT = jnp.take_along_axis(self.ancestors_BKT, parent_BK[..., None], axis=1)
        return dataclasses.replace(self, ancestors_BKT=ancestors_BKT)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Step:
    """A step that is decoded.

    Attributes:
      slots: of the caches.
      at_BK: int32, its number; of sizes 1 where it is the same for all.
    """

    slots: Slots
    at_BK: jax.Array

    @property
    def positions_BK(self) -> jax.Array:
        """The position in the row; of sizes 1 where it is the same for all."""
        return self.slots.first_B[:, None] + self.at_BK

    def by_row(self, x_R1M: jax.Array) -> jax.Array:
        """Returns [B, K, M] of B * K rows of one position, as attention reads them."""
        return x_R1M.reshape(len(self.slots.ancestors_BKT), -1, x_R1M.shape[-1])

    def mask(self) -> AttentionMask:
        """Returns which slots each hypothesis sees."""
        slots = self.slots
        rows, hypotheses, steps = slots.ancestors_BKT.shape
        begun_1P = jnp.arange(slots.beginning)[None]
        step_1X = jnp.repeat(jnp.arange(steps), hypotheses)[None]
        index_BS = _joined(begun_1P, slots.first_B[:, None] + step_1X)
        real_BS = _joined(begun_1P < slots.first_B[:, None], jnp.ones_like(step_1X, bool))
        mine_BKTK = slots.ancestors_BKT[..., None] == jnp.arange(hypotheses)
        only_BKS = _joined(
            jnp.ones((1, hypotheses, slots.beginning), bool), mine_BKTK.reshape(rows, hypotheses, steps * hypotheses)
        )
        return AttentionMask(
            jnp.ones_like(self.positions_BK),
            real_BS.astype(jnp.int32),
            self.positions_BK,
            index_BS,
            causal=True,
            only_BLS=only_BKS,
            hypotheses=True,
        )

    def write(self, cache: KeysValues, new: KeysValues) -> KeysValues:
        """Returns a layer's cache with the keys and values [B, K, G, D] of this step in it."""
        if self.at_BK.size == 1:
            start = self.slots.beginning + self.at_BK[0, 0] * self.slots.ancestors_BKT.shape[1]
            write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=start)
            (old_k, old_v), (k, v) = cache, to_cache(new)
            return write(old_k, k, axis=3), write(old_v, v, axis=2)
        k, v = (self._chosen(old, x) for old, x in zip(from_cache(cache), new, strict=True))
        return to_cache((k, v))

    def _chosen(self, old_BSGD: jax.Array, new_BKGD: jax.Array) -> jax.Array:
        beginning, steps = self.slots.beginning, self.slots.ancestors_BKT.shape[2]
        # A choice for each slot, which the compiler partitions as it lies.
        here_BTK = jnp.arange(steps)[:, None] == self.at_BK[:, None]
        here_BS = _joined(jnp.zeros((1, beginning), bool), here_BTK.reshape(len(here_BTK), -1))
        new_BSGD = jnp.pad(jnp.tile(new_BKGD, (1, steps, 1, 1)), ((0, 0), (beginning, 0), (0, 0), (0, 0)))
        return jnp.where(here_BS[:, :, None, None], new_BSGD, old_BSGD)


def _joined(beginning: jax.Array, steps: jax.Array) -> jax.Array:
    """Returns what is known of the slots [..., S], whose leading dimensions may be 1 in either part."""
    lead = jnp.broadcast_shapes(beginning.shape[:-1], steps.shape[:-1])
    return jnp.concatenate([jnp.broadcast_to(x, (*lead, x.shape[-1])) for x in (beginning, steps)], axis=-1)
