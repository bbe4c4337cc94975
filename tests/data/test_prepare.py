"""Tests of what all kinds of caches have in common, and of the command that prepares them."""

import json
import subprocess
import sys

import pytest

from configs import registry
from configs.registry import ConfigError
from data import kinds, paths, prepare
from data.cache_maker import maker_of
from data.prepare import PREPARED, settings_from
from data.reading.caches import write_examples
from data.task import DataError
from scripts import prepare_data

MODULES = (
    "data.prepare",
    "data.reading.packing",
    "data.vocabularies.sentencepiece",
    "data.vocabularies.tokenizers",
    "data.packages.weights",
    "data.text.masking",
    "data.translation.maker",
    "data.translation.corpus",
    "data.text.maker",
    "data.text.corpus",
    "data.text.encoding",
    "data.labelled.maker",
    "data.labelled.encoding",
    "scripts.prepare_data",
)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_each_class_of_settings_has_its_maker(kind):
    """A kind's makers are those of its own classes of settings, no more and no fewer."""
    assert {*kinds.module(kind, "maker").MAKERS} == {*kinds.module(kind, "caches").CACHES}


def test_a_misspelt_name_gives_the_nearest():
    """The command refuses an unknown name in one line that names the nearest data set or weights."""
    with pytest.raises(ConfigError, match=r"^no data set 'm4_quickstrat'; did you mean 'm4_quickstart'\?$"):
        prepare_data.main(["m4_quickstrat"])
    with pytest.raises(ConfigError, match=r"^no data set 'minilm'; did you mean 'minilm_l6'\?$"):
        prepare_data.main(["minilm"])
    with pytest.raises(ConfigError, match=r"^no data set 'refernce'; did you mean 'reference'\?$"):
        prepare_data.main(["refernce"])


@pytest.mark.parametrize(
    "manifest, summary",
    [
        (
            {"kind": "translation", "languages": {"sw": {"pairs": 2, "rows": 1}, "br": {"pairs": 3, "rows": 1}}},
            {"languages": 2, "pairs": 5, "rows": 2, "validation": 0, "test": 3},
        ),
        (
            {"kind": "text", "parts": {"a": {"rows": 4, "tokens": 9}}},
            {"parts": 1, "rows": 4, "tokens": 9, "validation": 0, "test": 3},
        ),
    ],
)
def test_the_summary_adds_up(monkeypatch, tmp_path, capsys, manifest, summary):
    """The command prints a cache's counts, added up over its languages or parts, and how many examples each held-out split has,
    also where it has none; progress goes elsewhere."""
    (tmp_path / "manifest.json").write_text(json.dumps({"cache": "some", "fingerprint": "f", **manifest}))
    write_examples(tmp_path / "validation.jsonl", [])
    write_examples(tmp_path / "test.jsonl", [{"text": "a\nb"}] * 3)
    monkeypatch.setattr(prepare_data, "prepare", lambda name, vocabulary, progress, beam: tmp_path)
    prepare_data.main(["gpt_small", "--json"])
    assert json.loads(capsys.readouterr().out) == {"cache": "some", **summary, "fingerprint": "f", "folder": str(tmp_path)}


INPUTS = {
    "smollm2_chitchat": "61528051da6c5c144381b8870d4eb41553cc0ecd26a9844c8d71717d4aa19ae6",
    "chitchat": "d14e98fbb5642e5b1160f6bc507cbcd53f7e6cdbefb345061dae50be40a86511",
    "radolan": "cb50771606a96d9c159b650cca1ed4bdf71a67cf2c4306fbfa303c1b3d5cec3f",
    "emoji": "09adb22d883f2e991d9f361e931174659082f3ce692afd11eddd8ce31d7a93ac",
    "debian_sections": "321ddf90cb8251d2939ccb771af29290b69b1691d80d2e9000925790020cafa0",
    "emoji_names": "8898255456dc5da235c3379a73032938bb64d52fa65d9c90f2726d5a8f4f7cc6",
    "librivox": "c1e4a0774bc53a9b2b24d9a14b52af042b03e458a3bb1a180514504a9a46b39c",
    "gpt_small": "5a550db61dd992e74847507b196f61e808bdf7fce38cf64d974144162a7b65cd",
    "m4_quickstart": "b83334f5211731c39d06f2e78ac107fc74fb443516ad8f8d74b5bc091a5023d6",
}


@pytest.mark.parametrize("name", INPUTS)
def test_prepared_caches_keep_their_inputs(name, tmp_path):
    """The inputs of a cache of each kind have not changed: caches that are prepared stay valid."""
    settings = PREPARED[name]
    maker = maker_of(name, settings, tmp_path)
    pins = {package.file: package.sha256 for package in maker.packages()}
    assert paths.digest([maker.FORMAT, settings.flat(), pins, *maker.inputs()]) == INPUTS[name]


def test_earlier_names_still_open(tmp_path):
    """Caches and experiments that were stored when LaMDA's data was called dialog are still valid."""
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": "dialog", "inputs": "digest", "files": {}}))
    assert prepare._is_made_from(tmp_path, "lamda", "digest") and not prepare._is_made_from(tmp_path, "text", "digest")
    assert kinds.module("dialog", "task") is kinds.module("lamda", "task")
    stored = registry.to_json(registry.load("lamda.smollm2_chat"))
    stored["data"]["class"] = "DialogData"
    assert registry.from_json(stored) == registry.load("lamda.smollm2_chat")


@pytest.mark.integration
def test_reading_needs_no_tensorflow():
    """Everything but the builders and the tasks can be imported without TensorFlow, SeqIO or TFDS."""
    program = (
        f"import sys, {', '.join(MODULES)};"
        "heavy = {'tensorflow', 'seqio', 'tensorflow_datasets'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("row", "kind", "line"),
    [
        ({"txt": "a", "lbl": "b"}, "", "the columns txt, lbl; the nearest is a table .* of texts or pairs of texts with labels"),
        ({"chosn": "a", "rejected": "b"}, "", "the columns chosn, rejected; the nearest is preference pairs, a table"),
        ({"Input": "a", "Output": "b"}, "", "the columns Input, Output; .* in the columns inputs and targets .* NAME=COLUMN"),
        ({"txt": "a", "lbl": "b"}, "chat", "the columns txt, lbl; the nearest is conversations"),
        (None, "", r"files like \.pdf; the nearest is files of text"),
    ],
)
def test_a_source_of_no_kind_names_the_nearest_form(tmp_path, row, kind, line):
    """In one short line, with the page that lists all of them."""
    source = tmp_path / ("rows.jsonl" if row else "a.pdf")
    source.write_text(json.dumps(row))
    with pytest.raises(DataError, match=f": no kind of data has {line}") as caught:
        settings_from(str(source), kind=kind)
    assert str(caught.value).endswith("; docs/DATA.md lists all forms") and len(str(caught.value)) < 400 + len(str(tmp_path))


def test_an_empty_folder_has_no_file(tmp_path):
    with pytest.raises(DataError, match="no file is there; docs/DATA"):
        settings_from(str(tmp_path))
