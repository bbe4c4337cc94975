"""A layout that pads gives the numbers of one device, and its checkpoints have the model's sizes."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

from configs.experiment import Experiment
from configs.optimizers import Adafactor, AdamW, Constant, Optimizer
from data.reading.batches import Batches
from data.reading.examples import open_source
from models.families import family_of
from models.parts.nested import changed
from models.sharding.layout import PADDABLE, LayoutError
from models.sharding.layouts import ONE_DEVICE
from models.sharding.params import Params, with_params
from tests.helpers.layouts import MESH, STEPS, experiment, run, trial
from trainers.checkpoints.manager import Checkpoints
from trainers.hlo import equality
from trainers.inference.load import load
from trainers.plan import Plan, fresh_state, in_model_form, make_plan
from trainers.state import State, by_name
from trainers.weights.source import Arrays

pytestmark = pytest.mark.integration

GPT = "gpt.quickstart"
VOCABULARY = ("vocab", "act_vocab")
# Sizes that neither 2 nor 4 nor 8 divides, or that 4 and 8 do not.
SIZES = {"vocab": 61, "model_dim": 18, "feed_forward.hidden_dim": 30, "attention.heads": 6, "attention.kv_heads": 3}
OPTIMIZERS: dict[str, Optimizer] = {
    "adafactor": Adafactor(schedule=Constant(value=0.3), min_factored=8),
    "adamw": AdamW(schedule=Constant(value=0.01), weight_decay=0.1),
}


def uneven(name: str, sizes: dict[str, Any], optimizer: str = "") -> Experiment:
    e = experiment(name)
    e = dataclasses.replace(e, model=changed(e.model, sizes))
    return dataclasses.replace(e, optimizer=OPTIMIZERS[optimizer]) if optimizer else e


def padding(e: Experiment, layout: str, pad: Sequence[str]) -> Experiment:
    """The experiment under a layout of its family that pads, on eight devices."""
    make = family_of(e.model).layouts[layout]
    return dataclasses.replace(e, layout=dataclasses.replace(make(*MESH[len(make.axes)]), pad=tuple(pad)))


def assert_equal_when_padded(e: Experiment, layout: str, pad: Sequence[str] = PADDABLE) -> equality.Trial:
    """Losses and parameters of three steps, and what the first step changes, are those of one device, to 1e-9."""
    with pytest.raises(LayoutError, match="is not divisible by"):
        make_plan(padding(e, layout, ()))
    with jax.enable_x64(True):
        start = equality.start(e)
        want = equality.reference(e, STEPS, start)
    result = run(padding(e, layout, pad), start)
    far = equality.differences(result, want)
    assert max(far["losses"], far["gradients"], far["parameters"]) < 1e-9 and far["routing"] < 1e-6, far
    return result


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def nightly(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.nightly)


DECODERS = [
    ("two_d", "adafactor"),
    nightly("two_d", ""),
    nightly("tensor_parallel", "adamw"),
    slow("fully_sharded", "adafactor"),
    nightly("zero1", "adamw"),
    nightly("sequence_parallel", "adamw"),
    slow("two_d_sequence", "adafactor"),
    slow("context_ring_balanced", ""),
    nightly("gpipe", "adafactor"),
    slow("pipeline_1f1b", "adamw"),
    slow("pipeline_interleaved", "adafactor"),
]


@pytest.mark.parametrize(("layout", "optimizer"), DECODERS)
def test_every_dimension_of_a_decoder_may_be_padded(layout, optimizer):
    """Ids, model dimension, hidden dimension, heads: gradient descent, Adam with decay, and Adafactor, whose factored statistics
    are means that padding would change."""
    assert_equal_when_padded(uneven(GPT, SIZES, optimizer), layout)


FAMILIES = [
    nightly("bert.quickstart_pairs", {"vocab": 61}, "two_d", VOCABULARY),
    nightly("t5.quickstart", {"vocab": 61}, "tensor_parallel", VOCABULARY),
    slow("gshard_m4.quickstart", {"source_vocab": 61, "target_vocab": 63}, "expert_tensor_parallel", VOCABULARY),
    nightly("gpt.moe_quickstart", {"vocab": 61}, "expert_two_d", VOCABULARY),
    nightly("whisper.turbo", {"feed_forward.hidden_dim": 30}, "fully_sharded", ("mlp",)),
    nightly("multimodal.quickstart", {"vocab": 61}, "tensor_parallel", VOCABULARY),
    nightly("vit.quickstart", {"feed_forward.hidden_dim": 30}, "two_d", ("mlp", "act_mlp")),
]


@pytest.mark.parametrize(("name", "sizes", "layout", "pad"), FAMILIES)
def test_other_families_are_padded_alike(name, sizes, layout, pad):
    """No family knows of it."""
    assert_equal_when_padded(uneven(name, sizes), layout, pad)


def test_a_padded_vocabulary_is_sent_as_a_divisible_one():
    """61 ids over four devices cost the collectives that 64 do: the padding is added and cut off where it lies."""

    def kinds(of: equality.Trial) -> Counter:
        return Counter((c.kind, c.axes, c.loops) for c in of.collectives)

    result = assert_equal_when_padded(uneven(GPT, {"vocab": 61}), "tensor_parallel", VOCABULARY)
    assert kinds(result) == kinds(trial(GPT, "tensor_parallel", MESH[2]))


def host(state: State) -> dict[str, np.ndarray]:
    return jax.device_get(by_name(state))


def test_checkpoints_have_the_models_sizes(tmp_path):
    """Between steps a device has a quarter of 64 rows, of which three are zero; 61 are stored. A run that starts, and goes on
    from its checkpoint on one device, and from there under another padded layout, has the same numbers bit by bit."""
    e = uneven(GPT, SIZES, "adafactor")
    first, last = (padding(e, name, PADDABLE).layout for name in ("two_d", "fully_sharded"))
    plans = [make_plan(dataclasses.replace(e, layout=x), jax.devices()[: x.devices]) for x in (first, ONE_DEVICE, last)]
    want, state = host(fresh_state(plans[1])), fresh_state(plans[0])
    table = state.params["embedding.table"]
    assert table.shape == (64, 18) and table.sharding.shard_shape(table.shape) == (16, 9)
    assert not np.asarray(table)[61:].any()
    assert plans[0].step_form.optimizer != plans[0].model_form.optimizer  # factored statistics are padded, too
    for plan, after in itertools.pairwise(plans):
        jax.tree.map(np.testing.assert_array_equal, host(in_model_form(plan, state)), want)
        folder = Checkpoints(tmp_path / plan.experiment.layout.name, e.train.checkpoint)
        folder.save(plan, state, "data")
        folder.close()
        restored = Checkpoints(tmp_path / plan.experiment.layout.name, e.train.checkpoint).restore(after, "data")
        assert restored is not None
        state = restored
    assert state.params["embedding.table"].shape == (64, 18)
    jax.tree.map(np.testing.assert_array_equal, host(in_model_form(plans[2], state)), want)


def test_a_padded_model_is_evaluated_and_served_in_its_own_sizes():
    """The parameters of a run, and weights that are read under its layout, have the logits of one device, of 61 ids."""

    def logits(model: Any, params: Params, plan: Plan) -> np.ndarray:
        batches = Batches(open_source(e.data, e.model), e.data, plan.batch_shardings())
        result = jax.jit(lambda params, batch: with_params(model, params)(batch))(params, batches(0))
        batches.close()
        return np.asarray(result)

    e = uneven(GPT, SIZES)
    with jax.enable_x64(True):
        one, plan = (
            make_plan(dataclasses.replace(e, layout=ONE_DEVICE), jax.devices()[:1]),
            make_plan(padding(e, "two_d", PADDABLE)),
        )
        params = fresh_state(one).params
        served = load(Arrays(e.model, params), e.execution, plan.experiment.layout)
        want = logits(one.model, params, one)
        ours = logits(plan.model, plan.for_model(fresh_state(plan).params), plan), logits(served.model, served.params, plan)
    assert want.shape[-1] == 61
    for x in ours:
        np.testing.assert_allclose(x, want, rtol=0, atol=1e-9 * np.abs(want).max())
