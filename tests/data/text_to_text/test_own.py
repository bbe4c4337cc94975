"""A user's own inputs and targets, from every form of table to rows."""

import dataclasses
import io
import json
import sys

import pytest
import sentencepiece

from configs import registry
from configs.registry import ConfigError
from data.decoding import WritesTexts
from data.kinds import task_of
from data.labelled.caches import OwnLabelledCache
from data.prepare import prepare, settings_from
from data.reading.caches import cache_folder, check_vocabularies, examples, read_manifest
from data.task import DataError
from data.text.caches import OwnTextCache
from data.text_to_text import texts
from data.text_to_text.caches import OwnTextToTextCache
from data.text_to_text.config import TextToTextData
from data.vocabularies.files import VocabularyError
from data.vocabularies.tokenizers import FILE
from scripts import generate
from tests.helpers.catalogues import WORDS
from tests.helpers.masked_vocabularies import train_roberta
from tests.helpers.own_data import TABLES, contents, scores_of
from tests.helpers.rows import read_rows, unpack
from tests.helpers.wordpiece import train_wordpiece

ROWS = [
    {"inputs": f"{WORDS[n % 30]} {WORDS[n // 3 % 30]} {WORDS[7 * n % 30]}", "targets": f"{WORDS[n % 30]}".upper()}
    for n in range(60)
]


def made(tmp_path, rows, vocabulary=None, **fields):
    """Prepares a cache of rows; returns its folder, its manifest and what was said."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = settings_from(str(tmp_path / "rows.jsonl"), fields.pop("columns", ""))
    settings = settings.encoded_with("") if vocabulary else settings
    lines = []
    cache = prepare(
        "mine", dataclasses.replace(settings, **fields), data_dir=tmp_path, vocabulary=vocabulary, progress=lines.append
    )
    return cache, read_manifest(cache), lines


def trained_pairs(cache):
    """Returns the texts of the training rows, sorted."""
    manifest, encoder = read_manifest(cache), texts.Encoder(cache)
    lengths = manifest["inputs_length"], manifest["targets_length"]
    rows = read_rows(cache / "train/all.array_record")
    return sorted(tuple(map(encoder.text, pair)) for row in rows for pair in unpack(row, lengths))


def test_a_text_begins_and_ends_as_its_vocabulary_says(tmp_path):
    """BART's texts stand between <s> and </s>, as it was pre-trained on them, and it reads a cache of inputs and targets."""
    (folder := tmp_path / "vocabulary").mkdir()
    train_roberta((f"{row['inputs']} {row['targets']}" for row in ROWS), folder / FILE, 300)
    cache, manifest, _ = made(tmp_path, ROWS, vocabulary=folder)
    encoder, text = texts.Encoder(cache), ROWS[0]["inputs"]
    assert encoder.ids(text)[0] == 0 and encoder.ids(text)[-1] == 2 and encoder.text(encoder.ids(text)) == text
    held = [e for split in ("validation", "test") for e in examples(cache, split)]
    pairs = sorted((row["inputs"], row["targets"]) for row in ROWS)
    assert sorted([*trained_pairs(cache), *((e["inputs"], e["targets"]) for e in held)]) == pairs
    model = registry.tiny(registry.load("m2m100.m418")).model
    check_vocabularies(dataclasses.replace(model, vocab=300), manifest)
    with pytest.raises(DataError, match=r"^model\.vocab=299 is too small"):
        check_vocabularies(dataclasses.replace(model, vocab=299), manifest)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The contents of the cache that `test_models_are_trained_on_own_inputs_and_scored` has."""
    return contents(made(tmp_path_factory.mktemp("trained"), ROWS)[0])


@pytest.mark.parametrize("form", TABLES)
def test_every_form_of_inputs_and_targets_becomes_rows(tmp_path, trained, form):
    """All examples are in one split each, as they are written, in rows as long as they need; three rows are shown. The
    contents are those that models are trained on below, whatever the form."""
    source, lines = tmp_path / form, []
    TABLES[form](source, ROWS)
    cache = prepare("mine", settings_from(str(source)), data_dir=tmp_path, progress=lines.append)
    manifest = read_manifest(cache)
    held = [example for split in ("validation", "test") for example in examples(cache, split)]
    assert (manifest["kind"], manifest["form"], manifest["left_out"]) == ("text_to_text", texts.TEXT, 0)
    assert (manifest["inputs_length"], manifest["targets_length"]) == (64, 64)
    pairs = sorted((row["inputs"], row["targets"]) for row in ROWS)
    assert contents(cache) == trained
    assert held and sorted([*trained_pairs(cache), *((e["inputs"], e["targets"]) for e in held)]) == pairs
    assert sum(line.startswith("read 1 file: ") for line in lines) == 1
    shown = [line for line in lines if line.startswith("a row of train: ") and " <|endoftext|> => " in line]
    assert len(shown) == min(3, manifest["parts"]["all"]["rows"])
    assert prepare("mine", settings_from(str(source)), data_dir=tmp_path, progress=lines.append) == cache
    assert lines[-1].startswith("mine: up to date")


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        (("input", "target"), OwnTextToTextCache),
        (("source", "target"), OwnTextToTextCache),
        (("prompt", "completion"), OwnTextToTextCache),
        (("document", "summary"), OwnTextToTextCache),
        (("document", "label"), OwnLabelledCache),
        (("document", "title"), OwnTextCache),
    ],
)
def test_a_table_is_of_the_kind_that_its_columns_say(tmp_path, columns, kind):
    rows = [dict(zip(columns, row.values(), strict=True)) for row in ROWS]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert type(settings_from(str(source))) is kind
    named = ",".join(f"{ours}={theirs}" for ours, theirs in zip(("inputs", "targets"), columns, strict=True))
    assert type(settings_from(str(source), named, kind="text_to_text")) is OwnTextToTextCache


def test_documents_with_summaries_are_text_where_the_kind_says_so(tmp_path):
    """Documents with summaries are inputs and targets, unless the user takes the documents as text."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"document": "a b", "summary": "b"}) + "\n")
    assert type(settings_from(str(tmp_path / "a.jsonl"), kind="text")) is OwnTextCache


