"""Attention masks: who attends to whom. B rows, L queries, S keys.

A matrix of truth values grows with the square of the length. Two numbers of each position decide about it, its example and its
place, from which any part of the matrix is made where it is needed, and in any order of positions.
"""

import dataclasses

import jax
import jax.numpy as jnp

from models.errors import multiples
from models.sharding.component import Component
from models.sharding.layout import LayoutError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionMask:
    """A mask by which a query sees the keys of its own example, and in causal attention none that stands after it.

    Attributes:
      segments_BL, segments_BS: int32 examples of a packed row, from 1; 0 is padding, which nobody sees.
      index_BL, index_BS: int32 places in the row, whatever the order of the arrays; their batch may be 1. A key that all of its
        example see, as those of a prefix, has the place -1.
      causal: whether a query sees no key after its place.
      zigzag: n, where queries and keys are in zigzag order over n shards.
      in_order: whether places are known to be 0, 1, 2 and so on along both arrays.
      only_BLS: True for the pairs that may be seen at all, where two numbers of a position cannot say it.
      hypotheses: whether the queries are continuations of one row and not positions in it, so that no layout cuts them.
      first_BL: int32, the first place that each query sees, and in attention to both sides as many after it; None is all.
    """

    segments_BL: jax.Array
    segments_BS: jax.Array
    index_BL: jax.Array
    index_BS: jax.Array
    causal: bool = dataclasses.field(default=False, metadata=dict(static=True))
    zigzag: int = dataclasses.field(default=1, metadata=dict(static=True))
    in_order: bool = dataclasses.field(default=False, metadata=dict(static=True))
    only_BLS: jax.Array | None = None
    hypotheses: bool = dataclasses.field(default=False, metadata=dict(static=True))
    first_BL: jax.Array | None = None

    @classmethod
    def for_rows(cls, segments_BL: jax.Array, segments_BS: jax.Array, *, causal: bool = False) -> "AttentionMask":
        """Returns the mask of rows whose positions are in order."""
        index_1L, index_1S = (jnp.arange(x.shape[1], dtype=jnp.int32)[None] for x in (segments_BL, segments_BS))
        return cls(segments_BL, segments_BS, index_1L, index_1S, causal, in_order=True)

    def with_prefix(self, prefix_BS: jax.Array) -> "AttentionMask":
        """Returns the mask of rows in order in which these keys, True, are seen by all of their example (a prefix LM)."""
        return dataclasses.replace(self, index_BS=jnp.where(prefix_BS, -1, self.index_BS), in_order=False)

    def within(self, window: int | jax.Array) -> "AttentionMask":
        """Returns the mask in which a query sees so many places, its own included, on either side that it sees; 0 is all."""
        if isinstance(window, int) and not window:
            return self
        first_BL = self.index_BL - window + 1
        if not isinstance(window, int):
            first_BL = jnp.where(window > 0, first_BL, jnp.iinfo(jnp.int32).min // 2)
        return dataclasses.replace(self, first_BL=first_BL)

    def in_zigzag(self, scope: Component) -> "AttentionMask":
        """Returns the same mask of rows in the layout's order, where segments have come in the order of `arrange` already."""
        n = _num_zigzag_shards(scope)
        places = {"index_BL": arrange(self.index_BL, scope), "index_BS": arrange(self.index_BS, scope)}
        if self.first_BL is not None:
            places["first_BL"] = arrange(self.first_BL, scope)
        return dataclasses.replace(self, **places, zigzag=n, in_order=self.in_order and n == 1)

    def part(self, start: int, end: int, keys: int) -> "AttentionMask":
        """Returns the mask of some of the queries and of the first keys."""
        return dataclasses.replace(
            self,
            segments_BL=self.segments_BL[:, start:end],
            segments_BS=self.segments_BS[:, :keys],
            index_BL=self.index_BL[:, start:end],
            index_BS=self.index_BS[:, :keys],
            only_BLS=None if self.only_BLS is None else self.only_BLS[:, start:end, :keys],
            first_BL=None if self.first_BL is None else self.first_BL[:, start:end],
        )

    def matrix(self) -> jax.Array:
        """Returns [B, L, S], True where the query sees the key."""
        seen_BLS = same_segment(self.segments_BL, self.segments_BS)
        if self.only_BLS is not None:
            seen_BLS &= self.only_BLS
        if self.first_BL is not None:
            back_BL1 = (self.first_BL - self.index_BL)[:, :, None]  # 0 or less
            seen_BLS &= self.distance() >= back_BL1
            if not self.causal:
                seen_BLS &= self.distance() <= -back_BL1
        return seen_BLS & (self.distance() <= 0) if self.causal else seen_BLS

    def distance(self) -> jax.Array:
        """Returns the place of the key less that of the query, [B or 1, L, S]."""
        return self.index_BS[:, None, :] - self.index_BL[:, :, None]


def same_segment(a_BL: jax.Array, b_BS: jax.Array) -> jax.Array:
    """Returns [B, L, S], True where query and key belong to the same example of a packed row (0 is padding)."""
    return (a_BL[:, :, None] == b_BS[:, None, :]) & (b_BS[:, None, :] > 0)


def arrange(x_BL: jax.Array, scope: Component, *axes: str) -> jax.Array:
    """Returns x_BL with its positions in the order that the layout asks for: their own, or where it is balanced zigzag. Raises
    LayoutError for positions that cannot be dealt out evenly.

    Args:
      axes: the logical names of further dimensions.
    """
    n, length = _num_zigzag_shards(scope), x_BL.shape[1]
    if length % (2 * n) and n > 1:
        raise LayoutError(
            f"layout {scope.layout.name!r}, balanced: 'length' of size {length} is not divisible by the 2 x {n} chunks of "
            f"zigzag order; the nearest that fit are {multiples(length, 2 * n)}"
        )
    if n == 1:
        return x_BL
    whole_BL = scope.shard(x_BL, "batch", None, *axes)  # gathered once, dealt out anew
    return scope.shard(zigzag(whole_BL, n), "batch", "length", *axes)


def zigzag(x_BL: jax.Array, n: int) -> jax.Array:
    """Returns x_BL with chunks i and 2n - 1 - i, of 2n chunks, in the i-th of n shards.

    In causal attention every shard then has as many pairs of query and key as any other (Llama 3, arXiv 2407.21783, section
    3.3.2).
    """
    x = x_BL.reshape(x_BL.shape[0], 2, n, -1)
    return jnp.stack([x[:, 0], x[:, 1, ::-1]], axis=2).reshape(x_BL.shape)


def _num_zigzag_shards(scope: Component) -> int:
    """Returns over how many shards rows are in zigzag order; 1 is their own."""
    return scope.num_shards("length") if scope.layout.balanced else 1
