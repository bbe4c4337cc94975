"""Ring attention (Liu et al., arXiv 2310.01889, section 3): rows so long that no device holds all keys and values of one.

The n shards of a row lie on n devices. Queries stay; keys and values go round, one shard further each step, and meet all
queries in n steps. What a query has seen is kept as an online softmax (Milakov and Gimelshein, arXiv 1805.02867). All shards
are one array with a dimension of n that the layout cuts, so rolling it by one is a collective-permute; what is done to a shard
is mapped over them.

P shards (n), B rows, L queries and S keys of a half, N heads, G heads of keys and values, D size of a head. In zigzag order a
shard has two halves, an early chunk and a late one; otherwise its one "half" is all of it.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from models.errors import multiples
from models.parts.attention.mask import AttentionMask
from models.parts.layers import dropout
from models.sharding.component import Component
from models.sharding.layout import LayoutError

Halves = tuple[Any, ...]  # one pytree or two alike: queries are (q, segments, at, first), keys (k, v, segments, at)
Which = int | jax.Array  # the number of a half, or a truth value that only the device knows


def num_shards(scope: Component) -> int:
    """Returns into how many shards keys and values are cut; 1 is no ring. Raises LayoutError where queries are cut otherwise."""
    keys, queries = (scope.layout.resolve(scope.path).get(name, ()) for name in ("keys", "length"))
    if keys and keys != queries:
        raise LayoutError(
            f"component {scope.path!r}, layout {scope.layout.name!r}: rule 'keys' -> {keys} must be that of 'length' -> "
            f"{queries}, as keys and values go round the devices that cut the queries, or none"
        )
    return scope.layout.num_shards(keys)


@dataclasses.dataclass(frozen=True)
class Ring:
    """Attention in a ring: what of it is no array.

    Attributes:
      logits: (q_BLND, k_BSGD, table, mask) -> masked logits [B, N, L, S], float32 at least.
      mix: (probs_BNLS, v_BSGD, dtype) -> [B, L, N, D] of this dtype.
      scope: the component whose rule for "keys" cuts the shards.
      kv_axis: the logical name of the heads of keys and values.
      rate: of dropout on probabilities.
    """

    logits: Callable[..., jax.Array]
    mix: Callable[..., jax.Array]
    scope: Component
    kv_axis: str
    rate: float = 0.0

    def __call__(
        self,
        q_BLND: jax.Array,
        k_BSGD: jax.Array,
        v_BSGD: jax.Array,
        table: Any,
        mask: AttentionMask,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns (softmax(logits) v [B, L, N, D] in q's dtype, log of the sum of the exponentials of logits [B, N, L]).

        They are those of whole rows but for the order of sums.

        Args:
          table: what else the logits depend on, or None.
          key: draws dropout, block by block: other draws than those of whole rows, of the same distribution.

        Raises:
          LayoutError: queries or keys that the shards do not divide.
        """
        halves = 2 if mask.causal and mask.zigzag == num_shards(self.scope) else 1
        seen = () if mask.first_BL is None else (mask.first_BL,)
        queries = self.lay(self._cut((q_BLND, mask.segments_BL, mask.index_BL, *seen), halves), "act_heads")
        keys = self.lay(self._cut((k_BSGD, v_BSGD, mask.segments_BS, mask.index_BS), halves), self.kv_axis)
        parts: Any = _attend(self, mask.causal, queries, keys, table, key)
        y, mass = (jnp.stack(x, axis=1) for x in zip(*parts, strict=True))
        y_BLND = jnp.moveaxis(y, 2, 0).reshape(q_BLND.shape)
        return y_BLND, jnp.moveaxis(mass, (2, 3), (0, 1)).reshape(*y_BLND.shape[::2], -1)

    def _cut(self, xs: tuple[jax.Array, ...], halves: int) -> Halves:
        """Returns of [B, L, ...] each the halves of their shards, [P, B, L / (P * halves), ...] each."""
        n, length = num_shards(self.scope), xs[0].shape[1]
        if length % (n * halves):
            raise LayoutError(
                f"component {self.scope.path!r}, layout {self.scope.layout.name!r}: {length} positions are not divisible by "
                f"{n} shards; the nearest that fit are {multiples(length, n * halves)}"
            )
        cut = [x.reshape(x.shape[0], n, halves, -1, *x.shape[2:]) for x in xs]
        return tuple(tuple(jnp.moveaxis(x[:, :, half], 1, 0) for x in cut) for half in range(halves))

    def lay(self, tree: Any, axis: str) -> Any:
        """Constrains vectors of heads of this name, or numbers of positions, to the devices of their shards."""
        names = ("keys", "batch", None, axis, None)
        return jax.tree.map(lambda x: self.scope.shard(x, *names[: x.ndim]), tree)

    def round(self, step: Callable[[Any, Any, Any], tuple[Any, Any]], stays: Any, goes: Any) -> tuple[Any, Any]:
        """n steps (i, stays, goes) -> (stays, goes), after each of which what goes round is one shard further."""

        def once(carry: tuple[Any, Any], i: Any) -> tuple[Any, Any]:
            stays, goes = step(i, *carry)
            goes = self.lay(goes, self.kv_axis)  # before and after, or the compiler may not see a permutation
            return stays, self.lay(jax.tree.map(lambda x: jnp.roll(x, 1, axis=0), goes), self.kv_axis)

        later = jnp.arange(1, num_shards(self.scope))
        return jax.lax.scan(lambda carry, i: (once(carry, i), None), once((stays, goes), 0), later)[0]

    def blocks(self, step: Any, shard: jax.Array, queries: Halves, keys: Halves, causal: bool, key: Any) -> Iterator["Block"]:
        """Yields the blocks of queries and keys that a shard computes with the keys that have come `step` shards far.

        In zigzag order shard i has chunks i and 2n - 1 - i, and now the keys of shard j = i - step modulo n. A late chunk of
        queries sees all of an early chunk of keys, an early one nothing of a late one. Two early chunks see each other if
        j < i, two late ones if j > i. So of four blocks a shard computes two, in every step but the first.
        """
        if len(queries) == 1:
            pairs: list[tuple[Which, Which]] = [(0, 0)]
        elif isinstance(step, int):  # the first, j = i
            pairs = [(0, 0), (1, 0), (1, 1)]
        else:
            pairs = [(1, 0), (shard < step, shard < step)]
        if key is not None:
            key = jax.random.fold_in(key, step * num_shards(self.scope) + shard)
        for number, (a, b) in enumerate(pairs):
            (q, segments_BL, index_BL, *first), (k, v, segments_BS, index_BS) = _pick(queries, a), _pick(keys, b)
            draw = None if key is None else jax.random.fold_in(key, number)
            mask = AttentionMask(segments_BL, segments_BS, index_BL, index_BS, causal, first_BL=first[0] if first else None)
            yield Block(self, a, b, q, k, v, mask, draw)