def test_what_cannot_be_used_is_counted_and_named(tmp_path):
    """Texts that are none, and targets that are longer than a row; inputs that are longer lose their end."""
    bad = [{"inputs": "", "targets": "x"}, {"inputs": "y", "targets": None}, {"inputs": ["y"], "targets": "x"}]
    long = [{"inputs": "cat", "targets": "mat " * 99}, {"inputs": "dog " * 99, "targets": "mat"}]
    splits = [row | {"split": ("test", "validation", "train")[min(n, 2)]} for n, row in enumerate([*ROWS, *long])]
    cache, manifest, lines = made(tmp_path, [*splits, *bad], inputs_length=32, targets_length=24)
    assert manifest["left_out"] == 3 and "the source: 3 of 65 examples left out; rows.jsonl, row 63: no inputs" in lines
    part = manifest["parts"]["all"]
    assert (part["dropped"], part["cut"], part["examples"]) == (1, 1, 59)
    (line,) = (line for line in lines if line.startswith("train: 1 of 60 examples left out; cat: its "))
    assert line.endswith("tokens of targets are more than 24")
    assert next(examples(cache, "test")) == {name: ROWS[0][name] for name in ("inputs", "targets")}


def test_an_input_that_is_held_out_is_not_trained_on(tmp_path):
    """Although its row is given the training split, with another target."""
    rows = [row | {"split": "test" if n < 5 else "train"} for n, row in enumerate(ROWS)]
    rows.append({"inputs": ROWS[0]["inputs"], "targets": "other", "split": "train"})
    cache, manifest, _ = made(tmp_path, rows)
    assert manifest["left_out"] >= 1 and ROWS[0]["inputs"] not in {inputs for inputs, _ in trained_pairs(cache)}


