"""Attention by rows, by blocks and in a ring is attention as it is defined (models/parts/attention/plain.py)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from models.parts.attention import blocks, plain, ring
from models.parts.attention.config import GroupedQuery, RelativeBuckets
from models.parts.attention.logits import disentangled_buckets, masked_logits, mix
from models.parts.attention.mask import AttentionMask, arrange
from models.parts.attention.module import Attention
from models.parts.layers import draw_seeds, dropped
from models.parts.transformer_config import BlockConfig, Dense
from models.sharding.component import Component, make_mesh
from models.sharding.layouts import LAYOUTS
from tests.helpers.models import ALONE

# Packed rows of 64 positions; the second ends in padding.
SEGMENTS_BL = np.repeat([[1, 1, 1, 2], [1, 2, 2, 0]], 16, axis=1).astype(np.int32)
PRODUCTS = functools.partial(masked_logits, limit=0.0, max_distance=0)


def vectors() -> list[jax.Array]:
    """Queries of four heads, and keys and values of two, of size 8."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(2, 64, heads, 8))) for heads in (4, 2, 2)]


def test_plain_attention_by_hand():
    """A query that sees two keys, of which it likes one by log 3 more, gets 3/4 of its value and 1/4 of the other's."""
    q_BLND = jnp.array([2.0, 0, 0, 0]).reshape(1, 1, 1, 4)  # divided by sqrt(4)
    k_BSGD = jnp.array([[np.log(3.0), 0, 0, 0], [0, 1, 0, 0], [9, 9, 9, 9]]).reshape(1, 3, 1, 4)
    v_BSGD = jnp.array([[4.0, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0]]).reshape(1, 3, 1, 4)
    out_BLND = plain.attention(q_BLND, k_BSGD, v_BSGD, jnp.array([[[True, True, False]]]))
    assert_allclose(out_BLND[0, 0, 0], [3, 1, 0, 0], rtol=1e-6)


def test_buckets_of_distances_that_are_rounded_up():
    """Keys before a query have the later buckets. Of 256 to either side, up to 512, 128 are exact; 511 is the last distance below
    the end, and the pair of it and its opposite is no mirror image: what lies beyond is cut off to either side."""
    distance = jnp.array([0, -1, 1, -128, -129, -130, 129, -510, -511, -512, -9999, 511, 512, 9999])
    near, far = [256, 257, 255, 384, 385, 386, 127, 511], [511, 511, 511, 1, 0, 0]
    assert disentangled_buckets(distance, 256, 512).tolist() == near + far
    # Of 5 to either side 2 are exact, one is of 3 to 8, and of 9 to 32 the next, which is the last.
    assert disentangled_buckets(-jnp.arange(18), 5, 9).tolist() == [5, 6, 7, 8, 8, 8, 8, 8, 8, *[9] * 9]


