"""Texts continued as a released folder's own files say, with small random models of `transformers` (make parity)."""

import json
import shutil
from pathlib import Path

import pytest

from data.vocabularies import files
from data.vocabularies.tokenizers import Tokenizer
from models.execution import Execution
from tests.parity.live import FIXTURES
from tests.parity.vocabularies import TEXTS, TOKENS, VOCABULARIES
from trainers.inference.forms import TemplateForm
from trainers.inference.generation import Generate, Generator
from trainers.inference.load import load
from trainers.weights import huggingface, release
from trainers.weights.load_any import open_model, open_weights


def released(name: str, to: Path) -> Path:
    """Copies a vocabulary in a family's form, with the model that was continued with it."""
    shutil.copytree(FIXTURES / "texts" / name, to)
    shutil.copy(FIXTURES / VOCABULARIES[name].model / huggingface.ONE_FILE, to)
    return to


def continuations(folder: Path, texts: list[str], **settings) -> list[list[int]]:
    """Returns the ids of the first continuation of each text, in float32."""
    weights = open_weights(folder)
    assert weights.vocabulary
    served = load(weights, Execution())
    config = Generate(tokens=TOKENS, batch_size=len(texts), **settings)
    return [row[0].ids for row in Generator(served.model, config, weights.vocabulary)(served.params, texts)]


SHOWN = "llama2", "gemma2", "phi3"  # begun by a token; the same, and with several ends; with several ends alone


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", [*SHOWN, *(pytest.param(name, marks=pytest.mark.slow) for name in VOCABULARIES if name not in SHOWN)]
)
def test_continuations_are_those_of_its_familys_own_folder(name, tmp_path):
    """Greedy ids are those of `transformers`, which begins a text and ends it as the folder's files say."""
    folder = released(name, tmp_path / name)
    expected, ends = json.loads((folder / "texts.json").read_text()), Tokenizer(folder).ends
    assert [row["text"] for row in expected] == list(TEXTS)
    for row, ids in zip(expected, continuations(folder, list(TEXTS)), strict=True):
        if "continued" in row:  # without a beginning, `transformers` continues no empty text
            assert ids == [id_ for id_ in row["continued"] if id_ not in ends], row["text"]


@pytest.mark.integration
def test_every_end_of_a_list_ends_a_text(tmp_path):
    """The token that a text is continued with ends it once the folder names it, beside another; so it does in a beam search."""
    folder = released("llama2", tmp_path / "llama2")
    (ids,) = continuations(folder, [TEXTS[0]])
    (folder / files.GENERATION).write_text(json.dumps({"eos_token_id": [2, ids[3]]}))
    first = ids.index(ids[3])
    assert continuations(folder, [TEXTS[0]]) == [ids[:first]] == continuations(folder, [TEXTS[0]], beams=1)


def test_a_folder_that_names_no_end_ends_with_a_known_name(tmp_path):
    """Without a word of it in any file, `</s>` is the end."""
    folder = released("llama2", tmp_path / "llama2")
    config = json.loads((folder / files.MODEL).read_text()) | {"eos_token_id": None}
    (folder / files.MODEL).write_text(json.dumps(config))
    for name in (files.GENERATION, files.CONFIG):
        (folder / name).unlink()
    assert Generator(load(open_weights(folder), Execution()).model, Generate(), folder).ends == (2,)


def test_what_ends_a_text_goes_through_a_release(tmp_path):
    """A release of a folder ends texts as the folder does, and so does the folder that is written of it, in its config.json; a
    generation_config.json of a few keys would hide others of a model's settings."""
    folder = released("llama3_instruct", tmp_path / "folder")
    e, weights = open_model(folder)
    release.write_weights(weights, e, tmp_path / "release", "as it is")
    again = open_model(tmp_path / "release")[1]
    assert again.vocabulary
    huggingface.write_folder(again, tmp_path / "back")
    kept = [Tokenizer(each) for each in (folder, again.vocabulary, tmp_path / "back")]
    assert {(t.before, t.ends, t.end) for t in kept} == {((95,), (96, 99, 100), 100)}
    written = json.loads((tmp_path / "back" / files.MODEL).read_text())
    assert (written["bos_token_id"], written["eos_token_id"]) == (95, [96, 99, 100])
    assert not (tmp_path / "back" / files.GENERATION).exists()


def test_a_turn_and_a_text_have_their_own_ends(tmp_path):
    """With a chat template, the end of a turn ends a sample, and what the folder names too; the folder written of it says so."""
    folder = released("gemma2", tmp_path / "folder")
    (folder / files.TEMPLATE).write_text(
        "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + m.role + m.content + '<end_of_turn>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>assistant' }}{% endif %}"
    )
    (folder / files.GENERATION).write_text('{"eos_token_id": 1}')
    weights = open_weights(folder)
    chat = Generator(load(weights, Execution()).model, Generate(), folder, form=TemplateForm(folder))
    assert chat.ends == (100, 1)
    huggingface.write_folder(weights, tmp_path / "back")
    assert json.loads((tmp_path / "back" / files.GENERATION).read_text())["eos_token_id"] == [100, 1]
    assert Tokenizer(tmp_path / "back").ends == (100, 1)