@dataclasses.dataclass(frozen=True)
class Block:
    """Some of a shard's queries (their half `a`) and of the keys that are there (half `b`)."""

    ring: Ring
    a: Which
    b: Which
    q_BLND: jax.Array
    k_BSGD: jax.Array
    v_BSGD: jax.Array
    mask: AttentionMask
    draw: jax.Array | None

    def logits(self, q_BLND: jax.Array, k_BSGD: jax.Array, table: Any) -> jax.Array:
        return self.ring.logits(q_BLND, k_BSGD, table, self.mask)

    def mix(self, probs_BNLS: jax.Array, v_BSGD: jax.Array) -> jax.Array:
        kept_BNLS = dropout(probs_BNLS, self.ring.rate, self.draw).astype(v_BSGD.dtype)
        return self.ring.mix(kept_BNLS, v_BSGD, probs_BNLS.dtype)


# The steps are not differentiated: that would keep each one's keys, values and sums, all that the ring is there to spare.
# Gradients go round by themselves, those of keys and values with these, and blocks are computed anew from the queries' final
# sums (FlashAttention-2, arXiv 2307.08691, algorithm 2, in JAX).


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(ring: Ring, causal: bool, queries: Halves, keys: Halves, table: Any, key: Any) -> Halves:
    return _forward(ring, causal, queries, keys, table, key)[0]


def _forward(ring: Ring, causal: bool, queries: Halves, keys: Halves, table: Any, key: Any) -> tuple[Halves, Any]:
    wide = jnp.promote_types(queries[0][0].dtype, jnp.float32)

    def nothing(q: jax.Array) -> tuple[jax.Array, ...]:
        n, b, length, heads, _ = q.shape
        top = jnp.full((n, b, heads, length), -jnp.inf, wide)
        return top, jnp.zeros_like(top), ring.lay(jnp.zeros_like(q, wide), "act_heads")

    def step(i, state, keys):
        def of_shard(shard, state, queries, keys):
            for block in ring.blocks(i, shard, queries, keys, causal, key):
                top_BNL, sum_BNL, y_BLND = _pick(state, block.a)
                logits_BNLS = block.logits(block.q_BLND, block.k_BSGD, table)
                new_BNL = jnp.maximum(top_BNL, jnp.max(logits_BNLS, axis=-1))
                probs_BNLS = jnp.exp(logits_BNLS - new_BNL[..., None])
                old_BNL = jnp.exp(top_BNL - new_BNL)
                sum_BNL = sum_BNL * old_BNL + jnp.sum(probs_BNLS, axis=-1)
                y_BLND = y_BLND * _by_query(old_BNL) + block.mix(probs_BNLS, block.v_BSGD)
                state = _put(state, block.a, (new_BNL, sum_BNL, y_BLND))
            return state

        return jax.vmap(of_shard)(jnp.arange(num_shards(ring.scope)), state, queries, keys), keys

    state, _ = ring.round(step, tuple(nothing(q) for q, *_ in queries), keys)
    y = tuple((y / jax.vmap(_by_query)(total)).astype(queries[0][0].dtype) for _, total, y in state)
    sums = tuple((top, total) for top, total, _ in state)
    parts = tuple((y, top + jnp.log(total)) for y, (top, total) in zip(y, sums, strict=True))
    return parts, (queries, keys, table, key, y, sums)


