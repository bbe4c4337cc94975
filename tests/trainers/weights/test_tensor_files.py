"""Safetensors files: the same as the library's, read by the piece, and refused when damaged."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from safetensors.numpy import load_file, save_file

from data import untrusted
from models.interchange import InterchangeError
from trainers.weights import tensor_files
from trainers.weights.tensor_files import TensorFile

RNG = np.random.default_rng(0)
TENSORS = {"a": RNG.normal(size=(3, 5)), "b.c": RNG.normal(size=()), "empty": np.zeros((0, 4)), "z": RNG.normal(size=7)}
TENSORS = {name: x.astype(np.float32) for name, x in TENSORS.items()}


def test_the_library_reads_what_we_write(tmp_path):
    """Names, shapes and bits; transposed and strided arrays too."""
    tensors = TENSORS | {"turned": TENSORS["a"].T, "strided": TENSORS["z"][::2]}
    shapes = {name: x.shape for name, x in tensors.items()}
    tensor_files.write(tmp_path / "f", shapes, ((k, (x,)) for k, x in tensors.items()), {"format": "pt"})
    loaded = load_file(tmp_path / "f")
    assert loaded.keys() == tensors.keys()
    for name, x in tensors.items():
        assert_array_equal(loaded[name], x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16, np.int64])
def test_we_read_what_the_library_writes(tmp_path, dtype):
    """In every kind of number that weights come in."""
    tensors = {name: x.astype(dtype) for name, x in TENSORS.items()}
    save_file(tensors, tmp_path / "f", {"format": "pt"})
    file = TensorFile(tmp_path / "f")
    assert file.shapes == {name: x.shape for name, x in tensors.items()}
    for name, x in tensors.items():
        assert file(name).dtype == dtype
        assert_array_equal(file(name), x)


def damaged(content: bytes) -> dict[str, bytes]:
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    return {
        "nothing": b"",
        "half": content[: len(content) // 2],
        "a byte too few": content[:-1],
        "no header": content[:8],
        "a length beyond the file": b"\xff" * 8 + content[8:],
        "no JSON": content[:8] + b"x" * len(header) + content[8 + len(header) :],
        "another shape": content.replace(b"[3,5]", b"[3,6]"),
        "an unknown kind": content.replace(b'"F32"', b'"F4X"'),
        "no offsets": content.replace(b"data_offsets", b"dato_offsets"),
        "a list": content[:8] + b"[]".ljust(len(header)) + content[8 + len(header) :],
        "deep": framed(b'{"a":' + b"[" * 9999 + b"]" * 9999 + b"}"),
        "an infinite size": framed(b'{"a":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,16]}}'),
        "a float offset": framed(b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0.0,16.0]}}'),
        "negative sizes": framed(b'{"a":{"dtype":"F32","shape":[-2,-2],"data_offsets":[0,16]}}'),
        "sizes beyond 64 bits": framed(b'{"a":{"dtype":"F32","shape":[%d,%d],"data_offsets":[0,16]}}' % (2**62, 2**62)),
        "overlap": framed(tensor("a") | tensor("b")),
        "a hole": framed(tensor("a", begin=4)),
        "a tail": framed(tensor("a", size=3)),
        "a name twice": framed(json.dumps(tensor("a"))[:-1].encode() + b"," + json.dumps(tensor("a"))[1:].encode()),
        "a long name": framed(tensor("a" * 9999, size=3)),
        "a long kind": framed(tensor("a") | {"b": tensor("b")["b"] | {"dtype": "F" * 9999}}),
    }


def tensor(name: str, begin: int = 0, size: int = 4) -> dict:
    """A header's entry of floats that begin at a byte."""
    return {name: {"dtype": "F32", "shape": [size], "data_offsets": [begin, begin + 4 * size]}}


def framed(header: dict | bytes) -> bytes:
    """A file with this header and 16 bytes of tensors."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


@pytest.mark.parametrize("case", damaged(b"\2" + b"\0" * 7 + b"{}"))
def test_a_damaged_file_is_refused_in_one_line(tmp_path, case):
    """Damage to the header or the length raises InterchangeError with the file's name, whatever the header claims."""
    save_file(TENSORS, tmp_path / "good")
    content = damaged((tmp_path / "good").read_bytes())[case]
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(InterchangeError, match=r"bad\.safetensors") as caught:
        TensorFile(tmp_path / "bad.safetensors")
    message = str(caught.value).removeprefix(str(tmp_path))
    assert len(message.splitlines()) == 1 and len(message) < 300


def test_a_tensor_of_too_many_dimensions_is_refused(tmp_path):
    """An array has at most 64; the library that checks headers knows no limit."""
    (tmp_path / "f").write_bytes(framed({"a": {"dtype": "F32", "shape": [1] * 65 + [4], "data_offsets": [0, 16]}}))
    with pytest.raises(InterchangeError, match="f is damaged: "):
        TensorFile(tmp_path / "f")("a")


def test_a_header_longer_than_any_is_not_read(tmp_path):
    """It would be held several times over."""
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write((untrusted.TEXT + 1).to_bytes(8, "little"))
        file.truncate(untrusted.TEXT + 100)
    with pytest.raises(InterchangeError, match=r"model\.safetensors has 50,331,649 bytes of header, more than 50,331,648$"):
        TensorFile(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    """A path that is no regular file is refused at once: a named pipe that nobody writes to would never be read to its end."""
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(InterchangeError, match=r"model\.safetensors is no regular file$"):
        TensorFile(tmp_path / "model.safetensors")


def test_only_floats_are_weights(tmp_path):
    """Integers and truth values are read where they are buffers; as weights they are refused by name and dtype."""
    save_file({"ids": np.arange(3), "mask": np.ones(3, bool), "w": np.ones(3, np.float16)}, tmp_path / "f")
    file = TensorFile(tmp_path / "f")
    file.require_floats(["w"])
    for name, dtype in {"ids": "I64", "mask": "BOOL"}.items():
        with pytest.raises(InterchangeError, match=rf"f: {name} holds {dtype}, weights are F64, F32, F16, BF16"):
            file.require_floats(["w", name])
