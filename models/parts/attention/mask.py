"""Who attends to whom. B rows, L queries, S keys.

A matrix of truth values grows with the square of the length. What decides about it are two numbers of each position, its
example and its place, from which any part of the matrix is made where it is needed, and in any order of positions.
"""

import dataclasses

import jax
import jax.numpy as jnp

from models.errors import multiples
from models.sharding.component import Component
from models.sharding.layout import LayoutError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sight:
    """Which keys a query sees: those of its own example, and in causal attention none that stands after it.

    Attributes:
      segments_BL, segments_BS: int32 examples of a packed row, from 1; 0 is padding, which nobody sees.
      at_BL, at_BS: int32 places in the row, whatever the order of the arrays; their batch may be 1.
      causal: whether a query sees no key after its place.
      zigzag: n, where queries and keys are in zigzag order over n pieces.
      natural: whether places are known to be 0, 1, 2 and so on along both arrays.
    """

    segments_BL: jax.Array
    segments_BS: jax.Array
    at_BL: jax.Array
    at_BS: jax.Array
    causal: bool = dataclasses.field(default=False, metadata=dict(static=True))
    zigzag: int = dataclasses.field(default=1, metadata=dict(static=True))
    natural: bool = dataclasses.field(default=False, metadata=dict(static=True))

    @classmethod
    def of(cls, segments_BL: jax.Array, segments_BS: jax.Array, *, causal: bool = False) -> "Sight":
        """Of rows in their natural order."""
        at_1L, at_1S = (jnp.arange(x.shape[1], dtype=jnp.int32)[None] for x in (segments_BL, segments_BS))
        return cls(segments_BL, segments_BS, at_1L, at_1S, causal, natural=True)

    def arranged(self, where: Component) -> "Sight":
        """The same where segments have come in the order of `arrange` already."""
        n = _turns(where)
        places = {"at_BL": arrange(self.at_BL, where), "at_BS": arrange(self.at_BS, where)}
        return dataclasses.replace(self, **places, zigzag=n, natural=self.natural and n == 1)

    def part(self, start: int, end: int, keys: int) -> "Sight":
        """Of some of the queries and of the first keys."""
        return dataclasses.replace(
            self,
            segments_BL=self.segments_BL[:, start:end],
            segments_BS=self.segments_BS[:, :keys],
            at_BL=self.at_BL[:, start:end],
            at_BS=self.at_BS[:, :keys],
        )

    def mask(self) -> jax.Array:
        """[B, L, S]: True where the query sees the key."""
        seen_BLS = same_segment(self.segments_BL, self.segments_BS)
        return seen_BLS & (self.distance() <= 0) if self.causal else seen_BLS

    def distance(self) -> jax.Array:
        """[B or 1, L, S]: the place of the key less that of the query."""
        return self.at_BS[:, None, :] - self.at_BL[:, :, None]


def same_segment(a_BL: jax.Array, b_BS: jax.Array) -> jax.Array:
    """[B, L, S]: True where query and key belong to the same example of a packed row (0 is padding)."""
    return (a_BL[:, :, None] == b_BS[:, None, :]) & (b_BS[:, None, :] > 0)


def arrange(x_BL: jax.Array, where: Component) -> jax.Array:
    """x_BL with its positions in the order that the layout asks for: their own, or where it is balanced zigzag.

    Raises:
      LayoutError: positions that cannot be dealt out evenly.
    """
    n, length = _turns(where), x_BL.shape[1]
    if length % (2 * n) and n > 1:
        raise LayoutError(
            f"layout {where.layout.name!r}, balanced: 'length' of size {length} is not divisible by the 2 x {n} chunks of "
            f"zigzag order; the nearest that fit are {multiples(length, 2 * n)}"
        )
    if n == 1:
        return x_BL
    whole_BL = where.shard(x_BL, "batch", None)  # numbers of positions: gathered once, dealt out anew
    return where.shard(zigzag(whole_BL, n), "batch", "length")


def zigzag(x_BL: jax.Array, n: int) -> jax.Array:
    """x_BL with chunks i and 2n - 1 - i, of 2n chunks, in the i-th of n pieces: in causal attention every piece has as many
    pairs of query and key as any other (Llama 3, arXiv 2407.21783, section 3.3.2)."""
    x = x_BL.reshape(x_BL.shape[0], 2, n, -1)
    return jnp.stack([x[:, 0], x[:, 1, ::-1]], axis=2).reshape(x_BL.shape)


def _turns(where: Component) -> int:
    """Over how many pieces rows are in zigzag order; 1 is their own."""
    return where.pieces("length") if where.layout.balanced else 1
