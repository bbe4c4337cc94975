"""Flax's msgpack files: the models of version 4's Flax classes (tests/parity/flax_classes.py made them) are what they were."""

import json
import shutil
import struct
from pathlib import Path

import msgpack
import numpy as np
import pytest
from flax import serialization, traverse_util
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file, save_file

from data import untrusted
from data.paths import ROOT
from models.gpt.huggingface import INTERCHANGE as GPT_FILES
from models.interchange import InterchangeError
from tests.parity import ours
from tests.parity.cases import GIVEN
from trainers.weights import flax_files, huggingface, load_any

FIXTURES = ROOT / "tests/fixtures/flax"
CASES = sorted(folder.name for folder in FIXTURES.iterdir())
SHOWN = ("bert", "gpt2", "whisper")  # kernels of two and of three dimensions, and one that was transposed in PyTorch too
UNREAD = (
    "encoder.pooler.",
    "masked_spec_embed",
)  # which no output depends on: a captioner's pooler, what hides a sound in training


@pytest.mark.parametrize("name", [name if name in SHOWN else pytest.param(name, marks=pytest.mark.slow) for name in CASES])
def test_outputs_are_those_of_the_flax_class(name, monkeypatch):
    """Logits, or vectors, of every class differ by rounding alone."""
    monkeypatch.setattr(ours, "_decoded", lambda *args: np.zeros(1))  # the classes were not asked what they write
    expected = load_file(FIXTURES / name / "expected.safetensors")
    given = {key: expected.pop(key) for key in GIVEN if key in expected}
    ((key, want),) = expected.items()
    got = ours.outputs(load_any.open_weights(FIXTURES / name), given)[key]
    real = given["mask"][..., None] if "targets" not in given and want.ndim == 3 and "tokens" in given else 1
    assert_allclose(got * real, want * real, rtol=0, atol=1.2e-5)


@pytest.mark.parametrize("name", CASES)
def test_every_array_is_read(name):
    """Each parameter has the numbers of an array of the file, which flax.serialization reads too."""
    weights = load_any.open_weights(FIXTURES / name)
    tree = serialization.msgpack_restore((FIXTURES / name / huggingface.FLAX).read_bytes())
    theirs = sorted(np.sort(np.asarray(x), axis=None).tobytes() for x in traverse_util.flatten_dict(tree).values())
    (file,) = huggingface.files_of(FIXTURES / name)
    assert sorted(np.sort(np.array(file(key)), axis=None).tobytes() for key in file.shapes) == theirs
    used = [np.prod(shape) for key, shape in file.shapes.items() if not any(part in key for part in UNREAD)]
    assert sum(weights.read(key, ()).size for key in weights.shapes) == sum(used)


def test_shards_and_safetensors_hold_the_same(tmp_path):
    """A folder in shards, as version 4 writes large ones, and its tensors as safetensors are read as one file is, bit for bit."""
    (whole,) = huggingface.files_of(FIXTURES / "t5")
    tree = traverse_util.flatten_dict(serialization.msgpack_restore((FIXTURES / "t5" / huggingface.FLAX).read_bytes()), sep="/")
    shards = [dict(list(tree.items())[i::2]) for i in range(2)]
    names = [f"flax_model-0000{i}-of-00002.msgpack" for i in (1, 2)]
    for folder in ("shards", "torch"):
        (tmp_path / folder).mkdir()
        shutil.copy(FIXTURES / "t5/config.json", tmp_path / folder)
    for shard, name in zip(shards, names, strict=True):
        nested = traverse_util.unflatten_dict(shard, sep="/")
        (tmp_path / "shards" / name).write_bytes(serialization.msgpack_serialize(nested))
    places = {key: name for shard, name in zip(shards, names, strict=True) for key in shard}
    (tmp_path / "shards" / huggingface.FLAX_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    save_file({key: np.ascontiguousarray(whole(key)) for key in whole.shapes}, tmp_path / "torch" / huggingface.ONE_FILE)
    one, *others = (load_any.open_weights(folder) for folder in (FIXTURES / "t5", tmp_path / "shards", tmp_path / "torch"))
    for other in others:
        assert other.config == one.config and other.shapes == one.shapes
        for key in one.shapes:
            assert_array_equal(one.read(key, ()), other.read(key, ()), err_msg=key)
    (tmp_path / "shards" / names[1]).unlink()
    with pytest.raises(InterchangeError, match=r"flax_model-00002-of-00002\.msgpack is missing"):
        load_any.open_weights(tmp_path / "shards")


def test_arrays_in_pieces_and_other_dtypes(tmp_path, monkeypatch):
    """An array above a piece's size, bfloat16, scalars and empty arrays are read as they were stored, and only when asked for."""
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 64)
    half = np.arange(6, dtype=np.float32).astype(flax_files.DTYPES["BF16"]).reshape(2, 3)
    tree = {"a": {"kernel": np.arange(40, dtype=np.float32).reshape(5, 8)}, "h": half, "n": np.float32(3), "e": np.zeros((0, 2))}
    (tmp_path / "f.msgpack").write_bytes(serialization.msgpack_serialize(tree))
    file = flax_files.FlaxFile(tmp_path / "f.msgpack")
    assert dict(file.shapes) == {"a.weight": (8, 5), "h": (2, 3), "n": (), "e": (0, 2)}
    assert_array_equal(file("a.weight"), tree["a"]["kernel"].T)
    assert_array_equal(file("h"), half)
    assert isinstance(file("h").base, np.ndarray) and file("n") == 3 and file("e").size == 0


