"""Whisper in the forms in which it is released: CTranslate2's file, and OpenAI's names in a safetensors file."""

import dataclasses
import struct
from pathlib import Path

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from safetensors.numpy import save_file

from configs import registry
from models.families import family_of
from models.interchange import InterchangeError
from models.interchange.tensors import their_shapes, written
from models.parts.attention.config import Learned
from models.parts.nested import changed
from models.sharding.params import to_params
from models.whisper import ctranslate2, openai
from models.whisper.config import WhisperConfig
from tests.fuzz import writers
from tests.helpers.models import ALONE
from trainers.weights.load_any import open_model, open_weights
from trainers.weights.source import Arrays


@pytest.fixture(scope="module")
def small() -> Arrays:
    """A small random Whisper, with heads of 64 and fewer layers in the decoder."""
    c = registry.load("whisper.turbo").model
    assert isinstance(c, WhisperConfig)
    c = changed(
        c,
        {
            "positions": Learned(rows=9),
            "vocab": 70,
            "layers": 3,
            "decoder.layers": 1,
            "decoder.start_id": 50_258,
            "model_dim": 128,
            "feed_forward.hidden_dim": 96,
            "attention.heads": 2,
            "attention.head_dim": 64,
            "mels": 10,
            "source_positions": 12,
        },
    )
    params = to_params(family_of(c).model(c, jax.random.key(0), ALONE))
    rng = np.random.default_rng(0)
    return Arrays(c, jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params))


def write_ctranslate2(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A file of float16 variables, with a setting and an alias as real ones have."""
    variables = {"encoder/num_heads": np.array(2, "<i2")} | {name: x.astype("<f2") for name, x in tensors.items()}
    writers.ctranslate2(path, variables, {"decoder/projection/weight": "decoder/embeddings/weight"})


def fused(source: Arrays) -> dict[str, np.ndarray]:
    """The variables of CTranslate2's form: parts "NAME[a:b]" joined, with zeros for the biases of keys."""
    c = source.config
    assert isinstance(c, WhisperConfig)
    variables: dict[str, np.ndarray] = {}
    pieces: dict[str, dict[int, np.ndarray]] = {}
    for name, array in written(ctranslate2.INTERCHANGE.entries(c), source.read):
        whole, bracket, rows = name.partition("[")
        if bracket:
            pieces.setdefault(whole, {})[int(rows.split(":")[0])] = array
        else:
            variables[name] = array
    for name, parts in pieces.items():
        size = c.model_dim
        count = 3 if "self_attention" in name else 2
        blank = np.zeros_like(next(iter(parts.values())))
        variables[name] = np.concatenate([parts.get(i * size, blank) for i in range(count)])
    return variables


def assert_same(path: Path, source: Arrays, dtype: str) -> None:
    read = open_weights(path)
    assert read.config == dataclasses.replace(source.config, dropout=0.0)
    assert read.shapes.keys() == source.shapes.keys()
    for name in source.shapes:
        assert_array_equal(read.read(name, ()), source.read(name).astype(dtype))


def test_ctranslate2s_file_is_read_to_the_last_variable(small, tmp_path):
    """Fused matrices are taken apart; the biases of keys, which are zeros, are left."""
    write_ctranslate2(tmp_path / "model.bin", fused(small))
    (tmp_path / "config.json").write_text("{}")
    assert_same(tmp_path, small, "float16")
    e, weights = open_model(tmp_path)
    assert (weights.stored, e.execution.dtype) == ("float16", "float32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if "conv1/bias" not in k}, "encoder/conv1/bias is missing"),
        (lambda t: t | {"encoder/extra": np.zeros(3)}, r"encoder/extra \[3\] was not expected"),
        (lambda t: t | {"encoder/conv1/bias": np.zeros(7)}, r"encoder/conv1/bias is \[7\], expected \[128\]"),
        (lambda t: {k: v for k, v in t.items() if "embeddings" not in k}, "embeddings/weight"),
    ],
)
def test_other_variables_are_named(small, tmp_path, change, message):
    """Missing, stray and misshapen variables, in one line."""
    write_ctranslate2(tmp_path / "model.bin", change(fused(small)))
    with pytest.raises(InterchangeError, match=message) as error:
        open_weights(tmp_path)
    assert "\n" not in str(error.value)


def test_damaged_files_are_refused(small, tmp_path):
    """One that is cut short, of another version, or no such file at all."""
    write_ctranslate2(tmp_path / "model.bin", fused(small))
    whole = (tmp_path / "model.bin").read_bytes()
    for content, message in (
        (whole[:5000], "cut short"),
        (whole[:2], "cut short"),
        (b"PK\3\4" + whole, "no CTranslate2 file"),
        (whole.replace(struct.pack("<B2I", 2, 70, 128), struct.pack("<B2I", 2, 2**31, 128)), "17,920 bytes, and not those of"),
    ):
        (tmp_path / "model.bin").write_bytes(content)
        with pytest.raises(InterchangeError, match=message):
            open_weights(tmp_path)


def test_openais_names_are_read_by_their_shapes(small, tmp_path):
    """A safetensors file without a configuration, in the names of the released code; a pickle is refused."""
    c = small.config
    assert isinstance(c, WhisperConfig)
    entries = openai.INTERCHANGE.entries(c)
    assert set(their_shapes(entries)) >= {"encoder.blocks.1.attn.key.weight", "decoder.token_embedding.weight"}
    tensors = {name: np.ascontiguousarray(array) for name, array in written(entries, small.read)}
    save_file(tensors, tmp_path / "tiny.safetensors")
    assert_same(tmp_path / "tiny.safetensors", small, "float32")
    (tmp_path / "tiny.pt").write_bytes(b"")
    with pytest.raises(InterchangeError, match="is a pickle"):
        open_weights(tmp_path / "tiny.pt")
    save_file({"x": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(InterchangeError, match="not Whisper's tensors"):
        open_weights(tmp_path / "other.safetensors")
