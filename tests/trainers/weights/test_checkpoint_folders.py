"""Checkpoints of T5X and MaxText. MaxText itself made tests/fixtures/maxtext, with tests/parity/maxtext_model.py; T5X's are
written here in its form, by flax.serialization and TensorStore, whose code is what T5X calls."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
import yaml
from flax import serialization
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file

from data.paths import ROOT
from models.interchange import InterchangeError
from models.parts.nested import changed
from models.t5.huggingface import INTERCHANGE as HUGGING_FACE
from tests.parity import ours
from tests.parity.live import FIXTURES as PARITY
from trainers.weights import checkpoint_folders, load_any, tensorstores
from trainers.weights.source import Arrays, Weights

FIXTURES = ROOT / "tests/fixtures/maxtext"
SIZES = dict(model_type="t5", vocab_size=40, d_model=12, d_kv=4, d_ff=10, num_layers=2, num_heads=3)
T5_1_0 = HUGGING_FACE.read_config(SIZES | dict(relative_attention_num_buckets=6))
T5_1_1 = HUGGING_FACE.read_config(SIZES | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False))


def same(a: Weights, b: Weights) -> None:
    """Asserts that two models are equal bit for bit."""
    assert a.shapes == b.shapes
    for name in a.shapes:
        assert_array_equal(a.read(name, ()), b.read(name, ()), err_msg=name)


# --- T5X ---


@pytest.fixture(scope="module", params=[T5_1_0, T5_1_1], ids=["1.0", "1.1"])
def t5(request) -> Arrays:
    shapes = {info.name: info.shape for info in ours.describe(ours.abstract(request.param))}
    rng = np.random.default_rng(0)
    return Arrays(request.param, {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()})


def test_a_t5x_checkpoint_has_its_names_and_shapes(t5, tmp_path):
    """Arrays are called as T5X's own model calls them, and are two-dimensional with heads joined; the tree names each of them."""
    folder = checkpoint_folders.write_t5x(t5, tmp_path / "checkpoint_0")
    tree = serialization.msgpack_restore((folder / "checkpoint").read_bytes())
    assert tree["version"] == 3 and tree["optimizer"]["state"]["step"] == 0
    spec = tree["optimizer"]["target"]["decoder"]["layers_1"]["encoder_decoder_attention"]["query"]["kernel"]
    assert spec["kvstore"] == {"driver": "file", "path": "target.decoder.layers_1.encoder_decoder_attention.query.kernel/"}
    assert spec["metadata"]["shape"] == [12, 12]
    stored = {path.name: json.loads((path / ".zarray").read_text())["shape"] for path in folder.iterdir() if path.is_dir()}
    assert stored["target.encoder.relpos_bias.rel_embedding"] == [3, t5.config.positions.buckets]
    assert stored["target.token_embedder.embedding"] == [40, 12]
    assert stored["target.decoder.decoder_norm.scale"] == stored["target.encoder.layers_0.pre_attention_layer_norm.scale"] == [12]
    assert ("target.decoder.logits_dense.kernel" in stored) == (not t5.config.tied)
    assert ("target.encoder.layers_0.mlp.wi_0.kernel" in stored) == t5.config.feed_forward.gated
    assert_array_equal(
        ts.open({"driver": "zarr", "kvstore": f"file://{folder}/target.encoder.layers_1.attention.out.kernel/"}).result()[:],
        t5.read("encoder.dense.attention.o", ())[1].reshape(12, 12),
    )


def test_t5x_there_and_back_is_the_same(t5, tmp_path):
    """A checkpoint that was written is read with the same configuration and the same numbers, whole and in pieces."""
    result = load_any.open_weights(checkpoint_folders.write_t5x(t5, tmp_path / "checkpoint_0"))
    assert result.config == t5.config
    same(t5, result)
    index = (slice(1, 2), slice(3, 7))
    assert_array_equal(result.read("encoder.dense.ffn.wo", index), t5.read("encoder.dense.ffn.wo", index))


def test_small_arrays_of_t5x_are_in_the_tree(t5, tmp_path):
    """Arrays that were not partitioned are in the msgpack file itself, and stores in bfloat16 and in chunks are read."""
    folder = checkpoint_folders.write_t5x(t5, tmp_path / "checkpoint_0")
    tree = serialization.msgpack_restore((folder / "checkpoint").read_bytes())
    name = "target.encoder.encoder_norm.scale"
    tree["optimizer"]["target"]["encoder"]["encoder_norm"]["scale"] = t5.read("encoder_norm.scale", ())
    shutil.rmtree(folder / name)
    table = t5.read("embedding.table", ()).astype(tensorstores.DTYPES["BF16"])
    shutil.rmtree(folder / "target.token_embedder.embedding")
    spec = {"driver": "zarr", "kvstore": f"file://{folder}/target.token_embedder.embedding/", "metadata": {"chunks": [20, 6]}}
    ts.open(spec, create=True, dtype=ts.bfloat16, shape=table.shape).result().write(table).result()
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
    result = load_any.open_weights(folder)
    assert_array_equal(result.read("encoder_norm.scale", ()), t5.read("encoder_norm.scale", ()))
    assert_array_equal(result.read("embedding.table", ()), table)


