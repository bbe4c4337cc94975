"""Ring attention is attention: the same values and gradients however many pieces rows are cut into, in any order."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

from models.parts.attention import ring
from models.parts.attention.config import GroupedQuery, QkNorm, RelativeBuckets, Rotary
from models.parts.attention.logits import masked_logits, mix
from models.parts.attention.mask import AttentionMask, arrange, zigzag
from models.parts.attention.module import Attention
from models.parts.attention.rotary import rotation
from models.parts.transformer_config import BlockConfig, Dense
from models.sharding.component import Component, make_mesh
from models.sharding.layout import Layout, LayoutError, rules
from models.sharding.layouts import LAYOUTS, context_ring, context_ring_balanced
from tests.helpers.models import batch_of, compiled, model_of

B, L, M, PIECES = 4, 16, 8, 4
# Of packed rows, the last with padding: pieces begin and end inside examples.
SEGMENTS = np.array([[1] * 16, [1] * 5 + [2] * 11, [1] * 7 + [2] * 2 + [3] * 7, [1] * 13 + [0] * 3], np.int32)
# Positions in PIECES pieces of an early and a late chunk each (test_zigzag_gives_every_piece_an_early_and_a_late_chunk).
ZIGZAG = np.concatenate([[2 * i, 2 * i + 1, 14 - 2 * i, 15 - 2 * i] for i in range(PIECES)])
BUCKETS = RelativeBuckets(buckets=8, max_distance=16)
VARIANTS = {
    "grouped": dict(kv_heads=2, biases="qkvo", per_dim_scale=True, logit_cap=2.0, causal=True, rotary=True),
    "relative": dict(kv_heads=1, buckets=BUCKETS, causal=True),
    "bidirectional": dict(buckets=BUCKETS, logit_cap=3.0),
    "windowed": dict(kv_heads=2, sinks=True, qk_norm=QkNorm(kind="rms"), causal=True, rotary=True, window=5),
    "windowed_bidirectional": dict(sinks=True, qk_norm=QkNorm(kind="rms_plus_one", over="all"), window=3),
}


def attention(scope: Component, buckets: RelativeBuckets | None = None, **fields) -> Attention:
    """Attention in double precision, every bias and scale made to matter."""
    heads, dense = GroupedQuery(heads=4, head_dim=4, **fields), Dense(hidden_dim=1)
    c = BlockConfig(model_dim=M, attention=heads, positions=buckets, feed_forward=dense)

    @jax.jit
    def drawn():
        made = Attention(c, jax.random.key(0), scope, buckets=buckets)
        leaves, tree = jax.tree.flatten(made)
        keys = jax.random.split(jax.random.key(1), len(leaves))
        return jax.tree.unflatten(tree, [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)])

    return drawn()


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def gradients(made: Attention, inputs, causal: bool, rotary: bool, window: int = 0):
    """(gradients of a weighted sum of what real queries get, what all get)."""
    x_BLM, weight_BLM, segments_BL = inputs
    places_BL = jnp.broadcast_to(jnp.arange(L), (B, L))
    segments_BL, places_BL = arrange(segments_BL, made.scope), arrange(places_BL, made.scope)
    mask = AttentionMask.for_rows(segments_BL, segments_BL, causal=causal).in_zigzag(made.scope).within(window)

    def total(made, x_BLM):
        turned = rotation(places_BL, 4, Rotary(base=100.0)) if rotary else None
        y_BLM = made(x_BLM, made.keys_values(x_BLM, turned), mask, rotation=turned)
        return jnp.sum(jnp.where(segments_BL[..., None] > 0, y_BLM * weight_BLM, 0)), y_BLM

    return jax.grad(total, argnums=(0, 1), has_aux=True)(made, x_BLM)


def run(layout: Layout, *, mesh: bool = False, causal: bool = False, rotary: bool = False, window: int = 0, **fields):
    """(gradients of parameters, of inputs, outputs of real queries), positions in their natural order."""
    with jax.enable_x64(True):
        scope = Component(layout, "attention", make_mesh(layout) if mesh else None)
        rng = np.random.default_rng(0)
        vectors = [rng.normal(size=(B, L, M)) for _ in range(2)]
        order = ZIGZAG if layout.balanced else np.arange(L)
        inputs = (*(x[:, order] for x in vectors), SEGMENTS)
        (made, dx_BLM), y_BLM = gradients(attention(scope, **fields), inputs, causal, rotary, window)
        back = np.argsort(order)
        y_BLM = np.where(SEGMENTS[..., None] > 0, np.asarray(y_BLM)[:, back], 0)
        return jax.device_get(jax.tree.leaves(made)), np.asarray(dx_BLM)[:, back], y_BLM


@functools.cache
def plain(variant: str):
    return run(Layout(name="one", mesh=(("all", 1),)), **VARIANTS[variant])


def same(result, want) -> None:
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-12, atol=1e-12), result, want)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("layout", "variant"),
    [
        *(("context_ring_balanced", variant) for variant in VARIANTS),
        ("context_ring", "grouped"),
        *(pytest.param("context_ring", variant, marks=pytest.mark.slow) for variant in VARIANTS if variant != "grouped"),
    ],
)
def test_a_ring_is_plain_attention(layout, variant):
    """In four pieces on one device values and gradients are those of whole rows, to 1e-12, with every feature."""
    same(run(LAYOUTS[layout](2, PIECES), **VARIANTS[variant]), plain(variant))


@pytest.mark.integration
@pytest.mark.parametrize("layout", ["context_gathered", "context_ring", "context_ring_balanced"])
def test_a_ring_of_devices_is_plain_attention(layout):
    """On a mesh of 2 x 4 devices values and gradients are those of one device, to 1e-12."""
    same(run(LAYOUTS[layout](2, PIECES), mesh=True, **VARIANTS["grouped"]), plain("grouped"))


def rings(layout: Layout, mesh: bool = False, rate: float = 0.0) -> ring.Ring:
    scope = Component(layout, "attention", make_mesh(layout) if mesh else None)
    return ring.Ring(functools.partial(masked_logits, limit=0.0, max_distance=0), mix, scope, "act_heads", rate)


def program(layout: Layout, length: int, size: int, mesh: bool = False) -> jax.stages.Compiled:
    """Forward and backward pass of causal attention of rows of two heads, without projections."""
    around = rings(layout, mesh)

    def total(q_BLND, k_BSGD, v_BSGD, segments_BL):
        segments_BL = arrange(segments_BL, around.scope)
        mask = AttentionMask.for_rows(segments_BL, segments_BL, causal=True).in_zigzag(around.scope)
        return jnp.sum(around(q_BLND, k_BSGD, v_BSGD, None, mask)[0] ** 2)

    vectors = jax.ShapeDtypeStruct((2, length, 2, size), jnp.float32)
    numbers = jax.ShapeDtypeStruct((2, length), jnp.int32)
    cut = around.scope.mesh and jax.NamedSharding(around.scope.mesh, around.scope.spec(("batch", "length")))
    return jax.jit(jax.grad(total, argnums=(0, 1, 2)), in_shardings=cut).lower(*[vectors] * 3, numbers).compile()


def test_zigzag_order_halves_the_work():
    """The balanced causal ring computes three quarters of its blocks in the first step and half in every other: its
    compiled program, whose cost counts a loop's body once, has (3/4 + 1/2) / 2 of the FLOPs."""
    flops = {}
    for make in (context_ring, context_ring_balanced):
        cost = program(make(1, PIECES), 256, 512).cost_analysis()
        flops[make.name] = cost and cost["flops"]
    assert flops["context_ring_balanced"] / flops["context_ring"] == pytest.approx(1.25 / 2, rel=0.02)


