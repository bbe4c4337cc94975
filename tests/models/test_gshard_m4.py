"""Properties of the GShard M4 model, on a tiny one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from models.gshard_m4.config import GShardM4Config
from models.gshard_m4.layouts import LAYOUTS
from models.parts.decoding import beam_search
from models.parts.losses import cross_entropy
from models.parts.moe.config import ExpertChoice, ExpertsConfig, MoeConfig, Top1, Top2, TopK
from models.protocol import Context
from models.sharding.layout import LayoutError
from models.sharding.params import describe, with_params
from tests.helpers.contexts import training
from tests.helpers.models import compiled, varied
from trainers import trainer
from trainers.hlo.equality import exact
from trainers.plan import abstract_model, fresh_state, make_plan

# Billions of parameters: the arithmetic of the paper's Table 1 and A.2, to the digits given.
SIZES = {
    "moe_2048e_36l": "619.4",
    "moe_2048e_12l": "206.6",
    "moe_512e_36l": "155.5",
    "moe_512e_12l": "51.9",
    "moe_128e_36l": "39.5",
    "moe_128e_12l": "13.3",
    "moe_2048e_60l": "1032",
    "dense_96l": "2.35",
}


@pytest.mark.parametrize("name", SIZES)
def test_the_papers_models_have_the_papers_sizes(name):
    """Every row of the table is built, abstractly, and counted."""
    total = sum(i.size for i in describe(abstract_model(registry.load(f"gshard_m4.{name}"))))
    digits = len(SIZES[name].partition(".")[2])
    assert f"{total / 1e9:.{digits}f}" == SIZES[name]


def test_layers_that_do_not_pair_up_are_refused():
    """Half the layers are the encoder's, and every second one an MoE layer: 14 is not possible, 12 and 16 are."""
    with pytest.raises(ValueError, match="nearest are 12 and 16"):
        GShardM4Config(layers=14, moe=MoeConfig(experts=ExpertsConfig(count=8)))


def tiny(**model):
    e = exact(registry.tiny(registry.load("gshard_m4.quickstart")))
    return varied(e, **model)


@pytest.fixture(scope="module")
def model(request):
    """A tiny model in float64 with a gating, by default GShard's, which outside training drops nothing: no token can push another
    one out of an expert."""
    with jax.enable_x64(True):
        p = make_plan(tiny(**{"moe.router": getattr(request, "param", Top2())}), jax.devices()[:1])
        yield with_params(p.model, fresh_state(p).params)


def example(seed: int, source: int, target: int) -> dict[str, np.ndarray]:
    """One unpacked example as rows of 16: ids from 3 up, then padding."""
    rng = np.random.default_rng(seed)
    row = {}
    for side, n in (("inputs", source), ("targets", target)):
        ids = np.zeros((1, 16), np.int32)
        ids[0, :n] = rng.integers(3, 64, n)
        row[side] = ids
        row[f"{side}_segments"] = (ids > 0).astype(np.int32)
        row[f"{side}_positions"] = np.arange(16, dtype=np.int32)[None] * (ids > 0)
    return row


def logits(model, batch) -> np.ndarray:
    return np.asarray(compiled(model, batch))


def test_the_decoder_is_causal(model, float64):
    """A token is predicted from those before it alone: changing token t changes logits after t, and only there."""
    batch = example(0, 9, 12)
    changed = {k: v.copy() for k, v in batch.items()}
    changed["targets"][0, 5] = 3 + (changed["targets"][0, 5] - 2) % 61
    a, b = logits(model, batch)[0], logits(model, changed)[0]
    assert_array_equal(a[:6], b[:6])
    assert np.abs(a[6:12] - b[6:12]).max(axis=1).min() > 1e-6


def test_padding_is_invisible(model, float64):
    """Whatever stands in padding, on either side, changes no real token's logits."""
    batch = example(1, 9, 12)
    changed = {k: v.copy() for k, v in batch.items()}
    changed["inputs"][0, 9:] = 7
    changed["targets"][0, 12:] = 7
    assert_allclose(logits(model, batch)[0, :12], logits(model, changed)[0, :12], rtol=0, atol=1e-12)