@pytest.mark.parametrize(
    ("break_", "message"),
    [
        (lambda tree: tree.update(version=2), "of version 2; only 3 is read"),
        (lambda tree: tree.pop("optimizer"), "no optimizer.target"),
        (lambda tree: leaf(tree).update(kvstore={"driver": "file", "path": "../elsewhere/"}), "names none of this folder"),
        (lambda tree: leaf(tree).update(kvstore={"driver": "http", "path": "/etc/"}), "names none of this folder"),
        (lambda tree: leaf(tree).update(kvstore={"driver": "file", "path": "absent/"}), "is damaged: "),
        (lambda tree: tree["optimizer"]["target"]["encoder"].pop("relpos_bias"), r"without scanned layers: encoder.relpos_bias"),
        (
            lambda tree: tree["optimizer"]["target"]["encoder"]["layers_0"].pop("mlp"),
            r"encoder.layers_0.mlp.wi.kernel is missing",
        ),
    ],
)
def test_a_t5x_checkpoint_that_is_broken_is_one_line(break_, message, tmp_path):
    """The line names the fault; a name that leads out of the folder is not followed."""
    shapes = {info.name: info.shape for info in ours.describe(ours.abstract(T5_1_0))}
    whole = Arrays(T5_1_0, {name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    folder = checkpoint_folders.write_t5x(whole, tmp_path / "checkpoint_0")
    tree = serialization.msgpack_restore((folder / "checkpoint").read_bytes())
    break_(tree)
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
    with pytest.raises(InterchangeError, match=message) as caught:
        load_any.open_weights(folder)
    assert len(str(caught.value).splitlines()) == 1


def leaf(tree: dict) -> dict:
    return tree["optimizer"]["target"]["token_embedder"]["embedding"]


def test_zarr_that_promises_more_than_it_holds_is_refused(t5, tmp_path):
    """An array of more bytes than the folder's files can hold, and a chunk larger than its array, are refused unread."""
    folder = checkpoint_folders.write_t5x(t5, tmp_path / "checkpoint_0")
    file = folder / "target.token_embedder.embedding/.zarray"
    sound = json.loads(file.read_text())
    file.write_text(json.dumps(sound | {"shape": [10**9, 12]}))
    with pytest.raises(InterchangeError, match=r"bytes of arrays in .* bytes of files, more than"):
        load_any.open_weights(folder)
    file.write_text(json.dumps(sound | {"chunks": [10**9, 12]}))
    with pytest.raises(InterchangeError, match="is damaged: a chunk of"):
        load_any.open_weights(folder)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(InterchangeError):
        load_any.open_weights(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions.max_distance": 64}, "relative_attention_max_distance=128, the nearest to the model's 64"),
        ({"feed_forward.activation": "silu"}, "feed_forward_proj='relu', the nearest to the model's 'silu'"),
        ({"norm.eps": 1e-5}, "layer_norm_epsilon=1e-06, the nearest to the model's 1e-05"),
    ],
)
def test_what_t5x_has_no_form_for_is_not_written(change, message, tmp_path):
    """A model that T5X's own would compute otherwise is refused, and nothing is left."""
    config = changed(T5_1_0, change)
    with pytest.raises(InterchangeError, match=message):
        checkpoint_folders.write_t5x(Arrays(config, {}), tmp_path / "checkpoint_0")
    with pytest.raises(InterchangeError, match="models of family 'gpt' have no form of T5X"):
        checkpoint_folders.write_t5x(load_any.open_weights(PARITY / "llama"), tmp_path / "checkpoint_0")
    assert not any(tmp_path.iterdir())


# --- MaxText ---


@pytest.mark.parametrize("name", ["scanned", pytest.param("unscanned", marks=pytest.mark.slow)])
def test_outputs_are_those_of_maxtext(name):
    """Logits of MaxText's own model, of LLaMA with scanned layers and Mistral with Llama 3.1's positions, differ by rounding."""
    expected = load_file(FIXTURES / name / "expected.safetensors")
    got = ours.outputs(load_any.open_weights(FIXTURES / name), {key: expected[key] for key in ("tokens", "mask")})
    assert_allclose(got["logits"], expected["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["scanned", "unscanned"])
@pytest.mark.parametrize("scanned", [True, False])
def test_maxtext_there_and_back_is_the_same(name, scanned, tmp_path):
    """A checkpoint of either form, read and written in either, has the same configuration, and Orbax reads what was written: the
    arrays of MaxText's own checkpoint, bit for bit where it is of the same form."""
    weights = load_any.open_weights(FIXTURES / name)
    folder = checkpoint_folders.write_maxtext(weights, tmp_path / "0", scanned=scanned)
    result = load_any.open_weights(folder)
    assert result.config == weights.config
    for key in weights.shapes:  # queries are multiplied by the root of 8 when they are read, and divided when they are written
        most = 1.2e-7 if key.endswith(".q") else 0
        assert_allclose(result.read(key, ()), weights.read(key, ()), rtol=most, atol=0, err_msg=key)
    if scanned == (name == "scanned"):
        written, own = (ocp.PyTreeCheckpointer().restore(at / "items")["params"]["params"] for at in (folder, FIXTURES / name))
        flat, wanted = (dict(ocp.tree.to_flat_dict(tree, sep=".")) for tree in (written, own))
        assert flat.keys() == wanted.keys()
        for key, array in wanted.items():
            assert_allclose(flat[key], array, rtol=1.2e-7 if ".query." in key else 0, atol=0, err_msg=key)


def test_heads_of_a_power_of_four_are_exact(tmp_path):
    """With heads of 16 dimensions nothing is rounded: a LLaMA becomes a MaxText checkpoint and comes back bit for bit."""
    weights = load_any.open_weights(FIXTURES / "scanned")
    config = changed(weights.config, {"attention.head_dim": 16})
    arrays = Arrays(config, {k: np.asarray(v) for k, v in ours.fresh(config, 0).items()})
    flat = Arrays(config, {name: np.asarray(arrays.read(name)) for name in arrays.shapes})
    same(flat, load_any.open_weights(checkpoint_folders.write_maxtext(flat, tmp_path / "0")))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoder_block": "gemma2"}, "config.yml: decoder_block='gemma2': only llama2 and mistral are read"),
        ({"use_qk_norm": True}, "config.yml: use_qk_norm=true is not supported, only false"),
        ({"mlp_activations": ["gelu", "linear"]}, "mlp_activations="),
        ({"rope_type": "yarn"}, 'rope_type="yarn" is not supported, only "default" or "llama3.1"'),
        ({"num_experts": 8}, "num_experts=8 is not supported, only 1"),
        ({"rope_max_timescale": None}, "config.yml: rope_max_timescale"),
        ({"param_scan_axis": 9}, "param_scan_axis=9"),
    ],
)
def test_another_model_of_maxtext_is_one_line(settings, message, tmp_path):
    """A setting that would change what is computed is named, with what is read."""
    folder = shutil.copytree(FIXTURES / "scanned", tmp_path / "0")
    own = yaml.safe_load((folder / "config.yml").read_text())
    (folder / "config.yml").write_text(yaml.safe_dump(own | settings))
    with pytest.raises(InterchangeError, match=message) as caught:
        load_any.open_weights(folder)
    assert len(str(caught.value).splitlines()) == 1


def test_a_checkpoint_without_settings_or_arrays_is_one_line(tmp_path):
    """The config.yml may lie in the run's folder; without one, with a name that leaves the folder, or a lost file: one line."""
    run = tmp_path / "run"
    shutil.copytree(FIXTURES / "scanned", run / "checkpoints/0")
    (run / "checkpoints/0/config.yml").rename(run / "config.yml")
    for folder in (run / "checkpoints/0", run / "checkpoints/0/items"):
        assert load_any.open_weights(folder).shapes["embedding.table"] == (48, 16)
    metadata = run / "checkpoints/0/items/_METADATA"
    sound = metadata.read_text()
    for broken, message in (
        (sound.replace("'decoder_norm'", "'/../decoder_norm'"), "is no name of an array"),
        (sound.replace("'decoder_norm'", "'another_norm'"), "is damaged"),
        (sound.replace("tree_metadata", "other"), "names no arrays"),
        (sound.replace("('params', 'params', 'decoder', 'decoder_norm', 'scale')", "__import__('os')"), "is damaged"),
    ):
        metadata.write_text(broken)
        with pytest.raises(InterchangeError, match=message) as caught:
            load_any.open_weights(run / "checkpoints/0")
        assert len(str(caught.value).splitlines()) == 1
    metadata.write_text(sound)
    for file in (run / "checkpoints/0/items").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(InterchangeError, match="is damaged"):
        weights = load_any.open_weights(run / "checkpoints/0")
        [weights.read(name, ()) for name in weights.shapes]
    (run / "config.yml").unlink()
    with pytest.raises(InterchangeError, match=r"no config\.yml is there or up to three folders above"):
        load_any.open_weights(run / "checkpoints/0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feed_forward.bias": True}, "MaxText's LLaMA has no biases"),
        ({"positions.base": 10.5}, "positions.base=10.5: whole in MaxText; nearest is 10"),
        ({"norm.order": "reordered"}, "norm.order"),
    ],
)
def test_what_maxtext_has_no_form_for_is_not_written(change, message, tmp_path):
    """A model that MaxText's would compute otherwise is refused, and nothing is left."""
    config = changed(load_any.open_weights(FIXTURES / "scanned").config, change)
    with pytest.raises(InterchangeError, match=message):
        checkpoint_folders.write_maxtext(Arrays(config, {}), tmp_path / "0")
    assert not any(Path(tmp_path).iterdir())
