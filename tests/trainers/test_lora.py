"""Training a part of a model: what is frozen stays bit for bit, and low-rank updates merge into what they change."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from configs.experiment import Experiment, Lora
from configs.optimizers import Constant, Sgd
from configs.registry import ConfigError
from data.reading.batches import Batches
from data.reading.examples import open_source
from models.sharding.layout import LayoutError
from models.sharding.layouts import fully_sharded, pipelines
from models.sharding.params import with_params
from tests.helpers.runs import run, with_train
from trainers import lora, plan, step
from trainers.checkpoints import checkpoint
from trainers.plan import fresh_state, make_plan
from trainers.weights import load_any

pytestmark = pytest.mark.integration


def tiny(**finetune) -> Experiment:
    return registry.tiny(registry.load("gpt.quickstart")).with_finetune(**finetune)


def trained(e: Experiment, steps: int = 2, devices: int = 1):
    """(plan, parameters before, parameters after) so many steps, by name."""
    p = make_plan(e, jax.devices()[:devices])
    current = fresh_state(p)
    before = jax.device_get(current.params)
    batches = Batches(open_source(e.data, e.model), e.data, p.batch_shardings())
    take = step.train_step(p)
    for at in range(steps):
        current, _ = take(current, batches(at))
    batches.close()
    return p, before, jax.device_get(current.params)


@pytest.mark.parametrize("settings", [Lora(), Lora(rank=2), Lora(rank=2, base="nf4"), Lora(rank=2, base="int8")])
def test_a_plan_knows_the_state_before_there_is_one(settings):
    """Its shapes and dtypes, of adapters and of quantised matrices too, are those of a state that is made."""
    p = make_plan(tiny(lora=settings), abstract=True)
    made = jax.eval_shape(lambda key: plan._fresh(p, key), jax.random.key(0))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), p.state) == jax.tree.map(lambda x: (x.shape, x.dtype), made)


def test_frozen_parameters_stay_and_have_no_state():
    """A frozen prefix keeps its bits, the optimizer knows nothing of it, and everything else moves."""
    p, before, after = trained(tiny(freeze=("embedding", "decoder.attention")))
    for name, x in before.items():
        if name.startswith(("embedding.", "decoder.attention.")):
            assert_array_equal(x, after[name])
        else:
            assert np.any(x != after[name]), name
    shapes = {x.shape for x in jax.tree.leaves(p.state.optimizer)}
    assert before["embedding.table"].shape not in shapes


def test_the_lowest_layers_stay():
    """With freeze_layers=3 of 4 layers only the last one moves, in spite of momentum, weight decay and clipping."""
    _, before, after = trained(tiny(freeze_layers=3))
    layers = [name for name in before if name.startswith("decoder.")]
    assert len(layers) > 5
    for name in layers:
        assert_array_equal(before[name][:3], after[name][:3])
        assert np.any(before[name][3] != after[name][3]), name


def test_a_head_may_learn_faster():
    """With head_rate=10 a step of gradient descent moves the head ten times as far, and nothing else any farther."""
    e = registry.tiny(registry.load("bert.minilm_spam"))
    e = dataclasses.replace(e, optimizer=Sgd(schedule=Constant(value=0.01)))
    moved = []
    for factor in (1.0, 10.0):
        of = e.with_finetune(init_from="", head_rate=factor)
        _, before, after = trained(of, steps=1)
        moved.append({name: after[name] - x for name, x in before.items()})
    for name, step_taken in moved[0].items():
        factor = 10 if name.startswith("head.") else 1
        assert_allclose(moved[1][name], factor * step_taken, rtol=1e-2, atol=1e-6, err_msg=name)
    assert np.abs(moved[0]["head.weight"]).max() > 1e-5


def test_misspelt_parameters_are_refused():
    """A prefix that fits nothing and a target that is no matrix name the nearest; a run that would train nothing is refused."""
    for train, part in {
        (("freeze", ("decoder.atention",)),): "did you mean 'decoder.attention'",
        (("lora", Lora(rank=2, targets=("qq",))),): "no matrix is called 'qq'",
        (("freeze", ("embedding", "decoder", "final_norm")),): "every parameter is frozen",
    }.items():
        with pytest.raises(ConfigError, match=part):
            make_plan(tiny(**dict(train)), jax.devices()[:1])


@pytest.mark.parametrize(
    ("name", "layout", "said"),
    [
        (
            "gpt.quickstart",
            "pipeline_1f1b",
            r"dropout=0.1: a pipeline of schedule '1f1b' .*; choose schedule 'gpipe', or dropout 0",
        ),
        ("switch.base_8e", "", r"dropout=0.1: \S+\.wi is no projection of a layer alone"),
    ],
)
def test_dropout_is_refused_where_adapters_are_merged(name, layout, said):
    """In the stages of 1F1B, and inside experts: there is no product with A of which the input could be dropped."""
    e = registry.tiny(registry.load(name)).with_finetune(lora=Lora(rank=2, targets=("wi",), dropout=0.1), init_from="")
    if layout:
        e = dataclasses.replace(e, layout=pipelines("decoder")[layout](2, 1, 1))
    with pytest.raises((ConfigError, LayoutError), match=said):
        make_plan(e, jax.devices()[: 2 if layout else 1])


def test_adapters_begin_as_nothing_and_train_alone():
    """B is zero at first, so the model is unchanged; then adapters move and every matrix keeps its bits."""
    p, before, after = trained(tiny(lora=Lora(rank=2, targets=("q", "wo"))), steps=3)
    names = {name for name in before if name.startswith(lora.PREFIX)}
    assert names == {f"lora.decoder.{m}.{side}" for m in ("attention.q", "ffn.wo") for side in "ab"}
    assert before["lora.decoder.attention.q.a"].shape == (4, 16, 2)
    assert before["lora.decoder.ffn.wo.b"].shape == (4, 2, 16)
    assert not before["lora.decoder.ffn.wo.b"].any() and before["lora.decoder.ffn.wo.a"].any()
    for name, x in before.items():
        assert np.any(x != after[name]) == (name in names), name
    assert p.trained == names


def test_merged_matrices_are_the_sum():
    """W + alpha / rank * A B, for a matrix with two output dimensions and one with two input dimensions, layer by layer."""
    rng = np.random.default_rng(0)
    q, o = rng.normal(size=(3, 6, 2, 4)), rng.normal(size=(3, 2, 4, 6))
    qa, qb = rng.normal(size=(3, 6, 5)), rng.normal(size=(3, 5, 2, 4))
    oa, ob = rng.normal(size=(3, 2, 4, 5)), rng.normal(size=(3, 5, 6))
    params = {"q": q, "o": o, "lora.q.a": qa, "lora.q.b": qb, "lora.o.a": oa, "lora.o.b": ob}
    merged = lora.merged(params, Lora(rank=5, alpha=10.0))
    assert merged.keys() == {"q", "o"}
    assert_allclose(merged["q"], q + 2 * np.einsum("lmr,lrnd->lmnd", qa, qb))
    assert_allclose(merged["o"], o + 2 * np.einsum("lndr,lrm->lndm", oa, ob))


@pytest.mark.slow
def test_a_run_with_adapters_resumes_and_opens_merged(tmp_path):
    """A stopped and resumed run with adapters, which have dropout, ends like an uninterrupted one; opened, it is a plain model,
    the same."""
    e = with_train(tiny(lora=Lora(rank=2, dropout=0.25)), steps=4, checkpoint={"every": 2})
    assert run(e, tmp_path / "whole") == 0
    assert run(dataclasses.replace(e, train=dataclasses.replace(e.train, steps=2)), tmp_path / "parts") == 0
    assert run(e, tmp_path / "parts") == 0
    whole, parts = (checkpoint.read_params(tmp_path / name)[2] for name in ("whole", "parts"))
    jax.tree.map(assert_array_equal, whole, parts)
    experiment, weights = load_any.open_model(tmp_path / "whole")
    assert experiment.train.finetune.lora.rank == 0 and not any(name.startswith(lora.PREFIX) for name in weights.shapes)

    p, _, after = trained(e, steps=4)
    effective = p.for_model(after)
    batch = Batches(open_source(e.data, e.model), e.data, p.batch_shardings())(0)
    a = with_params(p.model, effective)(batch)
    b = with_params(p.model, {name: weights.read(name, ()) for name in weights.shapes})(batch)
    assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_adapters_are_cut_like_their_matrices():
    """Under a layout that cuts every weight an adapter is cut in the dimensions that it shares with its matrix; what is dropped
    of its input is what one device drops."""
    settings = Lora(rank=2, targets=("q", "o", "wo"), dropout=0.25)
    e = dataclasses.replace(tiny(lora=settings), layout=fully_sharded(2, 4))
    p, _, after = trained(e, devices=8)
    specs = {info.name: info.spec() for info in p.parameters}
    assert specs["lora.decoder.attention.q.a"] == PartitionSpec(None, "data", None)
    assert specs["lora.decoder.attention.q.b"] == PartitionSpec(None, None, "model", None)
    _, _, alone = trained(tiny(lora=settings))
    for name, x in alone.items():
        assert_allclose(x, after[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_adapters_with_dropout_train_in_stages():
    """In a pipeline of schedule "gpipe", whose layers are given their keys as they are their weights."""
    e = tiny(lora=Lora(rank=2, dropout=0.25))
    _, before, after = trained(dataclasses.replace(e, layout=pipelines("decoder")["gpipe"](2, 1, 1)), devices=2)
    for name, x in before.items():
        assert np.all(np.any(x != after[name], axis=-1)) == name.startswith(lora.PREFIX), name
