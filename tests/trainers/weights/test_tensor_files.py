"""Safetensors files: the same as the library's, read by the piece, and refused when damaged."""

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from safetensors.numpy import load_file, save_file

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
    tensor_files.write(tmp_path / "f", shapes, tensors.items(), {"format": "pt"})
    found = load_file(tmp_path / "f")
    assert found.keys() == tensors.keys()
    for name, x in tensors.items():
        assert_array_equal(found[name], x)


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
    }


@pytest.mark.parametrize("case", damaged(b"\2" + b"\0" * 7 + b"{}"))
def test_a_damaged_file_is_refused_in_one_line(tmp_path, case):
    save_file(TENSORS, tmp_path / "good")
    content = damaged((tmp_path / "good").read_bytes())[case]
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(InterchangeError, match=r"bad\.safetensors") as caught:
        TensorFile(tmp_path / "bad.safetensors")
    assert len(str(caught.value).splitlines()) == 1
