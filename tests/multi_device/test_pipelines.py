"""Pipelines: what their compiled steps communicate and keep, and that they refuse what cannot run. Equality is in
test_gpt_layouts.py and beside it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from numpy.testing import assert_allclose, assert_equal

from configs import registry
from configs.experiment import Experiment
from configs.optimizers import Adafactor, Constant
from data.reading.batches import Batches, batch_shapes
from data.reading.examples import open_source
from models.conformer.config import BatchNorm, ConformerLayer
from models.families import family_of
from models.parts.nested import changed
from models.protocol import Staged
from models.sharding.layout import Layout, LayoutError, Pipeline, rules
from models.sharding.layouts import pipelines
from models.sharding.params import with_params
from models.sharding.pipelines import one_f_one_b
from scripts.layouts import EXPERIMENTS
from tests.helpers.contexts import training
from tests.helpers.layouts import MESH, assert_equal_to_one_device
from tests.helpers.models import varied
from trainers import state, step
from trainers.checkpoints.manager import Checkpoints
from trainers.hlo import equality, tables
from trainers.plan import Plan, fresh_state, in_model_form, make_plan

pytestmark = pytest.mark.integration

PIPES = pipelines("decoder")


def gpt(layout: Layout, **model) -> Experiment:
    e = registry.tiny(registry.load("gpt.quickstart"))
    return dataclasses.replace(varied(e, **{"layers": 4, "dropout": 0.0} | model), layout=layout)


def compiled(e: Experiment) -> tuple[Plan, jax.stages.Compiled]:
    p = make_plan(e, jax.devices()[: e.layout.devices])
    return p, step.compile_step(p)


@pytest.mark.parametrize(
    "name", [name if name == "pipeline_1f1b" else pytest.param(name, marks=pytest.mark.slow) for name in PIPES]
)
def test_weight_gradients_are_reduced_once_a_step(name):
    """Inside the loops over ticks stages pass activations on by permutes along the stage axis, and nothing at all is reduced or
    gathered along the data axis; after them it reduces."""
    p, program = compiled(gpt(PIPES[name](2, 2, 2)))
    sent = tables.compiled_collectives(p, program)
    assert not [c for c in sent if c.loops and c.axes and "data" in c.axes and c.kind != "collective-permute"]
    assert [c for c in sent if not c.loops and c.axes == ("data",) and c.kind in ("all-reduce", "reduce-scatter")]
    passed = [c for c in sent if c.kind == "collective-permute" and c.axes == ("stage",) and c.loops]
    assert passed and all(c.times and c.times > 1 for c in passed)


def interleaved(**finetune) -> Experiment:
    """Four layers on two stages: 0 and 2 on the first, 1 and 3 on the second. Adafactor has statistics of several shapes."""
    e = gpt(PIPES["pipeline_interleaved"](2, 2, 2))
    optimizer = Adafactor(schedule=Constant(value=0.01), min_factored=16)
    return dataclasses.replace(e, optimizer=optimizer).with_finetune(**finetune)


def one_step(e: Experiment) -> tuple[Plan, state.State]:
    p, program = compiled(e)
    batches = Batches(open_source(e.data, e.model), e.data, p.batch_shardings())
    after, _ = program(fresh_state(p), batches(0))
    batches.close()
    return p, after


def test_weights_stay_on_their_stages():
    """With several chunks a stage, too: outside the loops over ticks nothing passes between stages but sums (of the loss, of
    gradients that all stages have a share in)."""
    p, program = compiled(interleaved())
    sent = [c for c in tables.compiled_collectives(p, program) if not c.loops and c.axes and "stage" in c.axes]
    assert {c.kind for c in sent} <= {"all-reduce", "reduce-scatter"}


@pytest.mark.slow
def test_a_checkpoint_has_layers_in_the_models_order(tmp_path):
    """A run stores and evaluates layer by layer what it keeps stage by stage: another layout goes on from it."""
    e = interleaved()
    p, after = one_step(e)
    folder = Checkpoints(tmp_path, e.train.checkpoint)
    folder.save(p, after, "data")
    folder.close()

    def restored(layout: Layout) -> tuple[Plan, state.State]:
        other = dataclasses.replace(e, layout=layout)
        q = make_plan(other, jax.devices()[: layout.devices])
        result = Checkpoints(tmp_path, e.train.checkpoint).restore(q, "data")
        assert result is not None
        return q, result

    def host(of: state.State) -> dict[str, Any]:
        return jax.device_get(state.by_name(of))

    same, other = restored(e.layout), restored(equality.ONE_DEVICE)
    assert_equal(host(same[1]), host(after))
    want = host(other[1])
    assert_equal(host(in_model_form(p, after)), want)
    params = {k.removeprefix("params."): v for k, v in want.items() if k.startswith("params.")}
    assert_equal(jax.device_get(p.for_model(after.params)), params)
    for name, x in jax.device_get(after.params).items():
        order = [0, 2, 1, 3] if name.startswith("decoder.") else slice(None)
        assert_equal(x, params[name][order], err_msg=name)


@pytest.mark.slow
def test_the_lowest_layers_are_frozen_wherever_they_lie():
    """`train.finetune.freeze_layers` means the model's layers, not the first of the first stage."""
    p, after = one_step(interleaved(freeze_layers=2))
    before, after = (in_model_form(p, s).params for s in (fresh_state(p), after))
    for name in (name for name in before if name.startswith("decoder.")):
        changed = jnp.any(before[name] != after[name], axis=tuple(range(1, before[name].ndim)))
        assert changed.tolist() == [False, False, True, True], name


