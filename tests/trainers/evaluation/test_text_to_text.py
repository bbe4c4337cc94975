"""Fine-tuning on labelled tasks as text: trained from a pre-training's weights, resumed, decoded and scored, released."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import pytest
from numpy.testing import assert_array_equal

from configs import registry
from configs.experiment import Experiment, HeldOut
from configs.optimizers import Adafactor, Constant
from data.config import Decode
from data.reading import packing
from data.reading.batches import held_out_batches
from data.reading.examples import unpack
from data.reading.tally import Tally
from data.task import DataError
from data.text_to_text import texts
from data.vocabularies import tokenizers
from models.errors import UserError
from models.parts.nested import changed
from models.protocol import Context
from models.sharding.params import with_params
from scripts import classify as classify_script
from scripts import evaluate as evaluate_script
from tests.helpers.runs import run, with_train
from trainers import trainer
from trainers.checkpoints import checkpoint
from trainers.monitoring import metrics
from trainers.plan import fresh_state, make_plan
from trainers.weights import release
from trainers.weights.release import ReleaseError

pytestmark = pytest.mark.integration

LABELS = ["games", "libs"]
SHAPE = (48, 16)
EXAMPLES = [{"text": f"{word} {n}", "label": LABELS[word == "lib"]} for n in range(40) for word in ("lib", "toy")]


def write_cache(folder: Path, vocabulary: int) -> None:
    """A cache of debian_sections whose label can be told from its first word; held out are twenty of its own examples."""
    (folder / "train").mkdir(parents=True)
    lines = [text for example in EXAMPLES for text in texts.pair_of("debian_sections", example)]
    tokenizers.train_bpe(lines, folder / tokenizers.FILE, vocabulary)
    rows = list(texts.packed("debian_sections", EXAMPLES, texts.Encoder(folder), SHAPE, Tally()))
    packing.write_rows(folder / "train" / "all.array_record", rows)
    (folder / "test.jsonl").write_text("".join(json.dumps(example) + "\n" for example in EXAMPLES[:20]))
    manifest = {
        "cache": folder.name,
        "kind": "text_to_text",
        "task": "debian_sections",
        "form": "classification",
        "labels": LABELS,
        "inputs_length": SHAPE[0],
        "targets_length": SHAPE[1],
        "vocabulary": vocabulary,
        "fingerprint": "f" * 64,
        "parts": {"all": {"examples": len(EXAMPLES), "rows": len(rows)}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A data folder with a cache `sections`, and one of another vocabulary."""
    root = tmp_path_factory.mktemp("data")
    write_cache(root / "caches" / "sections", 275)
    write_cache(root / "caches" / "other", 274)
    return root


@pytest.fixture
def e(data, monkeypatch) -> Experiment:
    monkeypatch.setenv("SHARDZOO_DATA", str(data))
    e = registry.tiny(registry.load("t5.debian_sections_5k"))
    model = changed(
        e.model, {"vocab": 300, "layers": 4, "dropout": 0.0, "feed_forward.dropout": 0.0, "decoder.source_dropout": 0.0}
    )
    return with_train(
        dataclasses.replace(
            e,
            model=model,
            data=dataclasses.replace(e.data, cache="sections", batch_size=4, inputs_length=SHAPE[0], targets_length=SHAPE[1]),
            optimizer=Adafactor(schedule=Constant(value=1e-2), parameter_scale=False),
            eval=Decode(split="test", beams=1, length_penalty=0.0, max_length=8, batch_size=8),
        ),
        steps=60,
        checkpoint={"every": 30},
        log_every=10,
    )


def command(script, monkeypatch, capsys, *arguments: object) -> str:
    """Returns what a command prints."""
    monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
    assert not script.main()
    return capsys.readouterr().out