def test_packing_changes_nothing(model, float64):
    """Two examples in one row have the logits that they have in rows of their own."""
    one, two = example(2, 6, 7), example(3, 9, 8)
    packed = {}
    for side, (n, m) in {"inputs": (6, 9), "targets": (7, 8)}.items():
        for part in ("", "_segments", "_positions"):
            a, b = one[side + part][:, :n], two[side + part][:, :m] * (2 if part == "_segments" else 1)
            packed[side + part] = np.pad(np.concatenate([a, b], axis=1), ((0, 0), (0, 16 - n - m)))
    together = logits(model, packed)[0]
    assert_allclose(together[:7], logits(model, one)[0, :7], rtol=0, atol=1e-12)
    assert_allclose(together[7:15], logits(model, two)[0, :8], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "model",
    [Top2(), *(pytest.param(router, marks=pytest.mark.slow) for router in (ExpertChoice(), Top1(), TopK(choices=3)))],
    indirect=True,
)
def test_cached_decoding_equals_teacher_forcing(model, float64):
    """Feeding the targets a position at a time through the caches gives the logits of the whole decoder, for every gating."""
    batch = example(4, 9, 12)
    want = logits(model, batch)[0, :12]

    @jax.jit
    def stepwise(ids, targets):
        start = model.start({"inputs": ids}, 2, 12)  # two equal hypotheses

        def one(carry, t):
            caches, before = carry
            out, caches = model.step(caches, before, t)
            return (caches, jnp.broadcast_to(targets[0, t], (1, 2))), out[0, 1]

        return jax.lax.scan(one, (start, jnp.zeros((1, 2), jnp.int32)), jnp.arange(12))[1]

    assert_allclose(stepwise(batch["inputs"], batch["targets"]), want, rtol=0, atol=1e-12)


@pytest.mark.integration
@pytest.mark.parametrize("model", [Top2(), pytest.param(Top1(), marks=pytest.mark.slow)], indirect=True)
def test_a_sentence_has_the_same_logits_alone_and_among_others(model, float64):
    """Neither evaluation nor decoding depends on what else is in the batch: no sentence or hypothesis takes another's slots.

    Except with expert choice, whose experts by definition take the best tokens of a whole group.
    """
    batches = [example(s, 9, 12) for s in range(4)]
    together = {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}
    assert_allclose(logits(model, together)[0, :12], logits(model, batches[0])[0, :12], rtol=0, atol=1e-12)

    @jax.jit
    def decoded(batch):
        state, out = model.start(batch, 4, 3), []  # four equal hypotheses, which want the same experts
        for t in range(3):
            before = jnp.zeros_like(batch["targets"][:, 0]) if t == 0 else batch["targets"][:, t - 1]
            step_logits, state = model.step(state, jnp.broadcast_to(before[:, None], (len(before), 4)), jnp.array(t))
            out.append(step_logits[0, -1])
        return jnp.stack(out)

    assert_allclose(decoded(together), decoded(batches[0]), rtol=0, atol=1e-12)
    assert_allclose(decoded(batches[0]), logits(model, batches[0])[0, :3], rtol=0, atol=1e-12)


def loss_and_gradients(e):
    p = make_plan(e, jax.devices()[:1])
    batch = {k: np.concatenate([example(s, 16, 16)[k] for s in range(4)]) for k in example(0, 1, 1)}

    def objective(params):
        return with_params(p.model, params).loss(batch, training(5)).value

    return jax.jit(jax.value_and_grad(objective))(fresh_state(p).params)


@pytest.mark.integration
@pytest.mark.slow
def test_variants_give_one_model(float64):
    """Dispatch by einsum (the paper's), sort or ragged rows, layers kept or recomputed: one loss and one gradient, drops and
    all."""
    want = loss_and_gradients(tiny(**{"moe.capacity.factor": 1.0}, dispatch="einsum"))
    for variant in ({"dispatch": "sort", "remat": "full"}, {"dispatch": "ragged", "remat": "dots"}):
        got = loss_and_gradients(tiny(**{"moe.capacity.factor": 1.0}, **variant))
        jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-9, atol=1e-12), want, got)


