"""A teacher's predictions as targets: what the loss is, under any layout, after a stop, and what is refused."""

import dataclasses
import hashlib
import shutil

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import log_softmax, softmax

from configs import registry
from configs.experiment import Distillation
from data.reading.batches import Batches
from data.reading.examples import open_source
from models.errors import UserError
from models.gpt.layouts import LAYOUTS
from models.parts.moe.config import ExpertsConfig, MoeConfig, TopK
from models.parts.nested import changed
from models.protocol import SOFT_TARGETS
from models.sharding.params import with_params
from tests.helpers.models import varied
from tests.helpers.runs import curve, run, shared_steps, with_train
from trainers import distillation, runlog
from trainers.inference.load import load
from trainers.plan import fresh_state, make_plan
from trainers.step import compile_step
from trainers.weights import load_any

pytestmark = pytest.mark.integration

T5_DROPOUT = ("dropout", "decoder.source_dropout", "feed_forward.dropout")


def with_teacher(e, folder, **changes):
    return with_train(e, distillation={"teacher": str(folder)}, **changes)


@pytest.fixture(scope="module", autouse=True)
def equal_steps():
    with shared_steps():
        yield


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A mixture of experts that has learnt for two steps."""
    e = registry.tiny(registry.load("gpt.quickstart"))
    moe = MoeConfig(experts=ExpertsConfig(count=4), router=TopK(choices=2), every=1, group_size=16)
    e = dataclasses.replace(e, model=changed(e.model, {"moe": moe, "layers": 4}), layout=LAYOUTS["data_parallel"](1, 1))
    folder = tmp_path_factory.mktemp("teacher")
    assert run(with_train(e, steps=2), folder) == runlog.DONE
    return folder


def first_line(e, folder):
    assert run(e, folder) == runlog.DONE
    return curve(folder)[0]


def by_hand(e, teacher, counted):
    """The cross-entropy of an experiment's fresh model with the teacher's predictions of its first batch."""
    plan = make_plan(e, jax.devices()[:1])
    batch = Batches(open_source(e.data, e.model), e.data, plan.batch_shardings())(0)
    served = load(load_any.open_weights(teacher), e.execution)
    wanted, ours = (
        np.asarray(jax.jit(lambda params, batch, model=model: with_params(model, params)(batch))(params, batch), np.float64)
        for model, params in ((served.model, served.params), (plan.model, fresh_state(plan).params))
    )
    losses = -np.sum(softmax(wanted, axis=-1) * log_softmax(ours, axis=-1), axis=-1)
    return np.mean(losses, where=counted(jax.device_get(batch)))


def follows(batch):
    segments = np.pad(batch["segments"], ((0, 0), (0, 1)))
    return (segments[:, 1:] == segments[:, :-1]) & (segments[:, :-1] > 0)


def test_the_loss_has_the_teachers_predictions(teacher, small, tmp_path):
    """The first logged loss is three quarters of the cross-entropy with the data and one of that with the mixture's predictions,
    computed here from both models' outputs; the cross-entropy is logged as without a teacher."""
    e = with_teacher(varied(small, dropout=0.0), teacher, steps=1)
    line = first_line(e, tmp_path / "student")
    assert_allclose(line["loss"], 0.75 * line["cross_entropy"] + 0.25 * by_hand(e, teacher, follows), rtol=1e-5)
    alone = first_line(with_train(varied(small, dropout=0.0), steps=1), tmp_path / "alone")
    assert_allclose(line["cross_entropy"], alone["cross_entropy"], rtol=1e-6)


def test_an_encoder_decoder_has_a_teacher(tmp_path):
    """T5's targets have the mass that another T5 gives them: all of it, where the weight is 1."""
    e = with_train(varied(registry.tiny(registry.load("t5.quickstart")), **dict.fromkeys(T5_DROPOUT, 0.0)), steps=1)
    assert run(with_train(e, seed=7), tmp_path / "teacher") == runlog.DONE
    of_teacher = with_train(e, distillation={"teacher": str(tmp_path / "teacher"), "weight": 1.0})
    line = first_line(of_teacher, tmp_path / "student")
    wanted = by_hand(of_teacher, tmp_path / "teacher", lambda batch: batch["targets_segments"] > 0)
    assert_allclose(line["loss"] - line["auxiliary_loss"], wanted, rtol=1e-5)
    assert line["loss"] - line["auxiliary_loss"] != line["cross_entropy"]


def test_a_student_goes_on_with_its_teacher(teacher, small, tmp_path):
    """Two steps and then four have the numbers of four steps in one go."""
    for steps, name in ((4, "whole"), (2, "stopped"), (4, "stopped")):
        assert run(with_teacher(small, teacher, steps=steps, checkpoint={"keep": 10}), tmp_path / name) == runlog.DONE
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")