@pytest.mark.slow
def test_it_learns_to_write_labels(e, tmp_path, monkeypatch, capsys):
    """A run learns which label to write, resumes to the same bits, and is scored alike from its folder and its release;
    scripts.classify refuses it in a line, and so does a run from its weights with another vocabulary."""
    assert run(e, tmp_path / "whole") == trainer.DONE
    half = dataclasses.replace(e, train=dataclasses.replace(e.train, steps=30))
    assert run(half, tmp_path / "parts") == trainer.DONE and run(e, tmp_path / "parts") == trainer.DONE
    jax.tree.map(assert_array_equal, *(checkpoint.read_params(tmp_path / part)[2] for part in ("whole", "parts")))
    last = metrics.read(tmp_path / "whole")[-1]
    scores = {name.removeprefix("eval/"): value for name, value in last.items() if name.startswith("eval/")}
    assert scores["accuracy"] == scores["macro_f1"] == 1 and scores["invalid"] == 0
    assert scores["majority"] == 0.5 and scores["examples"] == 20
    release.write(tmp_path / "whole", tmp_path / "release")
    assert "It writes: games, libs." in (tmp_path / "release" / "README.md").read_text()
    for folder in ("whole", "release"):
        out = command(evaluate_script, monkeypatch, capsys, "--checkpoint", tmp_path / folder, "--limit", 10, "--json")
        assert json.loads(out[out.index("{") :])["all"]["accuracy"] == 1
    printed = command(evaluate_script, monkeypatch, capsys, "--checkpoint", tmp_path / "release", "--beams", 2)
    assert "accuracy" in printed and "majority     the accuracy of always naming the most frequent class" in printed
    with pytest.raises(UserError, match=r"t5\.debian_sections_5k: this model does not classify texts"):
        command(classify_script, monkeypatch, capsys, "--checkpoint", tmp_path / "whole", "a toy")

    other = with_train(
        dataclasses.replace(e, data=dataclasses.replace(e.data, cache="other")),
        finetune={"init_from": str(tmp_path / "whole")},
        steps=1,
    )
    with pytest.raises(ReleaseError, match=r"tokenizer\.json is another vocabulary than that of 'other'"):
        run(other, tmp_path / "other")
    same = dataclasses.replace(other, data=e.data)
    assert run(same, tmp_path / "more") == trainer.DONE
    assert metrics.read(tmp_path / "more")[0]["loss"] < 0.2 < metrics.read(tmp_path / "whole")[0]["loss"]


def test_examples_of_a_row_do_not_see_each_other(e, data):
    """The loss of a row of several examples is the sum of those of rows with one each."""
    with jax.enable_x64(True):
        e = dataclasses.replace(e, train=dataclasses.replace(e.train, master_dtype="float64"))
        e = dataclasses.replace(e, execution=dataclasses.replace(e.execution, dtype="float64"))
        plan = make_plan(e, jax.devices()[:1])
        params = fresh_state(plan).params
        encoder = texts.Encoder(data / "caches" / "sections")

        def pack(examples: list[dict]):
            return list(texts.packed("debian_sections", examples, encoder, SHAPE, Tally()))

        together, alone = pack(EXAMPLES[:2]), [row for example in EXAMPLES[:2] for row in pack([example])]
        assert len(together) == 1 and len(alone) == 2

        @jax.jit
        def total(batch):
            ratio = with_params(plan.model, params).loss(batch, Context.evaluation()).metrics["cross_entropy"]
            return ratio.sum, ratio.over

        features = e.data.features()
        sums = []
        for rows in (together, alone):
            (batch,) = held_out_batches([unpack(row, features) for row in rows], features, 2)
            sums.append([float(part) for part in total(batch)])
    assert sums[0] == pytest.approx(sums[1], rel=1e-9) and sums[0][1] > 4


def test_targets_also_have_a_loss(e, data):
    """Evaluation by loss counts every token of the targets, ends included."""
    from trainers.evaluation.evaluator import open_evaluator

    e = dataclasses.replace(e, eval=HeldOut(split="test", batch_size=4))
    plan = make_plan(e, jax.devices()[:1])
    folder = data / "caches" / "sections"
    scores = open_evaluator(plan.model, e, folder, folder)(jax.tree.map(lambda x: x * 0, fresh_state(plan).params))
    assert scores["eval/examples"] == 20 and scores["eval/cross_entropy"] == pytest.approx(5.7038, abs=1e-4)  # ln 300


def test_a_cache_of_other_lengths_is_refused(e, tmp_path):
    """One line names the length of the cache; so it does for a model with too few ids."""
    short = dataclasses.replace(e, data=dataclasses.replace(e.data, targets_length=8))
    with pytest.raises(DataError, match=r"data\.targets_length=8: cache 'sections' was packed with 16"):
        run(short, tmp_path / "short")
    small = dataclasses.replace(e, model=dataclasses.replace(e.model, vocab=64))
    with pytest.raises(DataError, match=r"model\.vocab=64 is too small for cache 'sections': at least 275"):
        run(small, tmp_path / "small")
