"""Opening a model that others made: the precision in which it is computed."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.families import family_of
from tests.parity.live import FIXTURES
from trainers.weights import load_any, release
from trainers.weights.source import precision

FOLDERS = ("whisper", "vit_classification", "wav2vec2_conformer", "wav2vec2", "m2m100", "nllb_moe", "t5", "llama", "bert")


def stored_as(folder: Path, dtype: type, to: Path) -> Path:
    """Copies a folder with its tensors in another precision, but for one small one in float32, as norms often are."""
    shutil.copytree(folder, to)
    tensors = {name: x.astype(dtype) for name, x in load_file(folder / "model.safetensors").items()}
    smallest = min(tensors, key=lambda name: tensors[name].size)
    tensors[smallest] = tensors[smallest].astype(np.float32)
    save_file(tensors, to / "model.safetensors")
    return to


@pytest.mark.parametrize("name", FOLDERS)
def test_float32_weights_are_computed_in_float32(name):
    """Whatever the experiment of the family is computed in, whose data the model is given."""
    e, weights = load_any.open_model(FIXTURES / name)
    assert (e.execution.dtype, weights.stored) == ("float32", "float32")
    like = family_of(e.model).default_experiment(e.model)
    assert load_any.open_model(FIXTURES / name, like=like)[0].execution.dtype == "float32"


@pytest.mark.parametrize(
    ("stored", "computed"), [(ml_dtypes.bfloat16, "bfloat16"), (np.float16, "float32"), (np.float64, "float32")]
)
def test_other_precisions_are_kept_or_held_by_float32(tmp_path, stored, computed):
    """bfloat16 stays what it is, though a few tensors are float32; float16, which overflows soon, does not."""
    e, weights = load_any.open_model(stored_as(FIXTURES / "whisper", stored, tmp_path / "stored"))
    assert weights.stored == np.dtype(stored).name and e.execution.dtype == computed


@pytest.mark.parametrize(("stored", "computed"), [("Q8_0", "float32"), ("int8", "float32"), ("bfloat16", "bfloat16")])
def test_quantized_weights_are_computed_in_float32(stored, computed):
    """Their numbers are made in float32."""
    assert precision(stored) == computed


def test_a_release_of_foreign_weights_keeps_their_precision(tmp_path):
    """A model that was read from float32 is a release whose experiment computes in float32."""
    e, weights = load_any.open_model(FIXTURES / "whisper")
    release.write_weights(weights, e, tmp_path / "release", "converted")
    assert json.loads((tmp_path / "release" / release.EXPERIMENT).read_text())["execution"]["dtype"] == "float32"
    assert load_any.open_model(tmp_path / "release")[0].execution.dtype == "float32"
