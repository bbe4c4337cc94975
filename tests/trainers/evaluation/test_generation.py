"""Texts continued as a released folder's own files say, with small random models of `transformers` (make parity)."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from data.vocabularies import files
from data.vocabularies.tokenizers import Tokenizer
from models.execution import Execution
from tests.parity.live import FIXTURES
from tests.parity.vocabularies import TEXTS, TOKENS, VOCABULARIES
from trainers.evaluation.generation import Generate, Generator
from trainers.evaluation.place import placed
from trainers.weights import huggingface
from trainers.weights.open import open_model


def released(name: str, to: Path) -> Path:
    """Copies a vocabulary in a family's form, with the model that was continued with it."""
    shutil.copytree(FIXTURES / "texts" / name, to)
    shutil.copy(FIXTURES / VOCABULARIES[name].model / huggingface.ONE_FILE, to)
    return to


def continuations(folder: Path, texts: list[str], **settings) -> list[list[int]]:
    """Returns the ids of the first continuation of each text, in float32."""
    e, weights = open_model(folder)
    assert weights.vocabulary
    plan, params = placed(dataclasses.replace(e, execution=Execution()), weights)
    config = Generate(tokens=TOKENS, batch_size=len(texts), **settings)
    return [row[0].ids for row in Generator(plan.model, config, weights.vocabulary)(params, texts)]


SHOWN = "llama2", "gemma2", "phi3"  # begun by a token; the same, and with several ends; with several ends alone


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
    assert Generator(placed(*open_model(folder))[0].model, Generate(), folder).ends == (2,)