@pytest.mark.parametrize(
    ("settings", "count"),  # of 2B and 7B, as published; the sizes are from memory
    [
        (
            dict(hidden_size=2048, num_hidden_layers=18, num_attention_heads=8, num_key_value_heads=1, intermediate_size=16_384),
            2_506_172_416,
        ),
        (dict(), 8_537_680_896),
    ],
)
def test_gemma_has_the_published_number_of_parameters(settings, count):
    """Gemma 1, whose classes Flax had, has the parameters of its released sizes; 7B's settings are what absent keys mean."""
    sizes = dict(vocab_size=256_000, hidden_size=3072, num_hidden_layers=28, num_attention_heads=16, intermediate_size=24_576)
    config = GPT_FILES.read_config(dict(model_type="gemma") | sizes | settings)
    assert sum(info.size for info in ours.describe(ours.abstract(config))) == count
    theirs = GPT_FILES.write_config(config)
    assert theirs["model_type"] == "gemma" and GPT_FILES.read_config(theirs) == config


def packed(value: object) -> bytes:
    content = msgpack.packb(value)
    assert content
    return content


def array(shape: list[int], dtype: str = "float32", content: bytes = b"\0" * 8) -> msgpack.ExtType:
    return msgpack.ExtType(1, packed([shape, dtype, content]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cut short"),
        (packed([1, 2]), "expected one map"),
        (packed({"a": 1}) + b"\0", "expected one map"),
        (packed({"a": 1}), "a is no array"),
        (b"\xc1", "begins no value"),
        (packed({1: 2}), "has the name 1 in it"),
        (b"\x82\xa1a\xc0\xa1a\xc0", "'a' twice"),
        (packed({"a": array([3])}), r"8 bytes are not those of float32 \[3\]"),
        (packed({"a": array([-1, -2])}), "8 bytes are not those of"),
        (packed({"a": array([2], "object")}), "an array is of 'object'; known are float64"),
        (packed({"a": msgpack.ExtType(2, packed([1.0, 2.0]))}), "an extension of type 2 is no array"),
        (packed({"a": msgpack.ExtType(1, packed([[2], "float32"]))}), "is not of the form"),
        (packed({"a": array([2])})[:-3], "cut short"),
        (packed({"a": {"kernel": array([2])}, "a.weight": array([2])}), "a.weight is there twice"),
        (packed({"a": {"__msgpack_chunked_array__": True, "shape": {"0": 2}}}), "lacks its shape or its pieces"),
        (b"\x81\xa1a" * 200 + b"\x80", "levels of maps, more than 100"),
        (b"\x81\xdb\xff\xff\xff\xff", "bytes in a name, more than"),
        (b"\x81\xa1a\xc9\xff\xff\xff\xff\x01", "cut short"),
        (b"\xdf\xff\xff\xff\xff" + b"\xa1a\xc0", "cut short"),
    ],
)
def test_what_is_damaged_is_one_line(content, message, tmp_path):
    """Bytes that are no map of arrays are refused before memory is asked for."""
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(content)
    with pytest.raises(InterchangeError, match=message) as caught:
        flax_files.FlaxFile(path)
    assert len(str(caught.value).splitlines()) == 1 and str(path) in str(caught.value)


def test_numbers_of_values_are_bounded(tmp_path, monkeypatch):
    """A list of a thousand millions ends at the bound, not when memory does."""
    monkeypatch.setattr(untrusted, "ITEMS", 1000)
    path: Path = tmp_path / "flax_model.msgpack"
    path.write_bytes(b"\x81\xa1a\xdd" + struct.pack(">I", 10**9) + b"\0" * 5000)
    with pytest.raises(InterchangeError, match="1,001 values, more than 1,000"):
        flax_files.structure(path)


def test_safetensors_come_first(tmp_path):
    """A folder with both has its tensors from safetensors; one with a pickle and no other is refused as before."""
    shutil.copytree(FIXTURES / "gpt2", tmp_path / "both")
    (file,) = huggingface.files_of(FIXTURES / "gpt2")
    tensors = {key: np.ascontiguousarray(file(key)) + 1 for key in file.shapes}
    save_file(tensors, tmp_path / "both" / huggingface.ONE_FILE)
    weights = load_any.open_weights(tmp_path / "both")
    assert_array_equal(weights.read("final_norm.scale", ()), tensors["transformer.ln_f.weight"])
    (tmp_path / "both" / huggingface.ONE_FILE).unlink()
    (tmp_path / "both" / huggingface.FLAX).rename(tmp_path / "both" / "pytorch_model.bin")
    with pytest.raises(InterchangeError, match="is a pickle"):
        load_any.open_weights(tmp_path / "both")
