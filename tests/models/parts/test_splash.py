"""Attention by the TPU's kernel is plain attention, and taken only where it can be. Here a CPU interprets the kernel."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from models.parts.attention import splash
from models.parts.attention.config import GroupedQuery
from models.parts.attention.logits import masked_logits, mix
from models.parts.attention.mask import AttentionMask
from models.parts.attention.module import Attention
from models.parts.attention.plain import attention
from models.parts.transformer_config import BlockConfig, Dense
from models.sharding.component import Component, make_mesh
from models.sharding.layout import Layout, rules
from models.sharding.layouts import LAYOUTS, fully_sharded, tensor_parallel

B, L, D = 4, 256, 16
ONE = Layout(name="one", mesh=(("all", 1),))
# Of packed rows, two with padding: examples begin and end inside blocks, and one block is all padding.
LENGTHS = [[256], [100, 156], [60, 30, 90], [128]]
SEGMENTS = np.array([np.repeat([*range(1, len(n) + 1), 0], [*n, L - sum(n)]) for n in LENGTHS], np.int32)
VARIANTS = {
    "causal": dict(heads=(4, 4), causal=True),
    "bidirectional": dict(heads=(4, 4), cap=2.0),
    "grouped": dict(heads=(8, 2), causal=True, cap=2.0),
    "one head of keys": dict(heads=(4, 1), causal=True),
    "other keys": dict(heads=(4, 2), keys=384),
    "other values": dict(heads=(4, 4), causal=True, values=24),  # of another size than keys, as latent attention has them
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Two or three blocks a row, not one."""
    monkeypatch.setattr(splash, "BLOCKS", (128,))


def component(layout: Layout) -> Component:
    return Component(layout, "attention", make_mesh(layout, jax.devices()[: layout.devices]))


def inputs(heads: tuple[int, int], keys: int = L, values: int = D, dtype: Any = jnp.float32):
    """Queries, keys, values, weights of the outputs; segments of queries and keys."""
    rng = np.random.default_rng(0)
    shapes = [(B, L, heads[0], D), (B, keys, heads[1], D), (B, keys, heads[1], values), (B, L, heads[0], values)]
    vectors = [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]
    return *vectors, jnp.asarray(SEGMENTS), jnp.asarray(np.pad(SEGMENTS, ((0, 0), (keys - L, 0)), mode="edge"))


def plain(q, k, v, mask: AttentionMask, cap: float = 0.0) -> jax.Array:
    """Attention as it is defined, of queries that are scaled already; with capped logits, which the definition has not, mixed."""
    if not cap:
        return attention(q * q.shape[-1] ** 0.5, k, v, mask.matrix())
    logits_BNLS = masked_logits(q, k, None, mask, limit=cap, max_distance=0)
    return mix(jax.nn.softmax(logits_BNLS, axis=-1).astype(q.dtype), v)


def gradients(attend, variant: str, dtype: Any = jnp.float32):
    """(outputs, gradients of queries, keys and values) of a weighted sum of what real queries get."""
    fields = dict(VARIANTS[variant])
    causal, cap = fields.pop("causal", False), fields.pop("cap", 0.0)

    @jax.jit
    def of(q, k, v, weight, segments_BL, segments_BS):
        def total(q, k, v):
            y = attend(q, k, v, AttentionMask.for_rows(segments_BL, segments_BS, causal=causal), cap=cap)
            return jnp.sum(jnp.where(segments_BL[..., None, None] > 0, y * weight, 0).astype(jnp.float32)), y

        return jax.grad(total, argnums=(0, 1, 2), has_aux=True)(q, k, v)

    grads, y = of(*inputs(**fields, dtype=dtype))
    return jax.tree.map(lambda x: np.asarray(x, np.float32), (y, *grads))


@functools.cache
def wanted(variant: str):
    return gradients(plain, variant)


def same(result, want, atol: float = 2e-5) -> None:
    """Equal but for the outputs of padding, which are finite."""
    assert all(np.isfinite(x).all() for x in result)
    real = SEGMENTS > 0
    assert_allclose(result[0][real], want[0][real], rtol=0, atol=atol)
    for a, b in zip(result[1:], want[1:], strict=True):
        assert_allclose(a, b, rtol=0, atol=atol)


@pytest.mark.integration
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernel_is_plain_attention(variant):
    """On one device values and gradients of packed rows are those of plain code, in single precision; padding is finite."""
    same(gradients(functools.partial(splash.attend, scope=component(ONE)), variant), wanted(variant))


