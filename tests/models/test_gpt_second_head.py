"""GPT's second prediction head: DeepSeek-V3's equations, what it sees, and where it counts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from models.gpt.model import Gpt
from models.parts import transformer
from models.parts.nested import changed
from models.protocol import Context
from models.sharding.component import Component
from models.sharding.layout import LayoutError
from models.sharding.layouts import ONE_DEVICE, pipelines
from models.sharding.params import describe
from tests.helpers.models import compiled
from trainers.plan import make_plan

WEIGHT, LENGTH = 0.3, 12


@functools.cache
def model(name: str = "gpt.llama2_70b", weight: float = WEIGHT) -> Gpt:
    c = changed(registry.tiny(registry.load(name)).model, {"output.mtp": weight, "dropout": 0.0})
    return jax.jit(lambda key: Gpt(c, key, Component(ONE_DEVICE)))(jax.random.key(0))


def batch(rows: int = 2, seed: int = 0) -> dict[str, jax.Array]:
    """Rows of a document of 7 tokens, one of 3, and padding."""
    segments = np.array([1] * 7 + [2] * 3 + [0] * 2)
    positions = np.array([*range(7), *range(3), 0, 0])
    tokens = np.random.default_rng(seed).integers(1, 60, (rows, LENGTH))
    whole = {"tokens": tokens, "segments": np.tile(segments, (rows, 1)), "positions": np.tile(positions, (rows, 1))}
    return {name: jnp.asarray(x, jnp.int32) for name, x in whole.items()}


@functools.partial(jax.jit, static_argnames="training")
def losses(m: Gpt, b: dict[str, jax.Array], *, training: bool = True):
    return m.loss(b, dataclasses.replace(Context.evaluation(), training=training))


@pytest.mark.integration
def test_it_is_the_papers():
    """Equations 21 to 24: h' = M [norm(h); norm(embedding of the next token)], a layer, a norm, the model's output matrix, the
    mean cross-entropy of the tokens after the next ones. Each document is computed alone, over the positions that have one."""
    m, b = model(), batch()
    head = m.mtp
    assert head is not None
    (layer,) = transformer.unstacked(head.layer)

    def rms(x, scale):
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + m.c.norm.eps) * scale

    @jax.jit
    def hidden(one):
        x = m.embed(one, Context.evaluation())
        return m.apply_layers(m.decoder, x, one, Context.evaluation().for_layers(m.c.layers), m.totals(one))[0][0]

    @jax.jit
    def after_a_layer(joined, shorter):
        return layer(joined[None], m._arranged(shorter), Context.evaluation())[0][0]

    nats = []
    for row in range(2):
        for start, end in ((0, 7), (7, 10)):
            one = {"tokens": np.asarray(b["tokens"])[row : row + 1, start:end]}
            size = end - start
            one |= {"segments": np.ones((1, size), np.int32), "positions": np.arange(size, dtype=np.int32)[None]}
            h = rms(np.asarray(hidden(one)), np.asarray(m.final_norm.scale[...]))[:-1]  # pyright: ignore[reportOptionalMemberAccess]
            table = np.asarray(m.embedding.table[...])
            following = table[np.asarray(one["tokens"][0, 1:])]
            norms = (head.hidden_norm, head.token_norm)
            pair = [rms(x, np.asarray(norm.scale[...])) for x, norm in zip((h, following), norms, strict=True)]
            joined = np.concatenate(pair, axis=-1) @ np.asarray(head.join[...])
            shorter = {name: x[:, :-1] for name, x in one.items()}
            y = np.asarray(after_a_layer(joined, shorter))
            logits = rms(y, np.asarray(head.norm.scale[...])) @ np.asarray(m.softmax.weight[...])  # pyright: ignore
            targets = np.asarray(one["tokens"][0, 2:])
            logp = logits[: len(targets)] - np.log(np.sum(np.exp(logits[: len(targets)]), axis=-1, keepdims=True))
            nats += [-logp[i, target] for i, target in enumerate(targets)]
    loss, plain = losses(m, b), losses(m, b, training=False)
    assert len(nats) == 2 * (5 + 1) == int(loss.metrics["mtp_cross_entropy"].over)
    assert_allclose(float(loss.metrics["mtp_cross_entropy"].value), np.mean(nats), rtol=2e-6)
    assert_allclose(float(loss.value - plain.value), WEIGHT * np.mean(nats), rtol=1e-5)
    assert_allclose(float(loss.extra), WEIGHT * np.mean(nats), rtol=2e-6)


def test_it_is_of_training_alone():
    """Without it the other parameters are the same, and so are scores, outputs and what the model writes."""
    m, without, b = model(), model(weight=0.0), batch()
    named = {info.name: leaf for info, leaf in zip(describe(m), jax.tree.leaves(m), strict=True)}
    for info, leaf in zip(describe(without), jax.tree.leaves(without), strict=True):
        assert_array_equal(leaf, named.pop(info.name))
    assert named and all(name.startswith("mtp.") for name in named)
    assert_array_equal(compiled(m, b), compiled(without, b))
    scores, others = losses(m, b, training=False), losses(without, b, training=False)
    assert scores.metrics.keys() == others.metrics.keys() and float(scores.value) == float(others.value)
    assert float(losses(without, b).value) == float(others.value) != float(losses(m, b).value)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["gpt.llama2_70b", pytest.param("gpt.deepseek_v3", marks=pytest.mark.slow)])
def test_all_of_it_learns(name):
    """Every parameter has a gradient of its loss, the shared table and output matrix too; the stack's last layer has one."""
    m, b = model(name), batch(rows=8)
    if m.c.moe:
        b = {key: jnp.pad(x, ((0, 0), (0, 4))) for key, x in b.items()}  # rows of a routing group
    context = dataclasses.replace(Context.evaluation(), training=True)

    def second(m: Gpt) -> jax.Array:
        loss, plain = (m.loss(b, dataclasses.replace(context, training=training)) for training in (True, False))
        return loss.metrics["mtp_cross_entropy"].value + 0 * plain.value

    grads = jax.jit(jax.grad(second))(m)
    for info, grad in zip(describe(m), jax.tree.leaves(grads), strict=True):
        unused = info.name in ("softmax.bias",) or info.name.endswith("correction")
        assert unused or np.any(np.asarray(grad) != 0), info.name


