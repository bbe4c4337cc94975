"""Encoders and decoders through the one trainer: trained, resumed, scored, released, exported, and read back the same."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from configs import registry
from configs.experiment import Experiment, HeldOut
from data.labelled import encoding as labelled
from data.reading import packing
from data.vocabularies import tokenizers
from data.vocabularies.tokenizers import Tokenizer
from models.errors import UserError
from models.gpt.layouts import LAYOUTS
from models.parts.heads_config import Classification
from models.parts.nested import changed
from models.sharding.layout import LayoutError
from scripts import classify as classify_script
from tests.helpers.caches import finish, texts, write_text_cache
from tests.helpers.runs import run, with_train
from tests.helpers.wordpiece import train_wordpiece
from trainers.checkpoints import checkpoint
from trainers.evaluation.evaluator import open_evaluator
from trainers.inference.generation import Generate, Generator
from trainers.monitoring import metrics
from trainers.plan import fresh_state, make_plan
from trainers.weights import huggingface, load_any, release

pytestmark = pytest.mark.integration

LENGTH = 16
LABELS = ["cat", "dog"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data folder with three toy caches in the real formats, made by the real encoders: causal, masked, labelled."""
    root = tmp_path_factory.mktemp("data")
    for name, train in (("causal", tokenizers.train_bpe), ("masked", train_wordpiece)):
        write_text_cache(root / "caches" / name, train, 300 if name == "causal" else 70, LENGTH)
    folder = root / "caches" / "labelled"
    (folder / "train").mkdir(parents=True)
    (folder / tokenizers.FILE).write_bytes((root / "caches" / "masked" / tokenizers.FILE).read_bytes())
    tokenizer = Tokenizer(folder)
    examples = [{"text": f"the {label} {text}"[:40], "label": label} for text in texts(80, 3) for label in LABELS]
    made = [labelled.record_of(row) for row in labelled.rows_of(examples, tokenizer, "classification", LENGTH, 2, LABELS)]
    packing.write_rows(folder / "train" / "all.array_record", made)
    more = {"form": "classification", "task": "toy", "labels": LABELS, "slots": 2}
    finish(folder, examples[:40], tokenizer, LENGTH, kind="labelled", rows=len(made), part="all", **more)
    return root


def experiment(name: str, cache: str) -> Experiment:
    """A tiny experiment of the family on one of the toy caches, whose model Hugging Face has a class for."""
    e = registry.tiny(registry.load(name))
    plain = {"dropout": 0.0, "output.label_smoothing": 0.0}  # no folder of theirs keeps these
    model = changed(e.model, {"vocab": 320, "attention.head_dim": 4} | plain)
    return with_train(
        dataclasses.replace(
            e, model=model, data=dataclasses.replace(e.data, cache=cache, length=LENGTH), eval=HeldOut(split="test", batch_size=8)
        ),
        steps=4,
        checkpoint={"every": 2},
        finetune={"init_from": ""},
    )


def of(kind: str) -> Experiment:
    if kind == "labelled":
        e = experiment("bert.minilm_debian_sections_1k", kind)
        return dataclasses.replace(e, model=dataclasses.replace(e.model, head=Classification(labels=2)))
    return experiment({"causal": "gpt.llama2_7b", "masked": "bert.quickstart"}[kind], kind)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert.base_squad", "gpt.palm_8b", "bert.quickstart_pairs", "bert.minilm_l6"])
def test_families_train_and_resume_alike(name, tmp_path):
    """On random tokens a run in two parts ends with the bits of one in a single part, whatever the family; gpt.quickstart is in
    test_trainer.py, test_resuming_equals_not_stopping."""
    e = registry.tiny(registry.load(name))
    e = with_train(e, steps=4, checkpoint={"every": 2}, finetune={"init_from": ""})
    assert run(e, tmp_path / "whole") == 0
    assert run(dataclasses.replace(e, train=dataclasses.replace(e.train, steps=2)), tmp_path / "parts") == 0
    assert run(e, tmp_path / "parts") == 0
    jax.tree.map(assert_array_equal, *(checkpoint.read_params(tmp_path / part)[2] for part in ("whole", "parts")))
    assert all(np.isfinite(line["loss"]) for line in metrics.read(tmp_path / "whole") if "loss" in line)


