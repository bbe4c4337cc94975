"""GGUF files: the numbers that llama.cpp's converter put in, in our order; SmolLM2 knows the capital of France."""

import dataclasses
import struct
from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tokenizers.pre_tokenizers import ByteLevel

from data import gguf_reader, untrusted
from data.vocabularies.chat_templates import ChatTemplate
from data.vocabularies.tokenizers import Tokenizer, write_bpe
from models.gpt.config import GptConfig
from models.interchange import InterchangeError
from models.parts.attention.config import GroupedQuery, Rotary
from models.parts.nested import changed
from models.parts.transformer_config import Dense, NormConfig
from tests.fuzz import writers
from tests.helpers.archives import released_weights
from tests.parity import ours
from trainers.weights import load_any
from trainers.weights.gguf import Gguf

CONFIG = GptConfig(
    vocab=96,
    layers=2,
    model_dim=32,
    attention=GroupedQuery(heads=4, head_dim=8, kv_heads=2),
    positions=Rotary(base=500.0),
    feed_forward=Dense(hidden_dim=64, activation="silu", gated=True),
    norm=NormConfig(eps=1e-5),
    dialect="llama",
)


def permuted(w: np.ndarray, heads: int) -> np.ndarray:
    """Does what llama.cpp's converter does to the rows of queries and keys, so that it can turn neighbours."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def write(
    path: Path,
    c: GptConfig,
    params: dict,
    kind: str = "F32",
    *,
    architecture: str = "llama",
    skip: str = "",
    integers: str = "",
    **settings: Any,
) -> Path:
    """A GGUF file as the converter would write it: matrices quantized, norms not."""
    tensors = {}
    tensors["token_embd.weight"] = params["embedding.table"]
    tensors["output_norm.weight"] = params["final_norm.scale"]
    if not c.output.tied:
        tensors["output.weight"] = params["softmax.weight"].T
    for i in range(c.layers):
        layer = {k.removeprefix("decoder."): v[i] for k, v in params.items() if k.startswith("decoder.")}
        m = c.model_dim
        tensors[f"blk.{i}.attn_norm.weight"] = layer["attention_norm.scale"]
        tensors[f"blk.{i}.attn_q.weight"] = permuted(layer["attention.q"].reshape(m, -1).T, c.attention.heads)
        tensors[f"blk.{i}.attn_k.weight"] = permuted(layer["attention.k"].reshape(m, -1).T, c.attention.groups)
        tensors[f"blk.{i}.attn_v.weight"] = layer["attention.v"].reshape(m, -1).T
        tensors[f"blk.{i}.attn_output.weight"] = layer["attention.o"].reshape(-1, m).T
        tensors[f"blk.{i}.ffn_norm.weight"] = layer["ffn_norm.scale"]
        for theirs, mine in {"gate": "wg", "up": "wi", "down": "wo"}.items():
            tensors[f"blk.{i}.ffn_{theirs}.weight"] = layer[f"ffn.{mine}"].T
        if isinstance(c.attention, GroupedQuery) and c.attention.biases:
            tensors[f"blk.{i}.attn_q.bias"] = permuted(layer["attention.q_bias"].reshape(-1), c.attention.heads)
            tensors[f"blk.{i}.attn_k.bias"] = permuted(layer["attention.k_bias"].reshape(-1), c.attention.groups)
            tensors[f"blk.{i}.attn_v.bias"] = layer["attention.v_bias"].reshape(-1)
            tensors[f"blk.{i}.attn_output.bias"] = layer["attention.o_bias"]
    arrays = {name: np.asarray(x, np.int8 if name == integers else np.float32) for name, x in tensors.items()}
    arrays.pop(skip, None)
    return writers.gguf(path, architecture, {"context_length": 2048} | writers.gguf_settings(c) | settings, arrays.items(), kind)


@pytest.mark.parametrize("variant", [{}, {"output.tied": False, "attention.kv_heads": 0}, {"attention.biases": "qkvo"}], ids=str)
def test_unquantized_files_hold_our_parameters(variant, tmp_path):
    """Config and every parameter come back bit for bit, rows of queries and keys in our order again; by the layer too."""
    config = changed(CONFIG, variant)
    params = ours.fresh(config, 0)
    weights = Gguf(write(tmp_path / "m.gguf", config, params))
    assert weights.config == config
    want = params
    assert weights.shapes == {name: x.shape for name, x in want.items()}
    for name, x in want.items():
        assert_array_equal(weights.read(name), x)
    piece = (slice(1, 2), slice(3, 9), slice(1, 3))
    assert_array_equal(weights.read("decoder.attention.q", piece), want["decoder.attention.q"][piece])


@pytest.mark.parametrize(("kind", "error"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 1e-2), ("Q4_1", 2e-1)])
def test_quantized_files_hold_them_nearly(kind, error, tmp_path):
    """To what so many bits can tell; norms are never quantized."""
    params = ours.fresh(CONFIG, 0)
    weights = Gguf(write(tmp_path / "m.gguf", CONFIG, params, kind))
    for name, x in params.items():
        assert_allclose(weights.read(name), x, atol=0 if "norm" in name else error, err_msg=name)


@pytest.mark.parametrize(
    ("metadata", "parts"),
    [
        (dict(architecture="falcon"), ["'falcon'", "choose from", "llama"]),
        ({"rope.scaling.type": "yarn"}, ["llama.rope.scaling.factor is missing"]),
        (dict(skip="blk.1.ffn_up.weight"), ["blk.1.ffn_up.weight is missing, expected [64, 32]"]),
        (dict(skip="token_embd.weight"), ["token_embd.weight is missing"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_other_models_are_refused_by_name(metadata, parts, tmp_path):
    with pytest.raises(InterchangeError) as caught:
        Gguf(write(tmp_path / "m.gguf", CONFIG, ours.fresh(CONFIG, 0), **metadata))
    assert all(part in str(caught.value) for part in parts), caught.value


@pytest.mark.parametrize(
    ("key", "value"),
    [("general.architecture", v) for v in (["llama"], [3, 4], 7, 0.5, True)]
    + [("split.count", v) for v in ("2", ["2"], [2], 2.5)],
    ids=str,
)
def test_a_description_of_another_type_is_refused(key, value, tmp_path):
    """An architecture that is no text and a number of parts that is no number are errors that name key and value."""
    add = {list: "add_array", int: "add_uint32", float: "add_float32", str: "add_string", bool: "add_bool"}
    file = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    if key == "general.architecture":
        file.kv_data[0].clear()
    getattr(file, add[type(value)])(key, value)
    for write_part in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file, file.close):
        write_part()
    with pytest.raises(InterchangeError, match=rf"m\.gguf: {key} is .*, expected a (text|whole number)$"):
        Gguf(tmp_path / "m.gguf")


def test_numbers_that_cannot_be_read_are_named(tmp_path):
    """A tensor of a type that has no way to float32 is refused by file, name and type, with the nearest of as many bits."""
    name = "blk.1.attn_norm.weight"
    file = write(tmp_path / "m.gguf", CONFIG, ours.fresh(CONFIG, 0), integers=name)
    with pytest.raises(
        InterchangeError, match=rf"m\.gguf: {name} is I8, which cannot be read; the nearest type that can is Q8_0$"
    ):
        Gguf(file).read("decoder.attention_norm.scale")


def test_numbers_that_are_none_are_refused(tmp_path):
    """A NaN is reported with the file and the tensor when its parameter is read, quantized or not."""
    params = ours.fresh(CONFIG, 0)
    params["embedding.table"] = np.array(params["embedding.table"])
    params["embedding.table"][3, 4] = np.nan
    for kind in ("F32", "F16"):
        weights = Gguf(write(tmp_path / "m.gguf", CONFIG, params, kind))
        with pytest.raises(InterchangeError, match=r"m\.gguf: token_embd\.weight holds NaN or infinite numbers$"):
            weights.read("embedding.table")
        assert weights.read("embedding.table", (slice(0, 3),)).shape == (3, 32)


def array(kind: gguf.GGUFValueType, count: int, items: bytes = b"") -> bytes:
    """A file whose one key is an array."""
    return struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", gguf.GGUFValueType.ARRAY, kind, count) + items


def test_a_damaged_file_is_refused_in_one_line(tmp_path):
    """Cut short, another file, an array that would be counted for hours, or nested without end, or more than any model has:
    texts of no length, each of which is an object, bytes of texts, settings, tensors."""
    path = write(tmp_path / "m.gguf", CONFIG, ours.fresh(CONFIG, 0))
    content = path.read_bytes()
    nested = struct.pack("<IQ", gguf.GGUFValueType.ARRAY, 1) * 5000
    bad = [b"", b"nothing of the kind", content[:100], content[: len(content) // 2]]
    bad += [array(gguf.GGUFValueType.UINT8, 2**62), array(gguf.GGUFValueType.ARRAY, 1, nested)]
    for count, text in ((2**62, b""), (1, struct.pack("<Q", 2**64 - 1)), (2, struct.pack("<Q1sI", 1, b"a", 0))):
        bad.append(array(gguf.GGUFValueType.STRING, count, text))
    bad.append(array(gguf.GGUFValueType.STRING, untrusted.ITEMS + 1, bytes(8 * untrusted.ITEMS + 8)))
    bad.append(array(gguf.GGUFValueType.FLOAT64, untrusted.ITEMS + 1, bytes(8 * untrusted.ITEMS + 8)))
    long = struct.pack("<Q", untrusted.TEXT + 1) + bytes(untrusted.TEXT + 1)
    bad += [array(gguf.GGUFValueType.STRING, 1, long), struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + long]
    bad += [struct.pack("<4sIQQ", b"GGUF", 3, *counts) for counts in ((0, 2**62), (untrusted.FIELDS + 1, 0))]
    for each in bad:
        path.write_bytes(each)
        with pytest.raises(InterchangeError, match=r"m\.gguf is damaged: ") as caught:
            load_any.open_weights(path)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("order", gguf.GGUFEndian)
def test_a_description_is_what_the_library_reads(order, tmp_path):
    """Arrays are read together and strings without arrays of their own; keys, values and their types are the library's."""
    file = gguf.GGUFWriter(path := tmp_path / "m.gguf", "llama", endianess=order)
    for name, values in {"texts": ["a", "", "é 🙂"], "whole": [3, -1], "real": [0.5], "flags": [True, False]}.items():
        file.add_array(name, values)
    file.add_string("text", "b")
    file.add_uint32("whole_alone", 2)
    file.add_tensor("x", np.arange(4, dtype=np.float32))
    for write_part in (file.write_header_to_file, file.write_kv_data_to_file, file.write_tensors_to_file):
        write_part()
    file.close()
    weights, want = gguf_reader.opened(path, InterchangeError), gguf.GGUFReader(path)
    assert list(weights.fields) == list(want.fields)
    for name, field in want.fields.items():
        assert gguf_reader.value(weights, name, InterchangeError) == field.contents(), name
        assert weights.fields[name].types == field.types, name
    assert [(t.name, t.data_offset) for t in weights.tensors] == [(t.name, t.data_offset) for t in want.tensors]


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_1"])
def test_numbers_are_the_librarys_however_many_are_made_at_once(kind, tmp_path, monkeypatch):
    """Parts of a tensor's blocks, the last of them shorter, give the numbers of the whole tensor."""
    path = write(tmp_path / "m.gguf", CONFIG, ours.fresh(CONFIG, 0), kind)
    table = next(t for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight")
    monkeypatch.setattr("trainers.weights.gguf._AT_ONCE", 5 * 32)  # of 96
    assert_array_equal(Gguf(path).read("embedding.table"), gguf.dequantize(table.data, table.tensor_type))


@pytest.mark.parametrize(
    ("kind", "stored", "computed"),
    [("F32", "float32", "float32"), ("F16", "float16", "float32"), ("BF16", "bfloat16", "bfloat16"), ("Q8_0", "Q8_0", "float32")],
)
def test_a_file_is_computed_as_most_of_it_is_stored(kind, stored, computed, tmp_path):
    """Norms are float32 in every file; quantized numbers are made in float32, and so are those of float16."""
    e, weights = load_any.open_model(write(tmp_path / "m.gguf", CONFIG, ours.fresh(CONFIG, 0), kind))
    assert (weights.stored, e.execution.dtype) == (stored, computed)


@pytest.mark.slow
@pytest.mark.network
def test_smollm2_knows_the_capital_of_france():
    """Released 4-bit weights, continued greedily: the next word is Paris."""
    source = load_any.open_weights(released_weights("smollm2_135m"))
    tokenizer = Tokenizer(source.vocabulary or "")
    ids = tokenizer.encode("The capital of France is")
    m = ours.model(source)
    step = jax.jit(lambda m, batch, at: jnp.argmax(m(batch)[0, at]))
    for _ in range(3):
        row = np.pad(np.array([ids], np.int32), ((0, 0), (0, 12 - len(ids))))
        used = (np.arange(12)[None] < len(ids)).astype(np.int32)
        ids.append(int(step(m, ours.batch({"tokens": row, "mask": used}), len(ids) - 1)))
    assert "Paris" in tokenizer.decode(ids)


def test_a_file_alone_brings_its_vocabulary(tmp_path, monkeypatch):
    """Without a tokenizer.json beside it, one is made from the file; what ends a text is what the file says."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    pieces = ["<|endoftext|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "ab", "12"]
    vocabulary = writers.gguf_vocabulary(pieces, ["a b", "1 2"], types=[3, 3] + [1] * 258, end=1)
    config = dataclasses.replace(CONFIG, vocab=len(pieces))
    params = ours.fresh(config, 0)
    folder = Gguf(write(tmp_path / "m.gguf", config, params, **vocabulary)).vocabulary
    assert folder and folder.parent == tmp_path / "data/vocabularies"
    tokenizer = Tokenizer(folder)
    assert tokenizer.size == len(pieces)
    assert tokenizer.encode("ab12") == [pieces.index(piece) for piece in ("ab", "1", "2")]  # digits stand alone
    assert '"eos_token": "<|im_end|>"' in (folder / "tokenizer_config.json").read_text()
    assert tokenizer.ends == (1,) and tokenizer.whole("ab") == tokenizer.encode("ab")
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "other"))
    begun = vocabulary | {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.add_bos_token": True}
    folder = Gguf(write(tmp_path / "begun.gguf", config, params, **begun)).vocabulary
    assert folder and Tokenizer(folder).whole("ab") == [0, *tokenizer.encode("ab")]
    other = write(tmp_path / "o.gguf", config, params, **vocabulary | {"tokenizer.ggml.pre": "llama-bpe"})
    with pytest.raises(InterchangeError, match="'llama-bpe'; only 'smollm' is known"):
        _ = Gguf(other).vocabulary


def test_a_tokenizer_beside_a_file_ends_texts_as_the_file_says(tmp_path, monkeypatch):
    """Where nothing beside it names special tokens, they are the file's; a folder that names its own is taken as it is."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    pieces = ["<|end_of_text|>", "<|begin_of_text|>", *sorted(ByteLevel.alphabet())]
    keys = writers.gguf_vocabulary(pieces, [], types=[3, 3] + [1] * 256, end=0, kind="llama-bpe")
    keys |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.add_bos_token": True}
    config = dataclasses.replace(CONFIG, vocab=len(pieces))
    folder = tmp_path / "model"
    folder.mkdir()
    path = write(folder / "m.gguf", config, ours.fresh(config, 0), **keys)
    write_bpe({piece: i for i, piece in enumerate(pieces)}, [], pieces[:2], folder / "tokenizer.json")
    completed = Gguf(path).vocabulary
    assert completed and completed.parent == tmp_path / "data/vocabularies"
    tokenizer = Tokenizer(completed)
    assert tokenizer.ends == (0,) and tokenizer.whole("a") == [1, *tokenizer.encode("a")]
    assert Gguf(path).vocabulary == completed
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|begin_of_text|>"}')
    assert Gguf(path).vocabulary == folder and Tokenizer(folder).ends == (1,)


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer.chat_template": "another"},
        {"tokenizer.ggml.bos_token_id": 0},
        {"tokenizer.ggml.padding_token_id": 0},
        {"tokenizer.ggml.unknown_token_id": 0},
        {"tokenizer.ggml.eos_token_id": 0},
        {"tokenizer.ggml.token_type": [3] * 3 + [1] * 256},
        {"tokenizer.ggml.scores": [0.0] * 258 + [1.0]},
        {"tokenizer.ggml.add_bos_token": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_vocabulary_has_a_folder_of_its_own(change, tmp_path, monkeypatch):
    """Files whose vocabularies differ in anything do not share what is made of them; those with the same one do."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    pieces = ["<|endoftext|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "ab"]
    config = dataclasses.replace(CONFIG, vocab=len(pieces))
    params = ours.fresh(config, 0)
    plain: dict[str, Any] = writers.gguf_vocabulary(pieces, ["a b"], types=[3, 3] + [1] * 257, end=1)
    plain["tokenizer.chat_template"] = "{{ messages }}"
    folders = [
        Gguf(write(tmp_path / name, config, params, **vocabulary)).vocabulary
        for name, vocabulary in {"a.gguf": plain, "b.gguf": plain | change, "c.gguf": plain}.items()
    ]
    assert folders[0] == folders[2] != folders[1]
    if folders[1] and "tokenizer.chat_template" in change:
        assert ChatTemplate(folders[1])([]) == "another"
    with pytest.raises(InterchangeError, match="add_bos_token is set, and there is no bos_token_id"):
        plain["tokenizer.ggml.add_bos_token"] = True
        _ = Gguf(write(tmp_path / "d.gguf", config, params, **plain)).vocabulary