@pytest.mark.parametrize(
    ("group_size", "microbatches", "stages", "refused"),
    [
        (32, 1, 1, ""),  # groups of two rows: nobody deals rows out
        (16, 4, 2, ""),  # groups within rows may be dealt out
        (48, 2, 1, "group_size=48: .* rows of 16 and 16 positions, .* 2 microbatches .* nearest size that fits is 16"),
        (12, 2, 1, "group_size=12: .* fits is 8"),
        (32, 1, 2, "group_size=32: .* rows of 16 and 16 positions, .* 2 microbatches .* fits is 16"),
    ],
)
def test_groups_that_span_rows_are_not_dealt_out(group_size, microbatches, stages, refused):
    """Microbatches, of the step and of a pipeline, take rows one by one: routing groups of several rows would have other rows in
    them, and another loss. A plan refuses that in one line with the nearest size."""
    layout = LAYOUTS["pipelines_with_experts"](2, 1, 2) if stages == 2 else LAYOUTS["expert_parallel"](1, 2)
    e = tiny(layers=8, **{"moe.group_size": group_size})
    e = dataclasses.replace(e, layout=layout, train=dataclasses.replace(e.train, microbatches=microbatches))
    if not refused:
        make_plan(e, abstract=True)
        return
    with pytest.raises(LayoutError, match=refused) as error:
        make_plan(e, abstract=True)
    assert "\n" not in str(error.value)


def test_a_pipelined_tower_alone_is_asked():
    """With the encoder in stages, the decoder's groups may span rows."""
    e = dataclasses.replace(tiny(layers=8, **{"moe.group_size": 32}), layout=LAYOUTS["encoder_pipelined"](2, 1, 2))
    e = dataclasses.replace(e, data=dataclasses.replace(e.data, source_length=64))
    make_plan(e, abstract=True)
    with pytest.raises(LayoutError, match=r"rows of 24 positions, .* nearest size that fits is 24"):
        make_plan(dataclasses.replace(e, data=dataclasses.replace(e.data, source_length=24)), abstract=True)


@pytest.mark.parametrize(
    ("layout", "sizes", "refused"),
    [
        (
            ("expert_parallel", 1, 8),
            (8, 64, 48, 1),
            "data.batch_size=8: .*'decoder.moe'.* 8 rows of 48 .*=64 .* 8 shards; .* is 32 rows",
        ),
        (("expert_parallel", 1, 8), (40, 64, 48, 1), "data.batch_size=40: .* fits is 32 or 64 rows"),
        (("expert_parallel", 1, 8), (32, 64, 48, 1), ""),
        (("expert_parallel", 1, 1), (2, 64, 48, 1), "data.batch_size=2: .* 1 shards; .* fits is 4 rows"),
        (("expert_parallel", 1, 1), (4, 64, 48, 1), ""),
        (("expert_parallel", 1, 8), (12, 64, 48, 1), "data.batch_size=12 is not divisible by .*=1 x 8 shards .* fits is 8 or 16"),
        (
            ("expert_parallel", 1, 2),
            (10, 64, 64, 4),
            "data.batch_size=10 is not divisible by train.microbatches=4 x 2 shards .* 8 or 16",
        ),
        (("pipelines_with_experts", 2, 1, 2), (8, 32, 64, 1), "group_size=64: routing groups span rows of 32 and 64"),
        (
            ("pipelines_with_experts", 2, 1, 2),
            (2, 64, 64, 1),
            "data.batch_size=2: .* 2 microbatches x 2 shards; .* fits is 4 rows",
        ),
    ],
)
def test_a_batch_that_is_no_whole_number_of_groups_is_refused(layout, sizes, refused, tmp_path):
    """Each shard has whole routing groups of either side: a plan says so before a step is traced, with the nearest batch size
    that fits both sides, and the run's folder is not made."""
    name, *mesh = layout
    rows, source, target, microbatches = sizes
    e = tiny(layers=8, **{"moe.group_size": 64})
    data = dataclasses.replace(e.data, batch_size=rows, source_length=source, target_length=target, cache=None)
    train = dataclasses.replace(e.train, microbatches=microbatches)
    e = dataclasses.replace(e, data=data, train=train, layout=LAYOUTS[name](*mesh))
    if not refused:
        make_plan(e, abstract=True)
        return
    with pytest.raises(LayoutError, match=refused) as error:
        trainer.train(e, tmp_path / "run", devices=jax.devices()[: e.layout.devices])
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