@pytest.mark.slow
def test_memory_does_not_grow_with_microbatches():
    """Under 1F1B temporary memory is the same for 4 times the microbatches, embedding and loss included; GPipe's grows."""

    def temporary(name: str, microbatches: int) -> int:
        e = gpt(PIPES[name](4, 1, 1, microbatches=microbatches), model_dim=64, vocab=512, remat="full")
        e = dataclasses.replace(e, data=dataclasses.replace(e.data, batch_size=microbatches, length=64))
        memory = compiled(e)[1].memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    few, many = temporary("pipeline_1f1b", 8), temporary("pipeline_1f1b", 32)
    assert many < 1.05 * few
    assert many < 0.55 * temporary("gpipe", 32)


@pytest.mark.slow
def test_dropout_is_that_of_gradient_accumulation(float64):
    """With dropout, 1F1B over m microbatches has the loss and gradients of accumulating m microbatches on one device."""
    layout = PIPES["pipeline_interleaved"](2, 1, 1)
    e = equality.comparable(gpt(layout))
    e = dataclasses.replace(e, model=dataclasses.replace(e.model, dropout=0.25))
    initial = equality.start(e)
    one = dataclasses.replace(e, train=dataclasses.replace(e.train, microbatches=layout.pipelines[0][1].microbatches))
    want = equality.reference(one, 1, initial)
    result = equality.trial(e, 1, jax.devices()[:2], initial)
    assert max(equality.differences(result, want).values()) < 1e-9
    plain = equality.reference(equality.comparable(gpt(layout)), 1, initial)
    assert abs(float(plain.metrics[0]["loss"]) - float(want.metrics[0]["loss"])) > 1e-4


@pytest.mark.slow
def test_loss_and_gradients_are_those_of_differentiation(float64):
    """As a function beside jax.value_and_grad, on the model alone."""
    e = equality.comparable(gpt(PIPES["pipeline_1f1b"](4, 2, 1)))
    p = make_plan(e, jax.devices())
    params = fresh_state(p).params
    batch = {k: jnp.ones(v.shape, jnp.int32) for k, v in batch_shapes(e.data).items()}
    batch["tokens"] = jax.random.randint(jax.random.key(1), batch["tokens"].shape, 0, 64)
    model, totals, context = p.model, p.model.totals(batch), training(0)
    assert isinstance(model, Staged)
    one = make_plan(dataclasses.replace(e, layout=equality.ONE_DEVICE), jax.devices()[:1])
    on_one = jax.device_get(params)
    want, grads = jax.jit(jax.value_and_grad(lambda params: with_params(one.model, params).loss(batch, context).value))(on_one)
    loss, gradients = jax.jit(lambda params: one_f_one_b.loss_and_gradients(model, params, batch, totals, context))(params)
    assert_allclose(loss.value, want, rtol=1e-12)
    for name, g in grads.items():
        assert_allclose(gradients[name], g, rtol=1e-9, atol=1e-12, err_msg=name)


def piped(component: str, layers: str | None = "stage", **changes) -> Layout:
    settings: dict[str, Any] = {"microbatches": 4} | changes
    cut = ((component, rules(layers=layers)),) if layers else ()
    return Layout(
        name="tried",
        mesh=(("stage", 2), ("data", 2)),
        rules=rules(batch="data"),
        components=cut,
        pipelines=((component, Pipeline(**settings)),),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gpt(piped("decodr")), r"no component 'decodr'; did you mean 'decoder'"),
        (lambda: gpt(piped("decoder", layers=None)), r"the pipeline of 'decoder' needs a rule 'layers' -> its stages"),
        (lambda: gpt(piped("decoder"), layers=5), r"layers. of size 5 is not divisible by the 2 shards"),
        (lambda: gpt(piped("decoder", chunks=4)), r"4 layers are not divisible by 2 stages x 4 chunks = 8.* 8 layers, or .* 4"),
        (lambda: gpt(piped("decoder", microbatches=3, chunks=2)), r"microbatches=3 is not a multiple of the 2 stages.* 2 and 4"),
        (lambda: gpt(piped("decoder", microbatches=6)), r"16 rows are not divisible by 6 microbatches x 2 data.* is 4 "),
        (lambda: gpt(piped("decoder", schedule="1f1c")), r"no schedule '1f1c'; did you mean '1f1b'"),
        (lambda: gpt(piped("decoder", microbatches=0)), r"microbatches=0: must be at least 1"),
    ],
)
def test_what_cannot_run_is_refused_with_what_would(make, message):
    """Each mistake in a pipeline is one line that names it and the nearest thing that fits, before anything is compiled."""
    with pytest.raises(LayoutError, match=message) as caught:
        make_plan(make(), jax.devices()[:4])
    assert "\n" not in str(caught.value)