def _sentencepiece(folder):
    model, lines = io.BytesIO(), [row[side] for row in ROWS for side in row]
    trainer = sentencepiece.SentencePieceTrainer
    trainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=120, minloglevel=2, hard_vocab_limit=False)
    (folder / "spiece.model").write_bytes(model.getvalue())
    return folder / "spiece.model"


def _folder(folder):
    cache, _, _ = made(folder, ROWS, vocabulary_size=290)
    return cache


@pytest.mark.parametrize("write", [_sentencepiece, _folder])
def test_a_vocabulary_that_is_given_encodes(tmp_path, write):
    """A SentencePiece model, or the folder of the cache that a model was pre-trained on."""
    (tmp_path / "other").mkdir()
    vocabulary = write(tmp_path / "other")
    cache, manifest, _ = made(tmp_path, ROWS, vocabulary)
    held = [e["targets"] for split in ("validation", "test") for e in examples(cache, split)]
    assert sorted([*(target for _, target in trained_pairs(cache)), *held]) == sorted(row["targets"] for row in ROWS)
    assert manifest["vocabulary"] == texts.Encoder(cache).size < 300


def test_settings_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"too large for this text: take at most \d+ \(--vocabulary-size\)"):
        made(tmp_path, ROWS, vocabulary_size=9000)
    with pytest.raises(ValueError, match="is of a vocabulary that is trained here"):
        made(tmp_path, ROWS, vocabulary_size=300, tokenizer="")
    (tmp_path / "marks").mkdir()
    train_wordpiece(WORDS, tmp_path / "marks" / "tokenizer.json", 60)
    file = tmp_path / "marks" / "tokenizer.json"
    file.write_text(file.read_text().replace("[SEP]", "[XYZ]"))
    with pytest.raises(VocabularyError, match="no end of text"):
        made(tmp_path, ROWS, tmp_path / "marks")


def test_outputs_are_scored_as_answers_are(tmp_path, monkeypatch):
    """Exact match and F1 of words, whatever the case; a text without a reference is encoded as it is."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    made(tmp_path, ROWS)
    data = TextToTextData(cache="mine", batch_size=1, inputs_length=64, targets_length=64)
    decoding = task_of(data).decoding(cache_folder(data))
    assert isinstance(decoding, WritesTexts)
    wanted = [{"inputs": "", "targets": "Red house"}, {"inputs": "", "targets": "dog"}]
    assert decoding.scores(wanted, ["red house.", "red dog"])["all"] == {"exact_match": 0.5, "f1": (1 + 2 / 3) / 2, "examples": 2}
    assert decoding.names == ["exact_match", "f1", "examples"]
    row = decoding.encode(decoding.given(ROWS[0]["inputs"]))
    assert decoding.decode(row["inputs"][row["inputs_segments"] > 0].tolist()) == ROWS[0]["inputs"]


@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param("t5.debian_sections_5k", marks=pytest.mark.slow),
        pytest.param("switch.debian_sections_5k", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.integration
def test_models_are_trained_on_own_inputs_and_scored(tmp_path, monkeypatch, capsys, experiment):
    """Three steps, and the scores of what the checkpoint writes once it is opened again; scripts.generate writes with it too."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    _, manifest, _ = made(tmp_path, ROWS)
    lengths = {name: manifest[name] for name in ("inputs_length", "targets_length")}
    scores = scores_of(experiment, tmp_path / "run", {"vocab": manifest["vocabulary"]}, cache="mine", **lengths)
    assert {"exact_match", "f1"} <= scores.keys() and scores["examples"] == 4
    capsys.readouterr()
    command = ["generate", "--checkpoint", str(tmp_path / "run"), "--tokens", "3", "--json", "the cat", "a dog"]
    monkeypatch.setattr(sys, "argv", command)
    assert generate.main() == 0
    written = json.loads(capsys.readouterr().out)
    assert [row["prompt"] for row in written] == ["the cat", "a dog"] and all(isinstance(row["output"], str) for row in written)
    monkeypatch.setattr(sys, "argv", [*command, "--samples", "2"])
    with pytest.raises(ConfigError, match="an encoder-decoder searches for its outputs"):
        generate.main()