@pytest.mark.parametrize("layout", ["context_ring", "context_ring_balanced"])
def test_no_device_holds_a_row(layout):
    """Nothing in the program of a ring is as large as the logits of a device's queries with a row's keys, forward or backward,
    and no vectors are gathered: they travel by collective-permute."""
    text = program(LAYOUTS[layout](2, PIECES), 64, 4, mesh=True).as_text() or ""
    sizes = [math.prod(int(d) for d in dims.split(",")) for dims in re.findall(r"f32\[([\d,]+)\]", text)]
    assert max(sizes) < 2 * 16 * 64
    assert "collective-permute" in text
    assert not re.search(r"= f32\S* all-(gather|to-all)", text)


@pytest.mark.integration
def test_dropout_in_a_ring_draws_each_probability_alone(float64):
    """With equal probabilities and values of unit vectors the output is the mask: a quarter is dropped, the rest scaled up,
    and no two blocks are alike; gradients are those of what was drawn."""
    around = rings(context_ring(1, PIECES), rate=0.25)
    q_BLND, v_BSGD = jnp.zeros((1, 64, 1, 64)), jnp.eye(64)[None, :, None, :]
    mask = AttentionMask.for_rows(*[jnp.ones((1, 64), jnp.int32)] * 2)
    attend = jax.jit(lambda q, k, v: around(q, k, v, None, mask, jax.random.key(0))[0])
    drawn = np.asarray(attend(q_BLND, q_BLND, v_BSGD))[0, :, 0] * 64
    assert set(np.unique(drawn.round(6))) == {0, round(4 / 3, 6)}
    assert np.mean(drawn == 0) == pytest.approx(0.25, abs=0.03)
    blocks = drawn.reshape(PIECES, 16, PIECES, 16).swapaxes(1, 2).reshape(-1, 256)
    assert len(np.unique(blocks, axis=0)) == PIECES**2
    small = [jax.random.normal(key, (1, 64, 1, 2)) for key in jax.random.split(jax.random.key(1), 3)]
    check_grads(attend, small, order=1, modes=["rev"], atol=1e-6, rtol=1e-6)