@pytest.mark.integration
def test_every_moe_layer_adds_its_z_loss(float64):
    """The loss grows by the weight times each layer's mean over its tokens: one layer in the encoder, one in the decoder.
    Without a weight nothing is computed."""
    batch = {k: np.concatenate([example(s, 16, 16)[k] for s in range(4)]) for k in example(0, 1, 1)}

    def loss(weight: float):
        p = make_plan(tiny(**{"moe.losses.z_weight": weight}), jax.devices()[:1])
        return jax.jit(lambda params: with_params(p.model, params).loss(batch, Context.evaluation()))(fresh_state(p).params)

    off, on = loss(0.0), loss(0.1)
    assert "moe/z_loss" not in off.metrics
    added = 0.1 * 2 * on.metrics["moe/z_loss"].value
    assert added > 0.1
    assert_allclose([on.value - off.value, on.extra - off.extra], added, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.integration
def test_bfloat16_computes_in_bfloat16_and_stores_float32():
    """The compute dtype changes the loss a little and no stored weight's dtype."""
    full = registry.tiny(registry.load("gshard_m4.quickstart"))
    half = dataclasses.replace(full, execution=dataclasses.replace(full.execution, dtype="bfloat16"))
    (a, _), (b, grads) = loss_and_gradients(full), loss_and_gradients(half)
    assert a != b
    assert_allclose(a, b, rtol=2**-8)  # the precision of one number in bfloat16; the loss is a mean of many
    assert {g.dtype for g in jax.tree.leaves(grads)} == {np.dtype("float32")}


def test_label_smoothing_moves_mass_to_the_other_classes():
    """With V classes and smoothing s the target is 1 - s on the label and s / (V - 1) on each other one."""
    logits = jnp.log(jnp.array([[[0.7, 0.2, 0.1]]]))
    smooth, plain = cross_entropy(logits, jnp.array([[0]]), 0.1)
    assert_allclose(plain, [[-np.log(0.7)]], rtol=1e-6)
    assert_allclose(smooth, [[-(0.9 * np.log(0.7) + 0.05 * np.log(0.2) + 0.05 * np.log(0.1))]], rtol=1e-6)


class Table:
    """A decoder whose log-probabilities depend on the last token alone: what beam search finds can be enumerated."""

    def __init__(self, logp_VV):
        self.logp = logp_VV

    def step(self, state, ids_BK, at):
        return self.logp[ids_BK], state

    def reorder(self, state, parent_BK):
        return state


def best_by_enumeration(logp, steps, alpha):
    """(score, tokens) of the best sequence that ends in token 1, over all sequences."""
    sequences = []

    def extend(tokens, total):
        for token in range(1, len(logp)):
            score = total + logp[tokens[-1] if tokens else 0, token]
            if token == 1:
                sequences.append((score / ((5 + len(tokens) + 1) / 6) ** alpha, [*tokens, token]))
            elif len(tokens) + 1 < steps:
                extend([*tokens, token], score)

    extend([], 0.0)
    return max(sequences)


@pytest.mark.parametrize("alpha", [0.0, 0.8, 2.0])
def test_a_wide_beam_finds_the_best_translation(alpha):
    """With as many beams as there are prefixes the search is exhaustive; length normalisation changes the winner."""
    raw = np.random.default_rng(3).normal(size=(4, 4)) * 2
    raw[:, 0] = -1e9  # padding is never produced
    logp = jax.nn.log_softmax(jnp.array(raw), axis=-1)
    search = jax.jit(lambda: beam_search(Table(logp), (), jnp.ones(2, bool), beams=16, steps=4, vocab=4, alpha=alpha, eos=1))
    tokens, scores, _ = search()
    score, best = best_by_enumeration(np.asarray(logp), 4, alpha)
    assert_array_equal(tokens[0, 0, : len(best)], best)
    assert_array_equal(tokens[0, 0, len(best) :], 0)
    assert_allclose(scores[:, 0], score, rtol=1e-5)
    assert (np.diff(scores[0]) <= 0).all()


def test_one_beam_is_greedy():
    """Each token is the likeliest after the one before; an end that is second ends nothing."""
    logp = jax.nn.log_softmax(jnp.array([[-9.0, 1, 2, 0], [-9, 0, 0, 0], [-9, 0, -1, 2], [-9, 2, 0, 1]]), axis=-1)
    tokens, *_ = beam_search(Table(logp), (), jnp.ones(1, bool), beams=1, steps=5, vocab=4, alpha=0.0, eos=1)
    assert_array_equal(tokens[0, 0], [2, 3, 1, 0, 0])