def test_logits_have_the_products_with_distances(float64):
    """Each logit is q k, and q with the key of the pair's distance, and k with its query, whatever heads keys share; nothing else
    of the row counts."""
    q_BLND, k_BSGD, _ = vectors()
    rng = np.random.default_rng(1)
    key_KGD, query_KND = (jnp.asarray(rng.normal(size=(8, heads, 8))) for heads in (2, 4))
    mask = AttentionMask.for_rows(jnp.asarray(SEGMENTS_BL), jnp.asarray(SEGMENTS_BL))
    logits = masked_logits(q_BLND, k_BSGD, (key_KGD[None], query_KND[None]), mask, limit=0.0, max_distance=11)
    for row, n, i, j in ((0, 0, 3, 3), (0, 1, 2, 9), (0, 3, 9, 2), (1, 2, 46, 17), (1, 3, 17, 46), (1, 0, 20, 23)):
        bucket = int(disentangled_buckets(jnp.array(j - i), 4, 11))
        q, k = q_BLND[row, i, n], k_BSGD[row, j, n // 2]
        assert_allclose(logits[row, n, i, j], q @ k + q @ key_KGD[bucket, n // 2] + k @ query_KND[bucket, n], rtol=1e-9)
    assert logits[0, 0, 0, 60] < -1e8  # of another example


def outputs_and_gradients(attend, mask: AttentionMask):
    """Outputs of real queries, and the gradients of a nonlinear sum of them."""

    def total(q, k, v):
        y = jnp.where(mask.segments_BL[..., None, None] > 0, attend(q, k, v), 0)
        return jnp.sum(jnp.sin(y)), y

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))


@pytest.mark.integration
@pytest.mark.parametrize("path", ["rows", "blocks", "context_ring", "context_ring_balanced"])
def test_fast_paths_are_plain_attention(path, float64, monkeypatch):
    """Causal attention of packed rows, with heads of keys and values shared by two of queries: values and gradients, to 1e-12."""
    monkeypatch.setattr(blocks, "BLOCK", 16)
    scope = ALONE
    if path == "blocks":
        scope = Component(ALONE.layout, mesh=make_mesh(ALONE.layout, jax.devices()[:1]))
    elif path != "rows":
        scope = Component(LAYOUTS[path](1, 4))
    in_order = AttentionMask.for_rows(jnp.asarray(SEGMENTS_BL), jnp.asarray(SEGMENTS_BL), causal=True)
    segments_BL = arrange(jnp.asarray(SEGMENTS_BL), scope)
    mask = AttentionMask.for_rows(segments_BL, segments_BL, causal=True).in_zigzag(scope)
    order = np.asarray(arrange(jnp.arange(64)[None], scope)[0])

    def fast(q, k, v):
        q, k, v = q[:, order] * 8**-0.5, k[:, order], v[:, order]
        if path in ("rows", "blocks"):
            assert len(blocks.blocks(64, 64, mask, scope)) == {"rows": 1, "blocks": 4}[path]
            y, _ = blocks.attend(PRODUCTS, q, k, v, None, mask, scope)
        else:
            y, _ = ring.Ring(PRODUCTS, mix, scope, "act_kv_heads")(q, k, v, None, mask)
        return y[:, np.argsort(order)]

    want = outputs_and_gradients(lambda q, k, v: plain.attention(q, k, v, in_order.matrix()), in_order)(*vectors())
    got = outputs_and_gradients(fast, in_order)(*vectors())
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-12, atol=1e-12), got, want)


@pytest.mark.integration
@pytest.mark.parametrize("queries", [16, 48, 64])
@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_one_after_the_other_are_plain_attention(queries, window, causal, float64, monkeypatch):
    """On a CPU long rows are attended to by heads, 16, 32 or all 64 queries at a time: values and gradients of packed rows with
    shared heads and windows are those of whole rows, to 1e-12, padding's too, and so are sums of exponentials."""
    monkeypatch.setattr(blocks, "QUERIES", queries)
    monkeypatch.setattr(blocks, "CAUSAL_LOGITS" if causal else "LOGITS", 64 * 64)
    segments_BL = jnp.asarray(SEGMENTS_BL)
    mask = AttentionMask.for_rows(segments_BL, segments_BL, causal=causal).within(window)
    cpu = Component(ALONE.layout, mesh=make_mesh(ALONE.layout, jax.devices()[:1]))
    logits = functools.partial(masked_logits, limit=2.0, max_distance=0)

    def total(scope, q, k, v):
        y_BLND, mass_BNL = blocks.attend(logits, q, k, v, None, mask, scope)
        return jnp.sum(jnp.sin(y_BLND)) + jnp.sum(jnp.sin(mass_BNL)), (y_BLND, mass_BNL)

    assert blocks.is_by_head(64, 64, mask, cpu) and not blocks.is_by_head(64, 64, mask, ALONE)
    want, got = (
        jax.jit(jax.value_and_grad(functools.partial(total, scope), argnums=(0, 1, 2), has_aux=True))(*vectors())
        for scope in (ALONE, cpu)
    )
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-12, atol=1e-12), got, want)


def test_which_rows_are_attended_to_by_heads():
    """Long rows on one CPU: not short ones, causal ones from twice the length on, and not those of two devices."""
    one = Component(ALONE.layout, mesh=make_mesh(ALONE.layout, jax.devices()[:1]))
    two = Component(LAYOUTS["data_parallel"](2, 1), mesh=make_mesh(LAYOUTS["data_parallel"](2, 1), jax.devices()[:2]))
    whole, causal = (_mask_of_ones(causal=causal) for causal in (False, True))
    assert blocks.is_by_head(512, 512, whole, one) and not blocks.is_by_head(511, 512, whole, one)
    assert blocks.is_by_head(1024, 1024, causal, one) and not blocks.is_by_head(512, 512, causal, one)
    assert not blocks.is_by_head(1500, 1500, whole, two)