def _backward(ring: Ring, causal: bool, kept: Any, grads: Halves) -> tuple[Any, ...]:
    queries, keys, table, key, y, sums = kept
    wide = sums[0][0].dtype
    dy = tuple(d.astype(wide) for d, _ in grads)
    along = tuple(jnp.moveaxis(jnp.sum(d * y, axis=-1), 2, 3) - dmass for d, y, (_, dmass) in zip(dy, y, grads, strict=True))
    given = tuple(zip(dy, along, sums, strict=True))

    def step(i, stays, goes):
        def of_shard(shard, stays, goes, queries, given):
            (dq, dtable), (keys, dkv) = stays, goes
            for block in ring.blocks(i, shard, queries, keys, causal, key):
                dy_BLND, along_BNL, (top_BNL, sum_BNL) = _pick(given, block.a)
                logits_BNLS, pull_logits = jax.vjp(block.logits, block.q_BLND, block.k_BSGD, table)
                probs_BNLS = jnp.exp(logits_BNLS - top_BNL[..., None]) / sum_BNL[..., None]
                dprobs_BNLS, dv_BSGD = jax.vjp(block.mix, probs_BNLS, block.v_BSGD)[1](dy_BLND)
                dq_BLND, dk_BSGD, more = pull_logits(probs_BNLS * (dprobs_BNLS - along_BNL[..., None]))
                dq, dkv = _add(dq, block.a, dq_BLND), _add(dkv, block.b, (dk_BSGD, dv_BSGD))
                dtable = jax.tree.map(jnp.add, dtable, more)
            return (dq, dtable), (keys, dkv)

        return jax.vmap(of_shard)(jnp.arange(num_shards(ring.scope)), stays, goes, queries, given)

    def zeros(x: jax.Array, axis: str) -> jax.Array:
        return ring.lay(jnp.zeros_like(x, wide), axis)

    dq = tuple(zeros(q, "act_heads") for q, *_ in queries)
    dkv = tuple((zeros(k, ring.kv_axis), zeros(v, ring.kv_axis)) for k, v, *_ in keys)
    dtable = jax.tree.map(lambda x: jnp.zeros((num_shards(ring.scope), *x.shape), x.dtype), table)
    (dq, dtable), (_, dkv) = ring.round(step, (dq, dtable), (keys, dkv))
    dqueries = tuple((d.astype(q.dtype), *(None for _ in others)) for d, (q, *others) in zip(dq, queries, strict=True))
    dkeys = tuple((dk.astype(k.dtype), dv.astype(v.dtype), None, None) for (dk, dv), (k, v, *_) in zip(dkv, keys, strict=True))
    return dqueries, dkeys, jax.tree.map(lambda x: jnp.sum(x, axis=0), dtable), None


_attend.defvjp(_forward, _backward)


def _by_query(x_BNL: jax.Array) -> jax.Array:
    """[B, L, N, 1]"""
    return jnp.moveaxis(x_BNL, 1, 2)[..., None]


def _pick(halves: Halves, which: Which) -> Any:
    if isinstance(which, int):
        return halves[which]
    return jax.tree.map(lambda early, late: jnp.where(which, late, early), *halves)


def _put(halves: Halves, which: Which, new: Any) -> Halves:
    if isinstance(which, int):
        return (*halves[:which], new, *halves[which + 1 :])
    early, late = halves
    return (
        jax.tree.map(lambda old, new: jnp.where(which, old, new), early, new),
        jax.tree.map(lambda old, new: jnp.where(which, new, old), late, new),
    )


def _add(halves: Halves, which: Which, new: Any) -> Halves:
    return _put(halves, which, jax.tree.map(jnp.add, _pick(halves, which), new))
