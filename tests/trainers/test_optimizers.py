"""Optimizers act on each tensor alone: stacking layers or experts into one array changes no update."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from configs.experiment import Finetuning
from configs.optimizers import Adafactor, AdaGrad, AdamW, ByComponent, Constant, Cosine, InverseSqrt, Lamb, OfComponent, Sgd
from configs.registry import ConfigError
from models.sharding.component import Component
from models.sharding.layout import Layout, rules
from models.sharding.params import ParamInfo
from trainers.optimizers import adafactor, transforms

RATE = Constant(value=0.1)
OPTIMIZERS = [
    Adafactor(schedule=RATE, min_factored=4),
    Adafactor(schedule=RATE, min_factored=4, parameter_scale=False),
    AdamW(schedule=RATE, weight_decay=0.1),
    Lamb(schedule=RATE, weight_decay=0.1),
    Sgd(schedule=RATE, momentum=0.9),
    AdaGrad(schedule=RATE),
    AdaGrad(schedule=RATE, by_row=True),
]
LAYOUT = Layout(name="mine", mesh=(("x", 2), ("y", 4)), rules=rules(embed="x", mlp="y", heads="y", expert="y"))


def info(name: str, shape: tuple[int, ...], axes: tuple[str, ...], layout: Layout = LAYOUT) -> ParamInfo:
    return ParamInfo(name, shape, np.dtype("float64"), axes, Component(layout))


def updater(config, infos, steps=4):
    """Returns a function that gives parameters after some steps with gradients that grow from step to step and differ from slice
    to slice."""
    tx = transforms.make(config, infos)

    @jax.jit
    def step(i, params, state):
        grads = jax.tree.map(lambda p: jnp.sin(p * (3 + i)) * (1 + i), params)
        changes, state = tx.update(grads, state, params)
        return jax.tree.map(jnp.add, params, changes), state

    def run(params):
        state = jax.jit(tx.init)(params)
        for i in range(steps):
            params, state = step(i, params, state)
        return jax.device_get(params)

    return run


def updates(config, infos, params, steps=4):
    return updater(config, infos, steps)(params)


@pytest.mark.parametrize("config", OPTIMIZERS, ids=lambda c: type(c).__name__)
def test_stacking_changes_no_update(config, float64):
    """Three layers of five experts in one array are updated as fifteen matrices are.

    Slices have very different sizes: one trust ratio or one clipping for all of them would be far off.
    """
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-3, 1, size=(3, 5, 1, 1))
    stacked = rng.normal(size=(3, 5, 6, 8)) * sizes
    axes = ("layers", "expert", "embed", "mlp")
    whole = updates(config, {"w": info("w", stacked.shape, axes)}, {"w": stacked})["w"]
    alone = updater(config, {"w": info("w", (6, 8), axes[2:])})
    for i in range(3):
        for j in range(5):
            assert_allclose(whole[i, j], alone({"w": stacked[i, j]})["w"], rtol=1e-10)


def first_update(tx, grads, params):
    """(changes, state) of a first step."""
    return jax.device_get(jax.jit(lambda grads, params: tx.update(grads, tx.init(params), params))(grads, params))


def test_a_parameter_may_move_by_a_fixed_step(float64):
    """It has no state, and its gradient, however large, does not count in the norm to which others are clipped; of two layers
    the lower is frozen."""
    w = info("w", (4, 6), ("embed", "mlp"))
    bias = dataclasses.replace(info("bias", (2, 3), ("layers", "gate")), sign_step=0.5)
    params = {"w": np.ones((4, 6)), "bias": np.ones((2, 3))}
    grads = {"w": np.full((4, 6), 2.0), "bias": np.array([[1e6, 0.0, -3.0]] * 2)}
    both = transforms.make(AdamW(schedule=RATE), {"w": w, "bias": bias}, 1.0, Finetuning(freeze_layers=1))
    alone = transforms.make(AdamW(schedule=RATE), {"w": w}, 1.0, Finetuning(freeze_layers=1))
    changes, state = first_update(both, grads, params)
    want, same = first_update(alone, {"w": grads["w"]}, {"w": params["w"]})
    steps = {"bias": np.array([[0.0, 0.0, 0.0], [-0.5, 0.0, 0.5]])}
    jax.tree.map(assert_allclose, changes, want | steps)  # pyright: ignore[reportOperatorIssue]
    assert jax.tree.structure(state) == jax.tree.structure(same)


def test_optax_alone_would_get_it_wrong(float64):
    """The case above is one: the same optimizer, told that the stack is one tensor, moves slices differently."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(3, 6, 8)) * 10.0 ** rng.uniform(-3, 1, size=(3, 1, 1))
    config = Lamb(schedule=RATE)
    stack = updates(config, {"w": info("w", w.shape, ("layers", "embed", "mlp"))}, {"w": w})["w"]
    one = updates(config, {"w": info("w", w.shape, ("kv", "embed", "mlp"))}, {"w": w})["w"]
    assert np.abs(stack / one - 1).max() > 0.1