def test_parts_of_a_head():
    """500 of 1,500 queries are taken at once, and all of 1,499, a prime number. Causal rows have smaller parts that see no key
    after their last query, but not if there are more keys than queries, or keys that stand before the row as a prefix. The
    longest rows have 16."""
    whole, causal = (_mask_of_ones(causal=causal) for causal in (False, True))
    assert blocks.parts_of_head(1500, 1500, whole) == [(0, 500, 1500), (500, 1000, 1500), (1000, 1500, 1500)]
    assert blocks.parts_of_head(1499, 1499, whole) == [(0, 1499, 1499)]
    assert blocks.parts_of_head(256, 256, causal) == [(0, 128, 128), (128, 256, 256)]
    assert all(len(blocks.parts_of_head(n, n, mask)) == 16 for n in (8192, 65_536) for mask in (whole, causal))
    assert blocks.parts_of_head(256, 512, causal) == [(0, 256, 512)]
    assert blocks.parts_of_head(256, 256, causal.with_prefix(jnp.ones((1, 256), bool))) == [(0, 256, 256)]


def _mask_of_ones(causal: bool) -> AttentionMask:
    ones_1L = jnp.ones((1, 1), jnp.int32)
    return AttentionMask.for_rows(ones_1L, ones_1L, causal=causal)


@pytest.mark.integration
@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_long_causal_rows_in_blocks_are_whole_rows(rate, float64, monkeypatch):
    """Queries in blocks of 16, each with the keys up to its end, give what 64 at once give, and the same gradients; what dropout
    draws, too. Without a mesh rows are whole."""
    monkeypatch.setattr(blocks, "BLOCK", 16)
    scope = Component(ALONE.layout, mesh=make_mesh(ALONE.layout, jax.devices()[:1]))
    c = BlockConfig(
        model_dim=16,
        attention=GroupedQuery(heads=4, head_dim=8, kv_heads=2),
        positions=RelativeBuckets(buckets=8),
        feed_forward=Dense(hidden_dim=1),
    )
    block, row = (Attention(c, jax.random.key(0), w, buckets=RelativeBuckets(buckets=8)) for w in (scope, ALONE))
    x_BLM = jax.random.normal(jax.random.key(1), (2, 64, 16), jnp.float64)
    segments_BL = jnp.where(jnp.arange(64) < 40, 1, 2)[None].repeat(2, 0)
    mask = AttentionMask.for_rows(segments_BL, segments_BL, causal=True)

    def loss(layer, x_BLM):
        return jnp.sum(jnp.sin(layer(x_BLM, layer.keys_values(x_BLM), mask, rate=rate, key=jax.random.key(2))))

    assert len(blocks.blocks(64, 64, mask, scope)) == 4 and len(blocks.blocks(64, 64, mask, ALONE)) == 1
    by_row, by_block = (jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(layer, x_BLM) for layer in (row, block))
    for a, b in zip(jax.tree.leaves(by_row), jax.tree.leaves(by_block), strict=True):
        assert_allclose(a, b, rtol=0, atol=1e-6 if a.dtype == jnp.float32 else 1e-12)  # parameters are float32


def test_dropout_by_query_has_its_rate_and_no_pattern():
    """A quarter is dropped, and rows of the batch, heads, queries and keys are all unlike each other; a block of queries with the
    keys before its end is that part of the row."""
    of_rows, of_all = draw_seeds(jax.random.key(0), (2, 3, 64))
    kept = np.asarray(dropped(jnp.ones((2, 3, 64, 64)), 0.25, (of_rows, of_all)))
    assert set(np.unique(kept)) == {0, np.float32(4 / 3)}
    assert_allclose((kept == 0).mean(), 0.25, atol=0.01)
    for axis in range(4):
        ahead = np.roll(kept, 1, axis)
        assert_allclose(((kept == 0) & (ahead == 0)).mean(), 0.25**2, atol=0.01)
    block = dropped(jnp.ones((2, 3, 16, 48)), 0.25, (of_rows[:, :, 32:48], of_all))
    assert_array_equal(block, kept[:, :, 32:48, :48])