@pytest.mark.parametrize("kind", ["causal", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("masked", "labelled"))])
def test_scores_are_the_same_wherever_the_weights_lie(kind, data, tmp_path, monkeypatch):
    """The last evaluation of a run is that of its checkpoint, of its release, and of its Hugging Face folder."""
    monkeypatch.setenv("SHARDZOO_DATA", str(data))
    e = of(kind)
    assert run(e, tmp_path / "run") == 0
    last = [line for line in metrics.read(tmp_path / "run") if "eval/cross_entropy" in line][-1]
    release.write(tmp_path / "run", tmp_path / "release")
    huggingface.write_folder(load_any.open_model(tmp_path / "run")[1], tmp_path / "hf")
    monkeypatch.setattr(registry, "load", lambda name, load=registry.load: e if name == "toy" else load(name))
    for path in ("run", "release", "hf"):
        stored_experiment, weights = load_any.open_model(tmp_path / path, like="toy")
        keeps_class = (kind, path) == ("causal", "hf")  # a decoder remembers as which class its folder was written
        assert stored_experiment.model == (dataclasses.replace(e.model, dialect="llama") if keeps_class else e.model)
        # A foreign folder is computed as it is stored, which is not always how the run was computed.
        assert stored_experiment.execution.dtype == ("float32" if path == "hf" else e.execution.dtype)
        stored_experiment = dataclasses.replace(stored_experiment, execution=e.execution)
        plan = make_plan(stored_experiment, jax.devices()[:1])
        from trainers.weights.source import load

        params = load(weights, plan.shardings.params, {i.name: i.shape for i in plan.parameters}, "float32")
        assert weights.vocabulary is not None
        scores = open_evaluator(plan.model, stored_experiment, data / "caches" / kind, weights.vocabulary)(params)
        for key, value in scores.items():
            assert value == pytest.approx(last[key], rel=1e-5), (path, key)


@pytest.mark.slow
def test_texts_are_classified(data, tmp_path, monkeypatch, capsys):
    """A run and its release name the class of each example, in order and as of each alone; as many are right as the
    evaluation counts. Weights that come without names of classes, and models without classes, are refused."""
    monkeypatch.setenv("SHARDZOO_DATA", str(data))

    def classify(*arguments: str | Path) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["classify", "--checkpoint", *map(str, arguments)])
        classify_script.main()
        return capsys.readouterr().out.splitlines()

    assert run(of("labelled"), tmp_path / "run") == 0
    last = [line for line in metrics.read(tmp_path / "run") if "eval/accuracy" in line][-1]
    release.write(tmp_path / "run", tmp_path / "release")
    capsys.readouterr()
    file = data / "caches" / "labelled" / "test.jsonl"
    examples = [json.loads(line) for line in file.read_text().splitlines()]
    for folder in (tmp_path / "run", tmp_path / "release"):
        answers = [json.loads(line) for line in classify(folder, "--file", file)]
        assert [line["text"] for line in answers] == [example["text"] for example in examples]
        right = [line["label"] == example["label"] for line, example in zip(answers, examples, strict=True)]
        assert np.mean(right) == pytest.approx(last["eval/accuracy"]) and last["eval/accuracy"] >= 0.5
        assert len({line["probability"] for line in answers}) > 20 and all(0.5 <= line["probability"] < 1 for line in answers)
        for line in answers[:40:13]:
            (alone,) = classify(folder, line["text"])
            assert alone == f"{line['probability']:.2f}  {line['label']:14}  {line['text']}"
    elected = [json.loads(line)["votes"] for line in classify(tmp_path / "run", "--file", file, "--votes", "5")]
    likely = [line["probability"] if line["label"] == "cat" else 1 - line["probability"] for line in answers]
    cats = [votes.count("cat") / 5 for votes in elected]
    assert np.mean(cats) == pytest.approx(np.mean(likely), abs=0.02)  # all of a kind would be off by 0.1 and more
    assert all(abs(a - b) < 0.2 for a, b in zip(cats, likely, strict=True)) and {len(votes) for votes in elected} == {5}
    huggingface.write_folder(load_any.open_model(tmp_path / "run")[1], tmp_path / "hf")
    (named,) = classify(tmp_path / "hf", "a cat")
    assert named.split()[1] in {"LABEL_0", "LABEL_1"}  # what config.json says where nobody named them
    config = json.loads((tmp_path / "hf/config.json").read_text())
    (tmp_path / "hf/config.json").write_text(json.dumps({**config, "id2label": {}, "num_labels": 2}))
    with pytest.raises(UserError, match=r"nothing beside the weights names the classes"):
        classify(tmp_path / "hf", "a cat")
    assert run(of("masked"), tmp_path / "masked") == 0
    with pytest.raises(UserError, match=r"does not classify texts"):
        classify(tmp_path / "masked", "a cat")
    (tmp_path / "bad.jsonl").write_text('{"text": "a cat"}\n{"txt": "a dog"}\n')
    with pytest.raises(UserError, match=r'bad\.jsonl, line 2: expected a JSON object with a "text"'):
        classify(tmp_path / "run", "--file", tmp_path / "bad.jsonl")


def test_perplexity_counts_every_token_and_byte(data, monkeypatch):
    """Cross-entropy times tokens is the total, which is spread over the bytes of the texts for bits per byte; an untrained
    model with uniform logits is at ln(V) a token."""
    monkeypatch.setenv("SHARDZOO_DATA", str(data))
    e = of("causal")
    plan = make_plan(e, jax.devices()[:1])
    params = jax.tree.map(lambda x: x * 0, fresh_state(plan).params)
    folder = data / "caches" / "causal"
    scores = open_evaluator(plan.model, e, folder, folder)(params)
    held_out = [json.loads(line)["text"] for line in (folder / "test.jsonl").read_text().splitlines()]
    tokens = sum(len(Tokenizer(folder).encode(text)) + 1 for text in held_out)  # and the end
    size = sum(len(text.encode()) for text in held_out)
    assert scores["eval/cross_entropy"] == pytest.approx(np.log(320), rel=1e-6)
    assert scores["eval/perplexity"] == pytest.approx(320, rel=1e-5)
    assert scores["eval/bits_per_byte"] == pytest.approx(tokens * np.log2(320) / size, rel=1e-5)
    assert scores["eval/examples"] == 20


