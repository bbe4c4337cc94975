"""Vectors of texts by folders of sentence encoders, and the files that say how they are made."""

import functools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from models.errors import UserError
from models.interchange import InterchangeError
from models.parts.heads_config import SentenceEmbedding
from models.parts.nested import changed
from scripts import embed
from tests.helpers.labelled_packages import PIECES, write_tokenizer
from tests.parity import ours
from tests.parity.live import FIXTURES
from trainers.weights import huggingface, sentences
from trainers.weights.huggingface import HuggingFace
from trainers.weights.source import Arrays

TEXTS = ("the cat sat", "who ? a b c d e f a b c d e f", "mat")


def pooling(**modes: Any) -> dict[str, Any]:
    return {"word_embedding_dimension": 27} | {f"pooling_mode_{name}": on for name, on in modes.items()}


def encoder(folder: Path, modes: dict[str, Any] | None = None, kinds=("Transformer", "Pooling", "Normalize")) -> Path:
    """A small random BERT that transformers wrote, as sentence-transformers would write it beside its vocabulary."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURES / "bert" / name, folder)
    write_tokenizer(folder / "tokenizer.json")
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes or pooling(mean_tokens=True, max_tokens=False)))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9, "do_lower_case": False}))
    prompts = {"prompts": {"query": "who ? ", "passage": ""}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def ids(text: str, most: int) -> list[int]:
    numbers: dict[str, int] = {piece: i for i, piece in enumerate(PIECES)}
    return [numbers[piece] for piece in ["[CLS]", *text.split()[: most - 2], "[SEP]"]]


@functools.cache
def hidden(text: str, most: int = 9) -> np.ndarray:
    """The last layer's vectors of a text alone, cut to so many tokens."""
    tokens = np.array([ids(text, most)], np.int32)
    given = {"tokens": tokens, "mask": np.ones_like(tokens), "types": np.zeros_like(tokens)}
    return ours.outputs(HuggingFace(FIXTURES / "bert"), given)["last_hidden_state"][0]


def run(monkeypatch, capsys, *arguments: str | Path) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["embed", *map(str, arguments)])
    assert embed.main() == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("modes", "vector", "of"),
    [
        (pooling(mean_tokens=True, cls_token=False), "mean", lambda x: x.mean(0)),
        ({"pooling_mode": "cls"}, "first", lambda x: x[0]),
        (pooling(lasttoken=True, mean_tokens=False), "last", lambda x: x[-1]),
    ],
)
def test_vectors_are_made_as_the_folder_says(modes, vector, of, tmp_path, monkeypatch, capsys):
    """Mean, first or last of a text's tokens, of length 1, to 1e-5, of texts side by side in a row; a text is as long as the
    folder allows, and begins with its prompt. Written again, the folder says the same."""
    folder = encoder(tmp_path / "f", modes)
    file = tmp_path / "texts.jsonl"
    examples = [{"text": text} for text in TEXTS[:2]] + [{"text": TEXTS[2], "prompt": "query"}]
    file.write_text("\n".join(map(json.dumps, examples)))
    run(monkeypatch, capsys, "--checkpoint", folder, "--file", file, "--to", tmp_path / "v.npy")
    got = np.load(tmp_path / "v.npy")
    for at, text in enumerate((*TEXTS[:2], f"who ? {TEXTS[2]}")):
        want = of(hidden(text))
        assert_allclose(got[at], want / np.linalg.norm(want), atol=1e-5)
    huggingface.write_folder(HuggingFace(folder), tmp_path / "again")
    again = HuggingFace(tmp_path / "again")
    assert again.config == HuggingFace(folder).config and again.config.head == SentenceEmbedding(vector=vector)
    assert sentences.prompt(tmp_path / "again", "query") == "who ? " and again.data_fields() == {"length": 9}