def test_a_teacher_that_trained_on_is_another(teacher, small, tmp_path):
    """A run does not go on with targets that are not those that it began with."""
    shutil.copytree(teacher, tmp_path / "teacher")
    e = with_teacher(small, tmp_path / "teacher", steps=2, checkpoint={"keep": 10})
    assert run(e, tmp_path / "student") == runlog.DONE
    of_teacher, _ = load_any.open_model(tmp_path / "teacher")
    assert run(with_train(of_teacher, steps=3), tmp_path / "teacher") == runlog.DONE
    with pytest.raises(UserError, match="newest checkpoint is of step 3, and was of step 2 when this run began: name a copy"):
        run(with_train(e, steps=4), tmp_path / "student")


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("data_parallel", "two_d", "context_ring_balanced")),
        pytest.param("pipeline_interleaved", marks=pytest.mark.slow),
    ],
)
def test_the_same_student_under_every_layout(teacher, small, tmp_path, name):
    """Soft targets are cut as the layout cuts logits, in microbatches too: losses are those of one device."""
    if name.startswith("context"):  # a mixture's groups span positions
        teacher = tmp_path / "teacher"
        assert run(with_train(small, steps=1, seed=7), teacher) == runlog.DONE
    one = with_teacher(varied(small, dropout=0.0, layers=4), teacher, steps=3)
    layout = LAYOUTS[name](2, 2, 2) if name.startswith("pipeline") else LAYOUTS[name](2, 2)
    parts = dict(microbatches=2) if name == "two_d" else {}
    assert run(one, tmp_path / "one") == runlog.DONE
    assert run(with_train(dataclasses.replace(one, layout=layout), **parts), tmp_path / name) == runlog.DONE
    losses = [[line["loss"] for line in curve(tmp_path / folder)] for folder in ("one", name)]
    assert_allclose(*losses, rtol=2e-5)


def test_what_is_no_teacher_is_refused(teacher, small, tmp_path):
    """Weights that are not there, a teacher of another vocabulary, a student whose loss reads no soft targets, and a share that
    is none: one line each."""

    def refusal(e) -> str:
        with pytest.raises(UserError) as caught:
            distillation.teacher(make_plan(e, jax.devices()[:1]), None)
        return str(caught.value)

    assert "no weights at" in refusal(with_teacher(small, tmp_path / "none"))
    wider = dataclasses.replace(small, model=changed(small.model, {"vocab": 2 * small.model.vocab}))
    assert "its outputs for a batch are" in refusal(with_teacher(wider, teacher))
    assert "family 'vit' reads no soft targets" in refusal(with_teacher(registry.tiny(registry.load("vit.quickstart")), teacher))
    pairs = with_teacher(registry.tiny(registry.load("chat.smollm2_dpo")), teacher)
    with pytest.raises(UserError, match="preference pairs reads no soft targets"):
        compile_step(make_plan(pairs, jax.devices()[:1]))
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        Distillation(weight=1.5)
    of_sources = registry.tiny(registry.load("t5.quickstart"))
    assert "reads an input 'tokens'" in refusal(with_teacher(of_sources, teacher))


LATER = (
    *("train.distillation.", "execution.offload", "layout.pad", "train.benchmark", "train.eval_from", "eval.rows"),
    *("train.finetune.lora.dropout", "model.output.mtp", "train.checkpoint.local."),
    *("model.inputs.", "model.logits_bias", "model.output.divisor", "model.norm.branch_scale", "model.norm.embedding"),
    *(f"model.{at}layer.{name}" for at in ("", "towers.audio.") for name in ("causal", "near")),
    *("model.embedding.distinct", "model.embedding.size", "model.head.vector"),
    *("model.norm.layer_scale", "model.patches.norm", "model.patches.cut", "model.towers.audio.norm.layer_scale"),
    *(f"model.towers.{name}" for name in ("vision.norm.layer_scale", "vision.patches.norm", "vision.patches.cut")),
)


def test_without_a_teacher_nothing_is_different(small):
    """Batches are the data's, and the settings' hash is that of runs from before there were teachers, offloading, padding or
    benchmarks, which thus go on."""
    lines = [line for line in registry.lines(small) if not line.startswith(LATER)]
    assert runlog.config_hash(small) == hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    assert runlog.config_hash(small) != runlog.config_hash(with_teacher(small, "runs/teacher"))
    plan = make_plan(small, jax.devices()[:1])
    assert SOFT_TARGETS not in plan.features()
    assert distillation.teacher(plan, None)({}) == {}