def test_zigzag_gives_every_piece_an_early_and_a_late_chunk():
    """Eight positions in two pieces are 0 1 6 7 and 2 3 4 5, which see 2 + 1 + 7 + 8 and 3 + 4 + 5 + 6 keys."""
    assert_array_equal(zigzag(jnp.arange(8)[None], 2)[0], [0, 1, 6, 7, 2, 3, 4, 5])
    scope = Component(dataclasses.replace(context_ring(1, 2), balanced=True))
    mask = AttentionMask.for_rows(*[jnp.ones((1, 8), jnp.int32)] * 2, causal=True).in_zigzag(scope)
    assert_array_equal(mask.matrix()[0].sum(1).reshape(2, 4).sum(1), [18, 18])


def test_a_ring_generates_as_one_device_does(float64):
    """Prompts read in a ring and continued a token at a time give the logits of reading all at once on one device."""
    batch, layout = batch_of([12], [12]), context_ring(2, PIECES)
    want = np.asarray(compiled(model_of("gpt.llama2_70b"), batch))
    scope = Component(layout, mesh=make_mesh(layout))
    model = model_of("gpt.llama2_70b", scope=scope)
    cache = jax.jit(model.start, static_argnums=(1, 2))({"tokens": batch["tokens"][:, :8], "lengths": jnp.array([8, 8])}, 1, 2)
    step = jax.jit(lambda cache, ids, at: model.step(cache, ids, at))
    for at in range(2):
        logits, cache = step(cache, batch["tokens"][:, 7 + at, None], np.int32(at))
        assert_allclose(logits[:, 0], want[:, 7 + at], rtol=0, atol=1e-12)


def test_what_does_not_fit_is_refused_by_name():
    """Rows that cannot be dealt out, and keys that lie elsewhere than queries, are errors that say what would fit."""
    balanced = Component(context_ring_balanced(2, 4), "decoder")
    with pytest.raises(LayoutError, match=r"'length' of size 20 .* 2 x 4 chunks of zigzag .* that fit are 16 or 24"):
        arrange(jnp.zeros((2, 20), jnp.int32), balanced)
    with pytest.raises(LayoutError, match=r"6 positions are not divisible by 4 shards; the nearest that fit are 4 or 8"):
        x = jnp.zeros((1, 6, 1, 2))
        rings(context_ring(2, 4))(x, x, x, None, AttentionMask.for_rows(*[jnp.ones((1, 6), jnp.int32)] * 2))
    with pytest.raises(LayoutError, match=r"rule 'keys' -> \('model',\) must be that of 'length' -> \('data',\)"):
        ring.num_shards(Component(Layout(name="x", mesh=(("data", 2), ("model", 4)), rules=rules(keys="model", length="data"))))
