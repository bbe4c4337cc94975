"""Conversion: others' weights into a release, and back, change no number."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file

from data.paths import ROOT
from models.interchange import InterchangeError
from models.parts.heads_config import Classification
from models.t5.huggingface import INTERCHANGE
from scripts import cli, convert
from tests.parity import ours
from tests.parity.live import FIXTURES
from trainers.weights import checkpoint_folders, load_any, release
from trainers.weights import source as weights
from trainers.weights.huggingface import HuggingFace


def run(monkeypatch, capsys, *args: object) -> str:
    """The command, in this process; what it prints."""
    monkeypatch.setattr("sys.argv", ["convert", *map(str, args)])
    monkeypatch.setattr(cli, "use_devices", lambda layout: None)  # the tests' devices are there already
    assert convert.main() == 0
    return capsys.readouterr().out.strip()


# A case of each family; tests/trainers/weights/test_huggingface.py writes folders of all others again.
FOLDERS = (
    "bert_masked_lm",
    "llama",
    "mixtral",
    "t5",
    "m2m100",
    "vit_classification",
    "whisper",
    "captioner",
    "wav2vec2_conformer",
)
# Parts of the names of tensors that their model never uses: a captioner's pooler, which no decoder reads; a Conformer's
# convolution of positions, and what can be computed.
UNREAD = {"captioner": ("pooler.",), "wav2vec2_conformer": ("pos_conv_embed.", "num_batches_tracked", "inv_freq")}


@pytest.mark.parametrize("name", FOLDERS)
def test_there_and_back_are_the_same_tensors(name, tmp_path, monkeypatch, capsys):
    """A Hugging Face folder becomes a sound release with the folder's model, and that the same folder again."""
    source, middle, back = FIXTURES / name, tmp_path / "release", tmp_path / "back"
    assert run(monkeypatch, capsys, "from", source, "--to", middle) == str(middle)
    release.verify(middle)
    result = release.Release(middle)
    assert result.config == HuggingFace(source).config
    assert result.experiment.train.finetune.init_from == "" and not result.experiment.data.cache
    run(monkeypatch, capsys, "to-hf", middle, "--to", back, "--max-shard-gb", "1")
    want, got = (load_file(folder / "model.safetensors") for folder in (source, back))
    unread = UNREAD.get(name, ())
    assert got.keys() == {key for key in want if not any(part in key for part in unread)}
    for key, tensor in got.items():
        assert_array_equal(tensor, want[key], err_msg=key)


def test_a_release_computes_what_the_folder_does(tmp_path, monkeypatch, capsys):
    """Logits of the release are bit for bit those of the folder that it was made from; the layout asked for is kept."""
    run(monkeypatch, capsys, "from", FIXTURES / "llama", "--to", tmp_path / "r", "--layout", "data_parallel:4x2")
    expected = load_file(FIXTURES / "llama/expected.safetensors")
    given = {k: expected[k] for k in ("tokens", "mask")}
    a, b = (ours.outputs(load_any.open_weights(path), given) for path in (FIXTURES / "llama", tmp_path / "r"))
    assert_array_equal(a["logits"], b["logits"])
    layout = json.loads((tmp_path / "r" / release.EXPERIMENT).read_text())["layout"]
    assert layout["name"] == "data_parallel" and [size for _, size in layout["mesh"]] == [4, 2]