def test_factored_dimensions_follow_names_not_sizes():
    """A query projection is a matrix embed x (heads * kv) even where heads is the longest dimension."""
    q = info("q", (2, 8, 32, 4), ("layers", "embed", "heads", "kv"))
    o = info("o", (2, 32, 4, 8), ("layers", "heads", "kv", "embed"))
    assert transforms.matrix_shape(q) == (8, 128)
    assert transforms.matrix_shape(o) == (128, 8)
    tx = transforms.make(Adafactor(min_factored=4), {"q": q})
    state = jax.eval_shape(tx.init, {"q": jax.ShapeDtypeStruct(q.shape, q.dtype)})
    shapes = sorted(leaf.shape for leaf in jax.tree.leaves(state) if leaf.ndim == 2 and leaf.shape[1] > 1)
    assert shapes == [(2, 8), (2, 128)]


def test_adafactor_equals_its_paper_on_one_matrix(float64):
    """Three steps against Algorithm 4 of Shazeer and Stern, written out."""
    config = Adafactor(schedule=RATE, min_factored=2)
    w = np.array([[1.0, -2.0, 0.5], [0.3, 4.0, -1.0]])
    got = updates(config, {"w": info("w", w.shape, ("embed", "mlp"))}, {"w": jnp.array(w)}, steps=3)["w"]
    r, c = np.zeros(2), np.zeros(3)
    for t in range(1, 4):
        g = np.sin(w * (2 + t)) * t
        beta = min(0.99, 1 - t**-0.8)
        r = beta * r + (1 - beta) * (g**2 + 1e-30).mean(axis=1)
        c = beta * c + (1 - beta) * (g**2 + 1e-30).mean(axis=0)
        u = g / np.sqrt(np.outer(r, c) / r.mean())
        u /= max(1.0, np.sqrt((u**2).mean()) / 1.0)
        w = w - 0.1 * max(1e-3, np.sqrt((w**2).mean())) * u
    assert_allclose(got, w, rtol=1e-7)  # the decay is computed in float32


@pytest.mark.parametrize("scale", [pytest.param(True, marks=pytest.mark.slow), False])
def test_adafactor_equals_optax(scale, float64):
    """Updates and state of stacks of wide, tall, square, four-dimensional and small tensors are those of optax's chain, mapped
    over the tensors; slices of very different sizes, one of which is zero."""
    axes = {
        "wide": ((3, 6, 8), ("layers", "embed", "mlp")),
        "tall": ((3, 2, 8, 6), ("layers", "expert", "mlp", "embed")),
        "square": ((5, 5), ("embed", "mlp")),
        "heads": ((2, 5, 3, 4), ("layers", "embed", "heads", "kv")),
        "small": ((2, 3, 8), ("layers", "embed", "mlp")),
        "vector": ((2, 7), ("layers", "embed")),
    }
    infos = {name: info(name, *shape) for name, shape in axes.items()}
    rng = np.random.default_rng(0)
    params = {k: rng.normal(size=i.shape) * 10.0 ** rng.uniform(-4, 1) for k, i in infos.items()}
    params["wide"][1] = 0
    config = Adafactor(schedule=RATE, min_factored=4, parameter_scale=scale)
    ours = adafactor.transformation(config, infos, plain := transforms.per_tensor(adafactor.definition(config), infos))
    state = other = jax.jit(ours.init)(params)
    update, plain_update = jax.jit(ours.update), jax.jit(plain.update)
    for step in range(3):
        grads = {k: rng.normal(size=p.shape) * 10.0 ** rng.uniform(-6, 2) for k, p in params.items()}
        grads["heads"] *= step  # of which the first is zero
        changes, state = update(grads, state, params)
        want, other = plain_update(grads, other, params)
        assert jax.tree.structure(state) == jax.tree.structure(other)
        jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-12), (changes, state), (want, other))


