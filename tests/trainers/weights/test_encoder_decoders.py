"""Hugging Face folders of encoder-decoders with tensors that are stray, missing, there twice, or tied but different."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from data.vocabularies import files
from models.interchange import InterchangeError
from models.parts.nested import changed as with_fields
from tests.helpers.vocabularies import write_pieces
from tests.parity.live import FIXTURES
from trainers.weights import huggingface
from trainers.weights.huggingface import HuggingFace

TABLES = {
    "t5": "shared.weight",
    "t5_v1_1": "shared.weight",
    "mt5": "shared.weight",
    "switch": "shared.weight",
    "m2m100": "model.shared.weight",
    "nllb_moe": "model.shared.weight",
    "bart": "model.shared.weight",
    "marian": "model.shared.weight",
}
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
NAMES = pytest.mark.parametrize("name", TABLES)


def changed(name: str, to: Path, change) -> Path:
    """A fixture whose tensors, by name, were changed in place."""
    shutil.copytree(FIXTURES / name, to)
    tensors = load_file(to / huggingface.ONE_FILE)
    change(tensors)
    save_file(tensors, to / huggingface.ONE_FILE)
    return to


def line(folder: Path) -> str:
    """The one line by which a folder is refused; it begins with the folder."""
    with pytest.raises(InterchangeError) as caught:
        HuggingFace(folder)
    (text,) = str(caught.value).splitlines()
    assert text.startswith(f"{folder}: ")
    return text


def last(name: str) -> str:
    """The last of a fixture's tensors that are neither the table nor the output: an expert's, where there are experts."""
    names = [key for key in load_file(FIXTURES / name / huggingface.ONE_FILE) if key.count(".") > 3]
    return max(names, key=lambda key: ("expert_" in key, key))


@NAMES
def test_a_stray_tensor_is_named(name, tmp_path):
    """With its shape."""
    stray = f"{last(name)}_scale"
    folder = changed(name, tmp_path / "f", lambda t: t.update({stray: np.zeros(3, np.float32)}))
    assert f"{stray} [3] was not expected" in line(folder)


@NAMES
def test_a_missing_tensor_is_named(name, tmp_path):
    """With the shape that it should have: a single expert's, a layer's, or the table."""
    for number, missing in enumerate((last(name), TABLES[name])):
        shape = list(load_file(FIXTURES / name / huggingface.ONE_FILE)[missing].shape)
        folder = changed(name, tmp_path / str(number), lambda t, missing=missing: t.pop(missing))
        assert f"{missing} is missing, expected {shape}" in line(folder)


@NAMES
def test_a_tensor_in_two_files_is_named(name, tmp_path):
    """The index names one file of each tensor; a second one would be read or not, by the order of files."""
    huggingface.write_folder(HuggingFace(FIXTURES / name), tmp_path / "f", max_shard_bytes=20_000)
    first, second, *_ = sorted((tmp_path / "f").glob("*.safetensors"))
    double, tensor = next(iter(load_file(first).items()))
    save_file(load_file(second) | {double: tensor + 1}, second)
    assert f"{double} is there twice" in line(tmp_path / "f")


@NAMES
def test_repeated_tables_are_compared(name, tmp_path):
    """A copy of the table for either side is dropped where it is equal, and both are named where one number differs."""
    table = TABLES[name]
    for number, copy in enumerate(table.replace("shared.weight", side) for side in COPIES):
        HuggingFace(changed(name, tmp_path / f"same{number}", lambda t, copy=copy: t.update({copy: t[table] + 0})))
        folder = changed(name, tmp_path / f"other{number}", lambda t, copy=copy: t.update({copy: _nudged(t[table])}))
        assert f"{copy} differs from {table}, whose copy it has to be" in line(folder)


@pytest.mark.parametrize("name", ["m2m100", "nllb_moe", "bart", "marian"])
def test_an_output_unlike_the_table_is_named(name, tmp_path):
    """These families have no untied model: both tensors are named, and that."""
    table = TABLES[name]
    folder = changed(name, tmp_path / "f", lambda t: t.update({"lm_head.weight": _nudged(t[table])}))
    text = line(folder)
    assert f"lm_head.weight differs from {table}" in text and "no untied" in text


@pytest.mark.parametrize("name", ["t5", "switch"])
def test_an_output_unlike_the_table_makes_a_model_untied(name, tmp_path):
    """T5 and Switch Transformer exist in both forms: the tensors decide, whatever config.json says."""
    folder = changed(name, tmp_path / "f", lambda t: t.update({"lm_head.weight": _nudged(t[TABLES[name]])}))
    source = HuggingFace(folder)
    assert not source.config.tied and "softmax" in source.shapes
    assert HuggingFace(FIXTURES / name).config.tied


def test_an_index_that_names_a_lost_tensor_is_refused(tmp_path):
    """An expert that the index places in a file which does not hold it."""
    huggingface.write_folder(HuggingFace(FIXTURES / "nllb_moe"), tmp_path / "f", max_shard_bytes=20_000)
    index = tmp_path / "f" / huggingface.INDEX
    content = json.loads(index.read_text())
    places = content["weight_map"]
    places["model.encoder.layers.1.ffn.experts.expert_4.fc1.weight"] = min(places.values())
    index.write_text(json.dumps(content))
    assert "are in no file, model.encoder.layers.1.ffn.experts.expert_4.fc1.weight among them" in line(tmp_path / "f")


@pytest.mark.parametrize(
    ("name", "settings", "error"),
    [
        ("switch", dict(router_dtype="bfloat16"), 'router_dtype="bfloat16" is not supported, only "float32"'),
        ("nllb_moe", dict(router_dtype="float16"), 'router_dtype="float16" is not supported, only "float32"'),
        ("nllb_moe", dict(moe_eval_capacity_token_fraction=-1), "moe_eval_capacity_token_fraction=-1 is not supported, only 1.0"),
        ("nllb_moe", dict(moe_eval_capacity_token_fraction=0.5), "moe_eval_capacity_token_fraction=0.5 is not supported"),
    ],
)
def test_a_router_that_computes_otherwise_is_refused(name, settings, error, tmp_path):
    """In lower precision it chooses other experts; with a capacity in evaluation it drops tokens."""
    shutil.copytree(FIXTURES / name, tmp_path / "f")
    config = tmp_path / "f" / huggingface.CONFIG
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))
    assert error in line(tmp_path / "f")


def test_a_capacity_that_rows_may_exceed_is_named(tmp_path, capsys):
    """Tokens that `transformers` drops of long rows are one line when a Switch Transformer is opened; an export drops nothing."""
    source = HuggingFace(FIXTURES / "switch")
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"{FIXTURES / 'switch'}: expert_capacity=64: in evaluation, `transformers` drops")
    huggingface.write_folder(source, tmp_path / "f")
    assert HuggingFace(tmp_path / "f").config == source.config
    assert json.loads((tmp_path / "f" / huggingface.CONFIG).read_text())["expert_capacity"] == 2**14
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["switch", "nllb_moe"])
def test_a_mixture_that_drops_tokens_in_evaluation_is_not_written(name, tmp_path):
    """Its capacity is that of a group of tokens, which no class of `transformers` has."""
    source = HuggingFace(FIXTURES / name)
    source.config = with_fields(source.config, {"moe.capacity.eval_factor": 2.0})
    with pytest.raises(InterchangeError, match=r"of Hugging Face is like this model: moe\.capacity\.eval_factor=2\.0"):
        huggingface.write_folder(source, tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_an_export_keeps_its_start(tmp_path):
    """A translator's folder says in config.json what its texts begin with, and no generation_config.json hides that."""
    source = HuggingFace(FIXTURES / "m2m100")
    source.vocabulary = tmp_path / "pieces"
    write_pieces(source.vocabulary)
    shutil.copy(FIXTURES / "m2m100" / huggingface.CONFIG, source.vocabulary)
    huggingface.write_folder(source, tmp_path / "f")
    assert {file.name for file in (tmp_path / "f").iterdir()} >= {files.PIECES, huggingface.CONFIG}
    assert not (tmp_path / "f" / files.GENERATION).exists()
    assert json.loads((tmp_path / "f" / huggingface.CONFIG).read_text())["decoder_start_token_id"] == 2


def _nudged(table: np.ndarray) -> np.ndarray:
    other = table + 0
    other.flat[-1] += 1
    return other