def test_held_out_rows_that_microbatches_do_not_divide_are_refused(data, monkeypatch):
    """Before anything is compiled, with the nearest batch that does."""
    monkeypatch.setenv("SHARDZOO_DATA", str(data))
    e = of("causal")
    layout = LAYOUTS["gpipe"](2, 1, 1, microbatches=3)
    e = dataclasses.replace(
        e,
        data=dataclasses.replace(e.data, batch_size=6),  # pyright: ignore[reportCallIssue]
        eval=dataclasses.replace(e.eval, batch_size=8),  # pyright: ignore[reportCallIssue]
        layout=layout,
    )
    plan = make_plan(e, jax.devices()[:2])
    folder = data / "caches" / "causal"
    with pytest.raises(LayoutError, match=r"eval.batch_size=8 .* the 3 microbatches .* 'decoder'; the nearest is 9"):
        open_evaluator(plan.model, e, folder, folder)


def test_evaluation_scores_answers_as_text(data, monkeypatch):
    """A model that knows nothing answers with its context's first word, which is right for two questions of four."""
    monkeypatch.setenv("SHARDZOO_DATA", str(data))
    folder = data / "caches" / "questions"
    folder.mkdir()
    (folder / tokenizers.FILE).write_bytes((data / "caches" / "masked" / tokenizers.FILE).read_bytes())
    answers = [[("b", 0)], [("b c", 0)], [("d", 4)], [("D", 4), ("a B!", 0)]]
    questions = [
        {"id": str(n), "question": "the", "context": "b c d", "answers": [{"text": text, "start": start} for text, start in some]}
        for n, some in enumerate(answers)
    ]
    more = {"form": "span", "task": "squad", "labels": [], "slots": 2}
    finish(folder, questions, Tokenizer(folder), LENGTH, kind="labelled", rows=0, part="all", **more)
    e = experiment("bert.base_squad", "questions")
    e = dataclasses.replace(e, data=dataclasses.replace(e.data, slots=2), eval=HeldOut(split="test", batch_size=3))
    plan = make_plan(e, jax.devices()[:1])
    evaluator = open_evaluator(plan.model, e, folder, folder)
    scores = evaluator(jax.tree.map(lambda x: x * 0, fresh_state(plan).params))
    assert scores["eval/exact_match"] == 0.5 and scores["eval/f1"] == pytest.approx((1 + 2 / 3 + 0 + 1) / 4)
    assert list(scores) == evaluator.names and scores["eval/examples"] == 4


@pytest.mark.parametrize(("task", "score"), [("glue_mrpc", "f1"), ("glue_cola", "matthews"), ("glue_sst2", None)])
def test_evaluation_reports_glues_own_scores(data, monkeypatch, tmp_path, task, score):
    """A cache of MRPC is scored by F1, too, and one of CoLA by Matthews' correlation: 0 where all answers are the first class."""
    monkeypatch.setenv("SHARDZOO_DATA", str(data))
    folder = tmp_path / "glue"
    shutil.copytree(data / "caches" / "labelled", folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"task": task}))
    e = of("labelled")
    plan = make_plan(e, jax.devices()[:1])
    evaluator = open_evaluator(plan.model, e, folder, folder)
    scores = evaluator(jax.tree.map(lambda x: x * 0, fresh_state(plan).params))  # all are "cat", the first class
    assert scores["eval/accuracy"] == 0.5 and scores["eval/macro_f1"] == pytest.approx((2 / 3 + 0) / 2)
    assert {name: scores.get(f"eval/{name}") for name in ("f1", "matthews") if f"eval/{name}" in evaluator.names} == (
        {score: 0.0} if score else {}
    )


def test_generation_stops_and_fits(data, monkeypatch):
    """Continuations have at most so many tokens, prompts of unequal length are continued as if alone, and beams come best
    first."""
    monkeypatch.setenv("SHARDZOO_DATA", str(data))
    e = of("causal")
    plan = make_plan(e, jax.devices()[:1])
    params = fresh_state(plan).params
    folder = data / "caches" / "causal"
    greedy = Generator(plan.model, Generate(tokens=6, batch_size=2), folder)
    prompts = ["the old cat", "a", "the big red house and the road"]
    together = greedy(params, prompts)
    assert [len(of_one) for of_one in together] == [1, 1, 1]
    assert all(len(c.ids) <= 6 for of_one in together for c in of_one)
    for prompt, of_one in zip(prompts, together, strict=True):
        assert greedy(params, [prompt])[0][0].ids == of_one[0].ids
    beams = Generator(plan.model, Generate(tokens=6, beams=3, batch_size=1), folder)(params, ["the"])[0]
    assert len(beams) == 3 and beams[0].score >= beams[1].score >= beams[2].score