def test_the_kernel_is_plain_attention_in_half_precision():
    """In bfloat16 it differs from single precision by no more than plain code does, give or take a rounding."""
    result = gradients(functools.partial(splash.attend, scope=component(ONE)), "grouped", jnp.bfloat16)
    same(result, wanted("grouped"), atol=0.1)
    errors = [
        [np.abs(a - b)[SEGMENTS > 0].mean() for a, b in zip(tensors, wanted("grouped"), strict=True) if a.shape[1] == L]
        for tensors in (result, gradients(plain, "grouped", jnp.bfloat16))
    ]
    assert np.all(np.array(errors[0]) < 1.1 * np.array(errors[1]))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("layout", "variant"),
    [
        pytest.param(tensor_parallel(2, 2), "causal", marks=pytest.mark.slow),
        (tensor_parallel(2, 2), "grouped"),  # keys and values whole on every device: each takes its head of the two
        pytest.param(tensor_parallel(1, 4), "grouped", marks=pytest.mark.slow),  # two heads, four devices
        pytest.param(tensor_parallel(2, 2), "one head of keys", marks=pytest.mark.slow),
        (fully_sharded(2, 2), "other keys"),
        (Layout(name="rows", mesh=(("a", 2), ("b", 2)), rules=rules(batch="a")), "causal"),  # an axis that cuts nothing
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_the_kernel_is_plain_attention_on_a_mesh(layout, variant):
    """On four devices, cut by rows and heads, values and gradients are those of one."""
    same(gradients(functools.partial(splash.attend, scope=component(layout)), variant), wanted(variant))


def test_the_kernel_runs_in_pipeline_stages():
    """Mapped over stages that lie on devices of their own, as a pipeline does it, it is the same in each."""
    layout = Layout(name="stages", mesh=(("stage", 2), ("a", 2)), rules=rules(act_heads="a", layers="stage"))
    scope = component(layout)

    def staged(q, k, v, mask, cap):
        rows = [x.reshape(2, B // 2, *x.shape[1:]) for x in (q, k, v, mask.segments_BL, mask.segments_BS)]

        def one(q, k, v, a, b):
            return splash.attend(q, k, v, AttentionMask.for_rows(a, b, causal=mask.causal), scope, cap=cap)

        return jax.vmap(one, spmd_axis_name="stage")(*rows).reshape(q.shape)

    same(gradients(staged, "grouped"), wanted("grouped"))


# --- where it is taken --------------------------------------------------------------------------------------------

TPU: Any = SimpleNamespace(devices=np.array([[SimpleNamespace(platform="tpu")]]))
TENSOR = tensor_parallel(2, 2)


def asked(
    *,
    layout: Layout = TENSOR,
    mesh: Any = TPU,
    lengths=(2048, 1024),
    dtype: Any = jnp.bfloat16,
    causal: bool = True,
    in_order: bool = True,
    **why: bool,
) -> bool:
    """The decision of `applies` for rows that it is there for, but for these arguments."""
    q, k = (jax.ShapeDtypeStruct((B, n, 4, D), dtype) for n in lengths)
    segments = (jnp.ones((B, n), jnp.int32) for n in lengths)
    mask = dataclasses.replace(AttentionMask.for_rows(*segments, causal=causal), in_order=in_order)
    why = {"biased": False, "dropping": False} | why
    return splash.applies(Component(layout, "attention", mesh), q, k, mask, **why)  # pyright: ignore[reportArgumentType]


def test_long_rows_on_tpus_take_the_kernel():
    """It's taken for whole rows on TPUs, causal ones in their order, others in any."""
    assert asked()
    assert asked(dtype=jnp.float32)
    assert asked(layout=fully_sharded(2, 2))
    assert asked(causal=False, in_order=False)
    with splash.without_kernel():  # for runs that are older than it
        assert not asked()
    assert asked()


@pytest.mark.parametrize(
    "but",
    [
        dict(mesh=None),
        dict(mesh=make_mesh(ONE, jax.devices()[:1])),
        dict(biased=True),
        dict(dropping=True),
        dict(layout=LAYOUTS["context_gathered"](2, 2)),
        dict(layout=LAYOUTS["context_ring"](2, 2)),
        dict(in_order=False),
        dict(dtype=jnp.float64),
        dict(lengths=(1024, 512)),
        dict(lengths=(1, 1024)),  # decoding
        dict(lengths=(1088, 1088)),  # no multiple of a block
    ],
    ids=str,
)
def test_all_else_takes_plain_code(but):
    """One such thing, and it's not taken."""
    assert not asked(**but)


def test_attention_asks():
    """Long rows on a CPU take plain code; where the kernel pays the same module gives the same through it."""
    scope = component(tensor_parallel(2, 2))
    heads, dense = GroupedQuery(heads=4, head_dim=8, kv_heads=2), Dense(hidden_dim=1)
    c = BlockConfig(model_dim=32, attention=heads, positions=None, feed_forward=dense)
    made = Attention(c, jax.random.key(0), scope)
    x_BLM = jax.random.normal(jax.random.key(1), (B, L, 32))
    mask = AttentionMask.for_rows(jnp.asarray(SEGMENTS), jnp.asarray(SEGMENTS), causal=True)

    def run(x_BLM, rate: float = 0.0, key: jax.Array | None = None):
        return made(x_BLM, made.keys_values(x_BLM), mask, rate=rate, key=key)

    def kernels(*args) -> int:
        return str(jax.make_jaxpr(lambda: run(*args))()).count("pallas_call")

    real = SEGMENTS > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splash, "LENGTH", L)
        assert kernels(x_BLM) == 0
        plainly = np.asarray(jax.jit(lambda x: run(x))(x_BLM))
        patch.setattr(splash, "applies", lambda *_, biased, dropping: not biased and not dropping)
        assert kernels(x_BLM) == 1
        assert kernels(x_BLM, 0.1, jax.random.key(2)) == 0  # dropout
        assert kernels(x_BLM, 0.1) == 1  # evaluation
        assert_allclose(np.asarray(jax.jit(lambda x: run(x))(x_BLM))[real], plainly[real], rtol=0, atol=1e-5)


def test_only_rows_in_their_order_are_natural():
    """Rows are in order until a layout arranges them in zigzag order; places given one by one are not known to be."""
    mask = AttentionMask.for_rows(SEGMENTS, SEGMENTS, causal=True)  # pyright: ignore[reportArgumentType]
    assert mask.in_order
    for name, in_order in (("context_ring", True), ("context_ring_balanced", False)):
        assert mask.in_zigzag(Component(LAYOUTS[name](2, 2))).in_order == in_order
    assert not AttentionMask(mask.segments_BL, mask.segments_BS, mask.index_BL, mask.index_BS).in_order