def test_cosines_are_printed(tmp_path, monkeypatch, capsys):
    """A line for each text, its cosine with each, with itself 1; a prompt stands before all of them."""
    folder = encoder(tmp_path / "f")
    lines = run(monkeypatch, capsys, "--checkpoint", folder, "--prompt", "query", *TEXTS[::2])
    a, b = (of / np.linalg.norm(of) for of in (hidden(f"who ? {text}").mean(0) for text in TEXTS[::2]))
    assert lines == [f" 1.000 {a @ b:6.3f}  {TEXTS[0]}", f"{a @ b:6.3f}  1.000  {TEXTS[2]}"]


def test_a_folder_of_a_class_with_another_head_is_an_encoder(tmp_path):
    """As all-mpnet-base-v2, whose class is that for masked tokens; the head of the class is not read."""
    folder = encoder(tmp_path / "f")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURES / "mpnet_masked_lm" / name, folder)
    source = HuggingFace(folder)
    assert source.config.head == SentenceEmbedding() and not any(name.startswith("head.bias") for name in source.shapes)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (dict(kinds=("Transformer", "Pooling", "Dense")), "no encoder of Transformer, Pooling, Dense here, only of"),
        (dict(kinds=("Transformer",)), "no encoder of Transformer here"),
        (dict(modes=pooling(max_tokens=True)), "no vector by pooling_mode_max_tokens here, only by one of mean, cls, lasttoken"),
        (dict(modes=pooling(mean_tokens=True, cls_token=True)), "no vector by mean, cls here"),
        (dict(modes=pooling(mean_tokens=True) | {"include_prompt": False}), "include_prompt=false is not supported, only true"),
        (dict(modes={"pooling_mode": ["mean"]}), "no vector by ['mean'] here"),
    ],
)
def test_other_encoders_are_refused(change, part, tmp_path):
    """In one line that names the file and the value."""
    with pytest.raises(InterchangeError) as caught:
        HuggingFace(encoder(tmp_path / "f", **change))
    assert part in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("file", "content", "part"),
    [
        ("modules.json", {}, "modules.json"),
        ("modules.json", [{"type": 3}], "{'type': 3} is no module, with a type and a path"),
        (
            "modules.json",
            [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "../x"}],
            "is no file of the folder",
        ),
        ("sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": True}, "do_lower_case=true is not supported"),
        ("sentence_bert_config.json", {"max_seq_length": "9"}, 'max_seq_length is "9"; expected int'),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "prompts are no texts by name"),
        ("config_sentence_transformers.json", {"prompts": {"query": "q: "}}, "no prompt 'quer'; did you mean 'query'?"),
        ("config_sentence_transformers.json", {}, "no prompt 'quer'; it has none"),
    ],
)
def test_damaged_files_are_refused(file, content, part, tmp_path):
    folder = encoder(tmp_path / "f")
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        HuggingFace(folder).data_fields()
        sentences.prompt(folder, "quer")
    assert part in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_default_prompt_is_the_folders(tmp_path):
    settings = {"prompts": {"query": "q: "}, "default_prompt_name": "query"}
    (tmp_path / sentences.PROMPTS).write_text(json.dumps(settings))
    assert sentences.prompt(tmp_path) == "q: "
    assert sentences.prompt(FIXTURES / "bert") == ""


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((), "give either texts or --file"),
        (("a", "--to", "v.txt"), "--to v.txt: must end with .npy; choose a new .npy file"),
        (("a",), "nothing beside the weights says what tokens are"),
    ],
)
def test_a_bad_call_is_refused(arguments, part, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["embed", "--checkpoint", str(FIXTURES / "bert"), *arguments])
    with pytest.raises(UserError, match="") as caught:
        embed.main()
    assert part in str(caught.value)


def test_no_other_model_is_written_as_an_encoder(tmp_path):
    """The files beside a model are those of one that gives vectors alone."""
    source = HuggingFace(FIXTURES / "bert_tagging")
    huggingface.write_folder(source, tmp_path / "tags")
    assert not (tmp_path / "tags" / "modules.json").exists()
    config = changed(HuggingFace(FIXTURES / "bert").config, {"head.vector": "first"})
    huggingface.write_folder(Arrays(config, ours.fresh(config, 0)), tmp_path / "f")
    assert HuggingFace(tmp_path / "f").config == config