def test_state_is_cut_like_its_parameter():
    """Moments have the parameter's spec, factored statistics that of the dimensions that survive, counts none."""
    q = info("q", (2, 8, 32, 4), ("layers", "embed", "heads", "kv"))
    wi = info("wi", (2, 4, 8, 16), ("layers", "expert", "embed", "kv"))
    infos = {"q": q, "wi": wi}
    params = {k: jax.ShapeDtypeStruct(i.shape, i.dtype) for k, i in infos.items()}

    def specs(config):
        state = jax.eval_shape(transforms.make(config, infos).init, params)
        return {name: tuple(spec) for name, (leaf, spec) in transforms.state_specs(state, infos).items() if leaf.ndim}

    adam = specs(AdamW(schedule=RATE))
    assert adam["[0].mu['q']"] == (None, "x", "y", None) and adam["[0].nu['wi']"] == (None, "y", "x", None)
    factored = specs(Adafactor(min_factored=4))
    rows = {name.split("['")[1].replace("']", ""): spec for name, spec in factored.items() if name.endswith(("v_row", "v_col"))}
    assert rows["q[0].v_row"] == (None, "x") and rows["q[0].v_col"] == (None, "y")
    assert rows["wi[0].v_row"] == (None, "y", "x") and rows["wi[0].v_col"] == (None, "y", None)


def test_weight_decay_spares_vectors():
    """A norm's scale is not decayed, stacked or not, nor is a bias of heads; a matrix is, and a table of heads' biases."""
    assert not info("s", (12, 8), ("layers", "embed")).is_matrix
    assert not info("s", (8,), ("embed",)).is_matrix
    assert not info("b", (12, 4, 8), ("layers", "heads", "kv")).is_matrix
    assert info("w", (12, 8, 4), ("layers", "embed", "mlp")).is_matrix
    assert info("o", (12, 4, 8, 16), ("layers", "heads", "kv", "embed")).is_matrix
    assert info("t", (4, 32), ("heads", "buckets")).is_matrix


def test_schedules():
    """GShard's is flat at 0.01 for 10,000 steps, then 1/sqrt(step); the cosine ends at its floor."""
    m4 = transforms.learning_rate(InverseSqrt())
    assert_allclose(np.array([m4(0), m4(9_999), m4(39_999)], float), [0.01, 0.01, 0.005], rtol=1e-6)
    ramp = transforms.learning_rate(InverseSqrt(scale=0.3, flat=100, warmup=10))
    assert_allclose(np.array([ramp(0), ramp(4), ramp(9), ramp(399)], float), [0.003, 0.015, 0.03, 0.015], rtol=1e-6)
    cosine = transforms.learning_rate(Cosine(peak=1.0, steps=100, warmup=10, floor=0.1))
    assert_allclose(np.array([cosine(0), cosine(10), cosine(100)], float), [0.0, 1.0, 0.1], atol=1e-6)


def placed(name: str, shape: tuple[int, ...], axes: tuple[str, ...], component: str) -> ParamInfo:
    """A parameter of a component."""
    return dataclasses.replace(info(name, shape, axes), scope=Component(LAYOUT, component))


