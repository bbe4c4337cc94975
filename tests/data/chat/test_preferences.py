"""Preference pairs: the forms of files, rows that hold both answers, DPO's loss, and its reference."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from configs import registry
from configs.registry import ConfigError
from data.chat import encoding, sources
from data.chat.caches import PreferenceCache
from data.chat.config import PreferenceData
from data.kinds import task_of
from data.reading.tally import Tally
from data.task import DataError
from data.vocabularies.chat_templates import ChatEncoder
from models.parts.preferences import preference_loss
from models.protocol import Context
from models.sharding.params import with_params
from scripts.recipes.prepare import prepare
from tests.helpers.chats import turns, write_vocabulary
from tests.helpers.runs import run, with_train
from trainers import lora
from trainers.checkpoints import checkpoint
from trainers.evaluation.evaluator import open_evaluator
from trainers.plan import fresh_state, make_plan
from trainers.weights import init_from, release
from trainers.weights.source import Arrays


def pairs(n: int) -> list[dict]:
    """Pairs in which "yes" is preferred to "no"."""
    rng = np.random.default_rng(0)
    words = ["the", "cat", "dog", "bird", "old", "red", "house"]
    return [{"prompt": " ".join(rng.choice(words, 3)), "chosen": "yes", "rejected": "no"} for _ in range(n)]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_pairs_are_read_in_every_form(tmp_path):
    """Texts, messages, and answers that repeat the prompt give the same pair; equal answers are refused."""
    prompt, yes, no = turns("Hi"), {"role": "assistant", "content": "yes"}, {"role": "assistant", "content": "no"}
    forms = [
        {"prompt": "Hi", "chosen": "yes", "rejected": "no"},
        {"prompt": prompt, "chosen": [yes], "rejected": [no]},
        {"prompt": "Hi", "chosen": [*prompt, yes], "rejected": [*prompt, no]},
        {"chosen": [*prompt, yes], "rejected": [*prompt, no]},
    ]
    file = write(tmp_path / "pairs.jsonl", forms)
    assert list(sources.read(file)) == [{"prompt": prompt, "chosen": [yes], "rejected": [no]}] * 4
    assert isinstance(PreferenceCache.from_source(str(file)), PreferenceCache)
    with pytest.raises(DataError, match=r"pairs\.jsonl, row 1: a preference needs a prompt"):
        list(sources.read(write(file, [{"chosen": [*prompt, yes], "rejected": [*prompt, yes]}])))


def test_answers_that_repeat_the_prompt_behind_a_system_turn_are_recognised(tmp_path):
    """A system turn may stand in the prompt, in either answer, or in all of them, and is there once; two different ones are an
    error that names the line."""
    system, prompt = [{"role": "system", "content": "S"}], turns("Hi")
    yes, no = ([{"role": "assistant", "content": text}] for text in ("yes", "no"))
    want = {"prompt": [*system, *prompt], "chosen": yes, "rejected": no}
    forms = [
        {"prompt": "Hi", "chosen": [*system, *prompt, *yes], "rejected": [*system, *prompt, *no]},
        {"prompt": [*system, *prompt], "chosen": [*prompt, *yes], "rejected": [*prompt, *no]},
        {"prompt": [*system, *prompt], "chosen": [*system, *prompt, *yes], "rejected": "no"},
        {"prompt": "Hi", "chosen": yes, "rejected": [*system, *prompt, *no]},
        {"prompt": [*system, *prompt], "chosen": yes, "rejected": no},
        {"chosen": [*system, *prompt, *yes], "rejected": [*system, *prompt, *no]},
    ]
    assert list(sources.read(write(tmp_path / "pairs.jsonl", forms))) == [want] * len(forms)
    other = {"prompt": [*system, *prompt], "chosen": [{"role": "system", "content": "T"}, *prompt, *yes], "rejected": no}
    with pytest.raises(DataError, match="row 2: the 'chosen' answer repeats the prompt behind another system turn"):
        list(sources.read(write(tmp_path / "pairs.jsonl", [want, other])))


def test_a_row_holds_whole_pairs(tmp_path):
    """A pair's answers are neighbouring segments of one row, each behind the prompt; only the last answer of each is learned."""
    encoder, tally = ChatEncoder(write_vocabulary(tmp_path)), Tally()
    records = [
        {
            "prompt": turns("the cat", "so", f"why {'a' * i}"),
            "chosen": turns("", "yes")[1:],
            "rejected": turns("", "no no")[1:],
            "reference": [-i, -i - 0.5],
        }
        for i in range(7)
    ]
    rows = list(encoding.rows_of_pairs(encoding.pairs(records, encoder, 256, tally), 256, 3, tally))
    assert tally.examples == 7 and len(rows) > 2
    seen = 0
    for row in rows:
        for i in range(int(row["segments"].max()) // 2):
            chosen, rejected = (row["segments"] == s for s in (2 * i + 1, 2 * i + 2))
            number = int(-row["reference"][i, 0])
            record = records[number]
            for here, side in ((chosen, "chosen"), (rejected, "rejected")):
                ids, predicted = encoder.conversation([*record["prompt"], *record[side]])
                assert row["tokens"][here].tolist() == ids.tolist()
                assert row["positions"][here].tolist() == list(range(len(ids)))
                learned = row["loss_weights"][here]
                assert 0 < learned.sum() < predicted.sum()
                assert not learned[: np.flatnonzero(learned)[0]].any() and learned[len(ids) - 2] == 1
            assert row["reference"][i, 1] == -number - 0.5
            seen += 1
    assert seen == 7


def test_the_loss_by_hand():
    """Two pairs of one row: beta times what the sums of log-probabilities have above their reference, and -log sigmoid of the
    difference; a prompt's tokens do not count."""
    logp = jnp.array([[-1.0, -2.0, -3.0, -9.0, -4.0, -0.5, -9.0, -9.0]])
    used = jnp.array([[0, 1, 1, 0, 1, 1, 1, 1]])
    segments = jnp.array([[1, 1, 1, 2, 2, 3, 4, 0]])
    batch = {"reference": jnp.array([[[-6.0, -4.0], [-1.0, -8.0], [0.0, 0.0]]]), "betas": jnp.array([[0.1, 0.2, 0.0]])}
    loss = preference_loss(logp, used, segments, batch, jnp.array(2))
    margins = [0.1 * ((-5 + 6) - (-4 + 4)), 0.2 * ((-0.5 + 1) - (-9 + 8))]
    want = sum(math.log(1 + math.exp(-m)) for m in margins) / 2
    assert_allclose(float(loss.value), want, rtol=1e-6)
    values = {name: float(ratio.value) for name, ratio in loss.metrics.items()}
    assert_allclose(values["margin"], sum(margins) / 2, rtol=1e-6)
    assert values["win_rate"] == 1.0
    assert_allclose(values["chosen_reward"], (0.1 + 0.1) / 2, rtol=1e-5)
    smooth = preference_loss(logp, used, segments, batch, jnp.array(2), smoothing=0.25)
    assert_allclose(float(smooth.value), want + 0.25 * sum(margins) / 2, rtol=1e-6)


@pytest.mark.integration
def test_loss_chunks_and_packing_change_nothing():
    """DPO's loss in four parts of the positions, and with rows that only pad the batch, is the same."""
    e = registry.tiny(registry.load("chat.smollm2_dpo"))
    e = dataclasses.replace(e, model=dataclasses.replace(e.model, layers=2, dropout=0.0))
    task, rng = task_of(e.data), np.random.default_rng(0)
    rows = [task.augment(task.synthetic(rng, e.model), rng, None) for _ in range(4)]
    batch = {k: np.stack([row[k] for row in rows]) for k in rows[0]}
    padded = {k: np.concatenate([x, np.zeros_like(x)]) for k, x in batch.items()}
    values = []
    for chunks, given in ((1, batch), (4, padded)):
        in_parts = dataclasses.replace(e, execution=dataclasses.replace(e.execution, loss_chunks=chunks))
        plan = make_plan(in_parts, jax.devices()[:1])
        model = with_params(plan.model, plan.with_adapters(fresh_state(plan).params))
        values.append(float(jax.jit(lambda batch, model=model: model.loss(batch, Context.evaluation()))(given).value))
    assert_allclose(*values, rtol=1e-5)


@pytest.mark.integration
@pytest.mark.slow
def test_preferences_are_learned(tmp_path, monkeypatch):
    """From a file to a tuned model: at first every margin is 0, the reference being the weights themselves, and then the held-out
    pairs are told right. Weights that are not the reference are refused."""
    data = tmp_path / "data"
    monkeypatch.setenv("SHARDZOO_DATA", str(data))
    e = registry.tiny(registry.load("chat.smollm2_dpo"))
    model = dataclasses.replace(e.model, vocab=322, layers=2, dropout=0.0)
    e = dataclasses.replace(e, model=model)
    start, other = tmp_path / "start", tmp_path / "other"
    plan = make_plan(e, jax.devices()[:1])
    whole, params = lora.plain(e, fresh_state(plan).params)
    for folder in (start, other):
        weights = Arrays(model, params, write_vocabulary(tmp_path / "vocabulary"))
        release.write_weights(weights, whole, folder, "")
    settings = PreferenceCache.from_source(str(write(tmp_path / "pairs.jsonl", pairs(120))))
    assert isinstance(settings, PreferenceCache)
    settings = dataclasses.replace(settings, length=64, pairs=2, reference=str(start))
    prepare("pairs", settings, progress=lambda line: None)

    e = with_train(
        dataclasses.replace(
            e,
            data=PreferenceData(cache="pairs", batch_size=8, length=64, pairs=2),
            optimizer=dataclasses.replace(
                e.optimizer, schedule=dataclasses.replace(e.optimizer.schedule, peak=0.05, warmup=2, steps=30)
            ),
        ),
        finetune={"init_from": str(start)},
        steps=30,
        checkpoint={"every": 30},
        eval_every=0,
    )
    cache = data / "caches" / "pairs"
    plan = make_plan(e, jax.devices()[:1])
    evaluator = open_evaluator(plan.model, e, cache, vocabulary=cache)
    before = evaluator(plan.for_model(init_from.new_state(plan, cache, lambda line: None).params))
    assert abs(before["eval/margin"]) < 1e-5 and before["eval/examples"] > 5
    assert_allclose(before["eval/preference_loss"], math.log(2), rtol=1e-5)
    assert run(e, tmp_path / "run") == 0
    after = evaluator(checkpoint.read_params(tmp_path / "run")[2])
    assert after["eval/win_rate"] == 1.0 and after["eval/margin"] > 0.1
    elsewhere = e.with_finetune(init_from=str(other))
    with pytest.raises(ConfigError, match="the reference of cache 'pairs' is"):
        init_from.new_state(make_plan(elsewhere, jax.devices()[:1]), cache, print)