def forms(to: Path) -> dict[Path, str]:
    """A folder of each form, with the words by which it is recognised."""
    t5 = INTERCHANGE.read_config(dict(model_type="t5", vocab_size=9, d_model=6, d_kv=2, d_ff=5, num_layers=1, num_heads=2))
    shapes = {info.name: info.shape for info in ours.describe(ours.abstract(t5))}
    arrays = weights.Arrays(t5, {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    checkpoint_folders.write_t5x(arrays, to / "checkpoint_0")
    return {
        FIXTURES / "gpt2": "a Hugging Face folder (gpt2) of safetensors",
        ROOT / "tests/fixtures/flax/mistral": "a Hugging Face folder (mistral) of Flax's msgpack",
        ROOT / "tests/fixtures/maxtext/scanned": "a MaxText checkpoint",
        to / "checkpoint_0": "a T5X checkpoint",
        release.write_weights(arrays, load_any.foreign(t5), to / "release", "ones"): "a release",
    }


def test_every_form_is_recognised(tmp_path, monkeypatch, capsys):
    """`from` says what a source is and what it would write, writes it then, and a dry run leaves nothing."""
    for source, words in forms(tmp_path).items():
        to = tmp_path / "new" / source.name
        said = run(monkeypatch, capsys, "from", source, "--to", to, "--dry-run")
        assert f"{source} is {words}, of family" in said and f"would write the release {to}" in said and not to.exists()
        run(monkeypatch, capsys, "from", source, "--to", to)
        one, other = (load_any.open_weights(path) for path in (source, to))
        assert one.config == other.config
        for name in one.shapes:
            assert_array_equal(one.read(name, ()), other.read(name, ()), err_msg=name)


def test_a_jax_checkpoint_becomes_a_folder_for_others(tmp_path, monkeypatch, capsys):
    """Whatever `from` reads, `to-t5x` and `to-maxtext` write where there is such a model, and it comes back bit for bit."""
    (source,) = (path for path, words in forms(tmp_path).items() if words == "a release")
    run(monkeypatch, capsys, "to-t5x", source, "--to", tmp_path / "checkpoint_1")
    run(monkeypatch, capsys, "to-maxtext", FIXTURES / "llama_tied", "--to", tmp_path / "0", "--unscanned")
    for a, b in ((source, tmp_path / "checkpoint_1"), (FIXTURES / "llama_tied", tmp_path / "0")):
        one, other = load_any.open_weights(a), load_any.open_weights(b)
        assert one.config == other.config
        for name in one.shapes:  # queries are scaled by the root of 10 there
            most = 1.2e-7 if name.endswith(".q") else 0
            assert_allclose(one.read(name, ()), other.read(name, ()), rtol=most, atol=0, err_msg=name)


def test_what_cannot_be_converted_is_refused(tmp_path, monkeypatch, capsys):
    """The wrong command, another family's experiment, a layout that doesn't fit, an existing folder: one line each."""
    to = tmp_path / "new"
    for args, part in {
        ("from", FIXTURES / "gpt2/nothing", "--to", to): "there is no such file or folder",
        ("from", FIXTURES, "--to", to): "holds no weights: expected a release",
        ("from", FIXTURES / "gpt2", "--to", to, "--experiment", "bert.base"): "bert.base is no experiment of family 'gpt'",
        ("from", FIXTURES / "gpt2", "--to", to, "--layout", "tensor_parallel:1x2"): "not divisible by",
        ("from", FIXTURES / "gpt2", "--to", tmp_path): "exists; choose a new folder",
        ("to-hf", FIXTURES / "gpt2", "--to", tmp_path): "exists; choose a new folder",
    }.items():
        with pytest.raises(ValueError, match=part) as caught:
            run(monkeypatch, capsys, *args)
        assert len(str(caught.value).splitlines()) == 1
    assert not to.exists()


def test_a_release_is_written_whole(tmp_path):
    """Weights that lack the head are named and not written: a release is a model, not a part of one."""
    source = HuggingFace(FIXTURES / "bert")
    headless = weights.Arrays(source.config, {k: np.asarray(source.read(k)) for k in source.shapes})
    e = load_any.foreign(dataclasses.replace(source.config, head=Classification(labels=3)))
    with pytest.raises(InterchangeError, match=r"lack what the model needs: head\.bias is missing, expected \[3\]"):
        release.write_weights(headless, e, tmp_path / "new", "some folder")
    assert not (tmp_path / "new").exists()


def test_a_release_with_numbers_that_are_none_is_refused(tmp_path):
    """A NaN that a diverged run has written, sound by its checksum, is named when its parameter is read."""
    source = HuggingFace(FIXTURES / "gpt2")
    arrays = {name: np.array(source.read(name)) for name in source.shapes}
    arrays["final_norm.scale"][5] = np.nan
    folder = release.write_weights(
        weights.Arrays(source.config, arrays), load_any.foreign(source.config), tmp_path / "r", "some run"
    )
    result = release.Release(folder)
    assert_array_equal(result.read("embedding.table"), arrays["embedding.table"])
    with pytest.raises(InterchangeError, match=r"r/model\.safetensors: final_norm\.scale holds NaN or infinite numbers$"):
        result.read("final_norm.scale")


def test_released_weights_are_named_as_elsewhere(tmp_path, monkeypatch, capsys):
    """`to-hf` takes the name of weights that were fetched, as commands with --checkpoint do."""
    folder = tmp_path / "data" / "weights" / "whisper_base"
    shutil.copytree(FIXTURES / "whisper", folder)
    (folder / "package.json").write_text("{}")
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, capsys, "to-hf", "whisper_base", "--to", tmp_path / "hf")
    want, result = (load_file(at / "model.safetensors") for at in (folder, tmp_path / "hf"))
    assert want.keys() == result.keys()
