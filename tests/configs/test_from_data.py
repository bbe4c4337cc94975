"""Tests of the fields of an experiment that the data which it is to read decide."""

import dataclasses
import json
import re

import pytest

from configs import from_data, registry
from configs.experiment import Experiment
from data.task import DataError
from models.errors import UserError
from scripts import cli

# The manifests of caches, as far as anything is decided by them.
PICTURES = {"kind": "images", "channels": 3, "labels": ["ant", "bee", "cow"]}
TEXT = {"kind": "text", "length": 512, "vocabulary": 1000}
TOPICS = {"kind": "labelled", "length": 64, "slots": 16, "vocabulary": 30_522, "labels": ["a", "b", "c", "d"]}
SPANS = TOPICS | {"form": "span", "labels": []}
WRITTEN = {"kind": "text_to_text", "inputs_length": 64, "targets_length": 64, "vocabulary": 1000}
SPEECH = {"kind": "speech", "seconds": 4.0, "slots": 2, "targets_length": 64, "vocabulary": 1150}
WINDS = {"kind": "grids", "names": ["u", "v"], "target": "v", "frames": 4, "every": 1, "leads": 2, "motion": False}
PAIRS = {"kind": "translation", "source_length": 48, "target_length": 32, "source_vocabulary": 700, "target_vocabulary": 900}
NAMED = {"kind": "multimodal", "targets_length": 20, "seconds": 8.0, "vocabulary": 700}


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    """Returns the experiment of a command line with the cache "mine", which has this manifest."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))

    def chosen(manifest: dict, name: str, *arguments: str) -> Experiment:
        folder = tmp_path / "caches" / "mine"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(json.dumps({"cache": "mine", **manifest}))
        parser = cli.parser("")
        cli.add_experiment(parser)
        return cli.chosen(*parser.parse_known_args([name, "--data.cache", "mine", *arguments]))

    return chosen


@pytest.mark.parametrize(
    ("manifest", "name", "want"),
    [
        (PICTURES, "vit.quickstart", {"data.channels": 3, "model.head.classes": 3, "model.patches.channels": 3}),
        (TEXT, "gpt.quickstart", {"data.length": 512, "model.vocab": 1024}),
        (TEXT | {"length": 2048}, "gpt.gpt2_124m", {"data.length": 2048, "model.vocab": 1024, "model.positions.rows": 2048}),
        # Weights keep their vocabulary and their positions; the head is new.
        (TOPICS, "bert.minilm_spam", {"data.length": 64, "data.slots": 16, "model.head.labels": 4}),
        (
            SPEECH,
            "conformer.small_czech",
            {"data.slots": 2, "data.targets_length": 64, "data.seconds": 4.0}
            | {"model.objective.vocab": 1152, "model.utterances": 2},
        ),
        (PAIRS, "gshard_m4.quickstart", {"data.source_length": 48, "data.target_length": 32}),
        (NAMED, "multimodal.quickstart", {"data.targets_length": 20}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_data_decide_is_taken_from_them(chosen, capsys, manifest, name, want):
    """Fields that do not fit the data take its values, in the data's configuration and in the model's; one line says which."""
    e, before = chosen(manifest, name), registry.load(name)
    said = capsys.readouterr().err
    assert said.startswith("from data 'mine': ") and said.count("\n") == 1
    taken = dict(re.findall(r"((?:data|model)[\w.]+) ([^,\n]+)", said.partition(": ")[2]))
    assert taken.items() >= {path: str(value) for path, value in want.items()}.items()
    for path, value in want.items():
        assert from_data._at(e, path) == value != from_data._at(before, path), path
    assert {path: value for path, value in taken.items() if not path.startswith("model.vocab")}.keys() <= {
        *want,
        "model.source_vocab",
        "model.target_vocab",
    }
    assert dataclasses.replace(e, data=before.data, model=before.model) == before


def test_a_series_decides_its_variables_windows_and_lead_times(chosen):
    """A model of rain forecasts winds: what it reads of a frame, and how far ahead; lead times beyond are not scored."""
    e = chosen(WINDS, "metnet2.quickstart")
    assert (e.data.channels, e.data.target, e.data.frames, e.data.leads) == (("u", "v"), "v", 4, 2)
    assert e.data.scored == (2,) or max(e.data.scored) <= 2
    assert (e.model.channels, e.model.masks, e.model.leads) == (e.data.values, 2, 2)
    assert not e.data.ahead and not e.model.ahead


def test_what_fits_is_kept(chosen, capsys):
    """A model of colours reads grey pictures, as released ones do; a vocabulary that is a little larger stays."""
    before = registry.load("vit.b16")
    grey = chosen(PICTURES | {"channels": 1, "labels": [str(n) for n in range(1000)]}, "vit.b16")
    assert grey == dataclasses.replace(before, data=dataclasses.replace(before.data, cache="mine"))
    gpt = registry.load("gpt.quickstart")
    length, vocab = (from_data._at(gpt, path) for path in ("data.length", "model.vocab"))
    assert chosen(TEXT | {"length": length, "vocabulary": vocab - 100}, "gpt.quickstart").model == gpt.model
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("manifest", "name", "arguments", "line"),
    [
        (
            PICTURES,
            "vit.quickstart",
            ["--model.head.classes", "10"],
            r"model\.head\.classes=10: .* has 3 labels; take --model\.he",
        ),
        (PICTURES, "vit.quickstart", ["--data.channels", "1"], r"data\.channels=1: cache 'mine' has pictures of 3 channels"),
        (
            PICTURES,
            "vit.quickstart",
            ["--data.height", "30"],
            r"data decide .*model\.patches\.height=30, .*patches of 7 pixels do not",
        ),
        (TEXT, "gpt.quickstart", ["--data.length", "64"], r"data\.length=64: cache 'mine' was packed with 512"),
        (TEXT, "gpt.quickstart", ["--model.vocab", "64"], r"model\.vocab=64 is too small for cache 'mine': at least 1000"),
        (SPEECH, "conformer.small_czech", ["--model.objective.vocab=9"], r"model\.objective\.vocab=9 is too small"),
        (PICTURES, "gpt.quickstart", [], r"data\.cache='mine': holds data of kind 'images', the experiment reads 'text'"),
        (PICTURES, "gpt.quickstart", [], r"; take vit\.\w+, which reads it$"),
        (SPANS, "gpt.quickstart", [], r"; take bert\.base_squad, which reads it$"),
        (WRITTEN, "switch.quickstart", [], r"; take switch\.debian_sections_5k, which reads it$"),
        ({"kind": "images"}, "vit.quickstart", [], r"manifest\.json is damaged: "),
    ],
)
def test_a_field_of_the_user_that_contradicts_the_data_is_one_line(chosen, manifest, name, arguments, line):
    """The line names the field as its flag does, both values, and what the data would take."""
    with pytest.raises(UserError, match=line) as caught:
        chosen(manifest, name, *arguments)
    assert "\n" not in str(caught.value)
    for flag in re.findall(r"\b(?:data|model)\.[\w.]+(?==)", str(caught.value)):
        assert from_data._at(registry.load(name), flag) is not None, flag


def test_the_experiments_own_cache_and_one_that_is_not_prepared_decide_nothing(chosen, tmp_path, capsys):
    """Registered values stay where their own cache is named; a missing one is refused when it is opened."""
    folder = tmp_path / "caches" / "fashion_mnist"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(PICTURES))
    parser = cli.parser("")
    cli.add_experiment(parser)
    for cache in (registry.load("vit.quickstart").data.cache, "gone"):
        e = cli.chosen(*parser.parse_known_args(["vit.quickstart", "--data.cache", cache]))
        assert e.model == registry.load("vit.quickstart").model
    assert capsys.readouterr().err == ""
    with pytest.raises(DataError, match="no prepared data at"):
        from_data.fit(e)