@pytest.mark.parametrize("by_row", [False, True])
def test_adagrad_equals_its_definition(by_row, float64):
    """Three steps of a table and of a vector in NumPy: a sum for each number, or for each of the table's rows."""
    config = AdaGrad(schedule=RATE, eps=1e-3, initial=0.2, by_row=by_row)
    params = {"w": np.array([[1.0, -2.0, 0.5], [0.3, 4.0, -1.0]]), "b": np.array([0.5, -1.0])}
    infos = {"w": info("w", (2, 3), ("vocab", "embed")), "b": info("b", (2,), ("embed",))}
    got = updates(config, infos, {k: jnp.array(p) for k, p in params.items()}, steps=3)
    for name, p in params.items():
        rows = by_row and name == "w"
        sums = np.full((2, 1) if rows else p.shape, 0.2)
        for i in range(3):
            g = np.sin(p * (3 + i)) * (1 + i)
            sums = sums + ((g * g).sum(axis=1, keepdims=True) / 3 if rows else g * g)
            p = p - 0.1 * g / (np.sqrt(sums) + 1e-3)
        assert_allclose(got[name], p, rtol=1e-12)


def test_rows_that_nothing_looks_up_stay_as_they_are(float64):
    """Without a gradient a row has no update, even with eps and initial sums of 0."""
    tx = transforms.make(AdaGrad(schedule=RATE, eps=0.0, by_row=True), {"w": info("w", (3, 2), ("vocab", "embed"))})
    change, state = first_update(tx, {"w": np.array([[0.0, 0.0], [1.0, 2.0], [0.0, 0.0]])}, {"w": np.ones((3, 2))})
    assert_allclose(change["w"], [[0, 0], [-0.1 / 2.5**0.5, -0.2 / 2.5**0.5], [0, 0]], rtol=1e-6)
    assert jax.tree.leaves(state)[0].shape == (3,)


def test_components_have_optimizers_of_their_own(float64):
    """Each parameter is updated as by the optimizer of the longest path that it is under, and state is cut as it is."""
    infos = {
        "tables.large.w": placed("tables.large.w", (4, 8), ("embed", "mlp"), "tables.large"),
        "tables.small.w": placed("tables.small.w", (4, 8), ("embed", "mlp"), "tables.small"),
        "tables_not.w": placed("tables_not.w", (4, 8), ("embed", "mlp"), "tables_not"),
    }
    rng = np.random.default_rng(0)
    params = {name: jnp.array(rng.normal(size=(4, 8))) for name in infos}
    rules = {"tables.large": AdaGrad(schedule=RATE, by_row=True), "tables": AdamW(schedule=Constant(value=0.3))}
    config = ByComponent(
        others=Sgd(schedule=RATE, momentum=0.9), components=tuple(OfComponent(path=k, rule=r) for k, r in rules.items())
    )
    got = updates(config, infos, params)
    alone = {"tables.large.w": rules["tables.large"], "tables.small.w": rules["tables"], "tables_not.w": config.others}
    for name, rule in alone.items():
        want = updates(rule, {name: infos[name]}, {name: params[name]})[name]
        assert_allclose(got[name], want, rtol=1e-12)
    state = jax.eval_shape(transforms.make(config, infos).init, params)
    specs = {name: tuple(spec) for name, (leaf, spec) in transforms.state_specs(state, infos).items() if leaf.ndim}
    of = {name.split("['")[1].split("']")[0]: spec for name, spec in specs.items()}
    assert of == {"tables.large.w": ("x",), "tables.small.w": ("x", "y"), "tables_not.w": ("x", "y")}, specs


def test_a_component_without_parameters_is_refused():
    config = ByComponent(others=Sgd(schedule=RATE), components=(OfComponent(path="table", rule=Sgd(schedule=RATE)),))
    with pytest.raises(ConfigError, match=r"no trained parameter in 'table'; did you mean 'tables'\?"):
        transforms.make(config, {"tables.w": placed("tables.w", (4, 8), ("embed", "mlp"), "tables")})