def test_where_it_cannot_be_is_an_error():
    """In pipelines, whose last stage would have more to do; with a prefix, of which tokens would see what is predicted."""
    e = registry.tiny(registry.load("gpt.llama2_70b"))
    staged = dataclasses.replace(e, model=changed(e.model, {"output.mtp": WEIGHT}), layout=pipelines("decoder")["gpipe"](2, 1, 1))
    with pytest.raises(LayoutError, match=r"model.output.mtp=0.3: layout 'gpipe\S*' has the decoder in stages"):
        make_plan(staged, abstract=True)
    for fields, said in (
        ({"output.mtp": -1.0}, "output.mtp=-1.0: must be 0 or more"),
        ({"output.mtp": 0.1, "prefix": True}, "no prefix"),
    ):
        with pytest.raises(ValueError, match=said):
            changed(e.model, fields)


def test_deepseeks_has_the_released_size():
    """11.5 B for the layer, as DeepSeek's page of weights says, table and output matrix left out; the projection, 2 M^2, and
    three norms come on top."""
    infos = make_plan(registry.load("mlperf.deepseekv3_671b"), abstract=True).parameters
    own = {info.name.removeprefix("mtp."): info.size for info in infos if info.name.startswith("mtp.")}
    layer = sum(size for name, size in own.items() if name.startswith("layer."))
    attention = 7168 * (1536 + 576) + 1536 + 1536 * 128 * 192 + 512 + 512 * 128 * 256 + 128 * 128 * 7168
    assert layer == attention + 257 * 3 * 7168 * 2048 + 7168 * 256 + 256 + 2 * 7168 == 11_507_286_272
    assert sum(own.values()) == layer + 2 * 7168**2 + 3 * 7168 == 11_610_068_224
    assert sum(info.size for info in infos) == 671_026_419_200 + 11_610_068_224