def test_only_the_stack_that_ends_in_the_loss_runs_as_1f1b():
    """An encoder under a decoder is refused as 1f1b, with what to do instead."""
    e = registry.tiny(registry.load("gshard_m4.quickstart"))
    e = dataclasses.replace(e, model=dataclasses.replace(e.model, layers=8), layout=piped("encoder"))
    with pytest.raises(LayoutError, match=r"'encoder' does not end in the loss.*'gpipe', or pipeline 'decoder'"):
        make_plan(e, jax.devices()[:4])


def experiment(name: str, layout: str, **model: Any) -> Experiment:
    """A tiny experiment, with fields of its model changed, under a layout of its family on eight devices."""
    e = equality.comparable(registry.tiny(registry.load(name)))
    e = dataclasses.replace(e, model=changed(e.model, model))
    recipe = family_of(e.model).layouts[layout]
    return dataclasses.replace(e, layout=recipe(*MESH[len(recipe.axes)]))


@pytest.mark.parametrize("layout", ["gpipe", "pipeline_1f1b", "pipeline_interleaved"])
def test_layers_that_compare_rows_have_no_pipeline(layout):
    """A batch norm of a microbatch would be another than the batch's: each schedule is refused, with a layout that suits, and no
    schedule is recommended for another."""
    line = rf"^layout '{layout}': the layers of 'encoder' compare rows .*; choose a layout without stages of it, such as '(\w+)'$"
    with pytest.raises(LayoutError, match=line) as caught:
        make_plan(experiment("conformer.large", layout), jax.devices())
    suitable = str(caught.value).rpartition("such as ")[2].strip("'")
    make_plan(experiment("conformer.large", suitable), jax.devices())
    make_plan(experiment("conformer.large", layout, layer=ConformerLayer()), jax.devices())


@pytest.mark.parametrize("layout", ["announcement", "towers", "towers_in_space"])
def test_a_tower_that_compares_rows_has_no_pipeline(layout):
    """Within a larger model, too: the line names the tower's stack, and an audio tower without a batch norm has its pipeline."""
    e = experiment("multimodal.pod", layout)
    tower = dataclasses.replace(e.model.towers.audio, layer=ConformerLayer(norm=BatchNorm()))  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(LayoutError, match=r"the layers of 'audio_tower.encoder' .* such as 'data_parallel'$"):
        make_plan(experiment("multimodal.pod", layout, **{"towers.audio": tower}), jax.devices())
    make_plan(e, jax.devices())


def test_a_head_that_compares_rows_has_a_gpipe_pipeline():
    """1F1B computes the head in microbatches and is refused; GPipe, which it recommends, computes the head of the whole batch."""
    with pytest.raises(LayoutError, match=r"this loss compares rows of a batch with each other; choose 'gpipe'$"):
        make_plan(experiment("bert.minilm_l6", "pipeline_1f1b"), jax.devices())
    make_plan(experiment("bert.minilm_l6", "gpipe"), jax.devices())


def pipelined(name: str) -> list[str]:
    """The layouts of an experiment's family in which a stack is a GPipe pipeline."""
    layouts = family_of(registry.load(name).model).layouts
    made = {layout: recipe(*(1 for _ in recipe.axes)) for layout, recipe in layouts.items()}
    return [k for k, layout in made.items() if any(p.schedule == "gpipe" for _, p in layout.pipelines)]


# The layouts' own tests have the others in part.
SLOW = ("conformer.large", "conformer.g", "bert.quickstart_pairs", "vit.moe_quickstart")


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=pytest.mark.slow if name in SLOW else pytest.mark.nightly)
        for name in dict.fromkeys((*SLOW, *EXPERIMENTS))
        for layout in pipelined(name)
    ],
)
def test_gpipe_computes_what_one_device_does_or_is_refused(name, layout):
    """Whatever the family, the experiment and the stack: there is no third case."""
    e = experiment(name, layout)
    try:
        make_plan(e, jax.devices())
    except LayoutError as refusal:
        assert "\n" not in str(refusal)
        return
    assert_equal_to_one_device(name, layout, tuple(size for _, size in e.layout.mesh))
