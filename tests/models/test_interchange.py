"""Mappings: reading ours out of theirs and writing it back changes nothing, and touches no more than it must."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from models.bert.config import BertConfig
from models.bert.huggingface import INTERCHANGE as BERT_FILES
from models.gpt.config import GptConfig
from models.gpt.huggingface import INTERCHANGE as GPT_FILES
from models.interchange import Entry, Interchange, InterchangeError, Part, tensors
from models.interchange.tensors import matrix, vector
from models.parts.attention.config import GroupedQuery, Learned, RelativeBuckets, Rotary
from models.parts.heads_config import Classification, MaskedLm
from models.parts.nested import changed
from models.parts.transformer_config import Dense

M, N, D, L = 6, 3, 2, 4  # model, heads, head, layers

ENTRIES = [
    matrix("h.{layer}.qkv", ("q", (M, N, D)), ("k", (M, 1, D)), ("v", (M, 1, D)), layers=L, transposed=False),
    matrix("h.{layer}.out", ("o", (N, D, M)), inputs=2, layers=L),
    vector("h.{layer}.bias", ("q_bias", (N, D)), ("k_bias", (1, D)), layers=L),
    matrix("head", ("head", (M, 5))),
]


def theirs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape) for name, shape in tensors.their_shapes(ENTRIES).items()}


def test_writing_undoes_reading():
    """Fused, transposed, stacked: what is read out of their tensors makes the same tensors again, name by name."""
    source = theirs()
    read = tensors.reader(ENTRIES, source.__getitem__, "file")
    again = dict(tensors.written(ENTRIES, read))
    assert again.keys() == source.keys()
    for name, tensor in source.items():
        assert_array_equal(again[name], tensor)


def test_projections_are_the_same_function():
    """x @ W of ours is x @ their matrix [in, out], or x @ its transpose where they keep [out, in]; heads are blocks."""
    source, x = theirs(), np.arange(M) + 1.0
    read = tensors.reader(ENTRIES, source.__getitem__, "file")
    fused = x @ source["h.2.qkv"]
    assert_allclose(np.tensordot(x, read("q", ())[2], 1).ravel(), fused[: N * D])
    assert_allclose(np.tensordot(x, read("v", ())[2], 1).ravel(), fused[-D:])
    out = np.tensordot(x.reshape(N, D), read("o", ())[1], 2)
    assert_allclose(out, source["h.1.out"] @ x)


def test_only_the_layers_asked_for_are_read():
    """A slice of the stack fetches those layers' tensors, one each, and nothing else."""
    source, fetched = theirs(), []
    read = tensors.reader(ENTRIES, lambda name: fetched.append(name) or source[name], "file")
    piece = read("q", (slice(1, 3), slice(None), slice(2, 3)))
    assert fetched == ["h.1.qkv", "h.2.qkv"]
    assert_array_equal(piece, tensors.reader(ENTRIES, source.__getitem__, "file")("q", ())[1:3, :, 2:3])


@pytest.mark.parametrize(
    ("kinds", "result"),
    [
        ((ml_dtypes.bfloat16, np.float32), np.float32),
        ((np.float16, ml_dtypes.bfloat16), np.float32),
        ((np.float32, np.float16), np.float32),
        ((ml_dtypes.bfloat16, ml_dtypes.bfloat16), ml_dtypes.bfloat16),
    ],
)
def test_layers_of_several_precisions_lose_nothing(kinds, result):
    """Each layer has the numbers that it is stored with, wherever the first layer's precision has no room for them."""
    entry = Entry("h.{layer}", (Part("w", (3,)),), layers=2)
    layers = {f"h.{i}": np.array([1.0009765625, 3.1415927, 60_000], np.float64).astype(k) for i, k in enumerate(kinds)}
    array = tensors.reader([entry], layers.__getitem__, "file")("w", ())
    assert array.dtype == result
    for i, stored in enumerate(layers.values()):
        assert_array_equal(array[i].astype(np.float64), stored.astype(np.float64))


def test_splitting_copies_nothing():
    """Ours are views of their tensor: of a mapped file only what is used of them is ever read."""
    entry = ENTRIES[0]
    tensor = np.zeros(entry.shape)
    assert all(np.shares_memory(tensor, part) for part in entry.split(tensor))


def test_pairs_become_halves():
    """Rows 0 1 | 2 3 of a head whose neighbours belong together are 0 2 | 1 3 for us, and go back; heads stay apart."""
    entry = Entry("q", (Part("q", (1, 2, 4), 1),), transposed=True, pairs=2)
    rows = np.arange(8.0)[:, None]
    (ours,) = entry.split(rows)
    assert ours[0].tolist() == [[0, 2, 1, 3], [4, 6, 5, 7]]
    assert_array_equal(entry.join([ours]), rows)


def test_numbers_that_are_none_are_refused_where_they_are_read():
    """NaN or infinity in a piece raises InterchangeError with the file and their tensor's name; other pieces are read."""
    source = theirs()
    source["h.2.qkv"][0, 0] = np.nan  # of q, layer 2
    source["head"][1] = np.inf
    read = tensors.reader(ENTRIES, source.__getitem__, "some/folder")
    with pytest.raises(InterchangeError, match=r"^some/folder: h\.2\.qkv holds NaN or infinite numbers$"):
        read("q", (slice(2, 4),))
    with pytest.raises(InterchangeError, match=r"^some/folder: head holds NaN or infinite numbers$"):
        read("head", ())
    assert np.isfinite(read("q", (slice(0, 2),))).all() and np.isfinite(read("k", ())).all()
    assert read("head", (slice(None), slice(2, 5))).shape == (M, 3)


@pytest.mark.parametrize("at", [0, 6, 7])
def test_tensors_are_compared_a_piece_at_a_time(at, monkeypatch):
    """Two rows of four at a time, in whatever precision each is; a difference counts wherever it is, the last row too."""
    monkeypatch.setattr(tensors, "_AT_ONCE", 8)
    first = np.arange(32, dtype=np.float16).reshape(8, 4)
    assert [len(rows) for (rows,) in tensors._rows(first[:7])] == [2, 2, 2, 1]
    for dtype in (np.float32, ml_dtypes.bfloat16):
        second = first.astype(dtype)
        assert tensors.equal(first, second) and not tensors.equal(first, second[:7])
        second[at, 3] += 1
        assert not tensors.equal(first, second)


def test_sizes_below_zero_are_refused():
    """As many numbers as the file has: -3 heads of -2 dimensions."""
    with pytest.raises(InterchangeError, match=r"would have the shape \[.*-3, -2.*\]: no size of config.json is below 0$"):
        GPT_FILES.entries(GPT_FILES.read_config(LLAMA | {"num_attention_heads": -3}))


def test_differences_are_named():
    """Missing, unexpected and misshapen tensors each get their shapes; after eight, only a count."""
    want = {"a": (1, 2), "b": (3,)} | {f"x{i}": (1,) for i in range(9)}
    text = tensors.problems(want, {"a": (2, 1), "c": (4,)})
    assert text.startswith(
        "a is [2, 1], expected [1, 2]; b is missing, expected [3]; c [4] was not expected; x0 is missing, expected [1]"
    )
    assert text.endswith("x4 is missing, expected [1]; and 4 more") and text.count("missing") == 6
    assert tensors.problems(want, want) == ""
    long = tensors.problems({}, {"x" * 5000 + "\n": (1,) * 5000})
    assert len(long) < 250 and len(long.splitlines()) == 1


BERT = dict(
    model_type="bert",
    vocab_size=9,
    hidden_size=6,
    num_hidden_layers=1,
    num_attention_heads=3,
    intermediate_size=5,
    max_position_embeddings=7,
    hidden_act="gelu",
    architectures=["BertForMaskedLM"],
)
GPT2 = dict(model_type="gpt2", vocab_size=9, n_embd=6, n_layer=1, n_head=3, n_positions=7)
LLAMA = dict(model_type="llama", vocab_size=9, hidden_size=6, num_hidden_layers=1, num_attention_heads=3, intermediate_size=5)

QWEN2 = LLAMA | dict(model_type="qwen2", num_key_value_heads=3)


@pytest.mark.parametrize(
    ("family", "config", "parts"),
    [
        (BERT_FILES, BERT | {"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key", "absolute"]),
        (BERT_FILES, BERT | {"is_decoder": True}, ["is_decoder=true"]),
        (BERT_FILES, BERT | {"hidden_act": "mish"}, ["no activation 'mish'", "did you mean 'swish'?"]),
        (BERT_FILES, BERT | {"architectures": ["BertForTokenClassificatio"]}, ["did you mean 'BertForTokenClassification'?"]),
        (BERT_FILES, BERT | {"hidden_size": "6"}, ['hidden_size is "6"', "expected int"]),
        (BERT_FILES, BERT | {"vocab_size": None}, ["vocab_size is null"]),
        (GPT_FILES, {k: v for k, v in GPT2.items() if k != "vocab_size"}, ["vocab_size is missing"]),
        (BERT_FILES, BERT | {"num_attention_heads": 4}, ["hidden_size=6", "num_attention_heads=4"]),
        (GPT_FILES, GPT2 | {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx"]),
        (GPT_FILES, GPT2 | {"architectures": ["GPT2ForSequenceClassification"]}, ["GPT2ForSequenceClassification"]),
        (GPT_FILES, LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["type 'dynamic'"]),
        (GPT_FILES, LLAMA | {"rope_parameters": {"rope_type": "linea"}}, ["type 'linea'", "did you mean 'linear'?"]),
        (GPT_FILES, LLAMA | {"rope_parameters": {"full_attention": {}}}, ["each type of layer"]),
        (GPT_FILES, LLAMA | {"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor=0.5"]),
        (GPT_FILES, LLAMA | {"rms_norm_eps": None}, ["rms_norm_eps is null; left out, it would be 1e-06"]),
        (GPT_FILES, QWEN2 | {"layer_types": ["sliding"]}, ["layer_types=['sliding']", "'full_attention' for each of 1 layers"]),
        (GPT_FILES, QWEN2 | {"num_key_value_heads": 2}, ["num_attention_heads=3", "num_key_value_heads=2"]),
        (GPT_FILES, LLAMA | {"num_key_value_heads": 2}, ["num_attention_heads=3", "num_key_value_heads=2"]),
    ],
    ids=lambda value: {BERT_FILES: "bert", GPT_FILES: "gpt"}[value] if isinstance(value, Interchange) else "",
)
def test_what_ours_has_not_is_refused_by_name(family, config, parts):
    """A setting that would change the numbers is never passed over: one line names it, its value and what would do."""
    with pytest.raises(InterchangeError) as caught:
        family.read_config(config)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert len(str(caught.value).splitlines()) == 1


def test_rope_theta_is_found_where_old_and_new_versions_write_it():
    old = GPT_FILES.read_config(LLAMA | {"rope_theta": 500, "rope_scaling": None})
    new = GPT_FILES.read_config(LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}})
    assert old == new and new.positions == Rotary(base=500.0)
    assert GPT_FILES.read_config(LLAMA).positions == Rotary()


BASE = BertConfig(
    vocab=9,
    layers=1,
    model_dim=6,
    attention=GroupedQuery(heads=3, head_dim=2, biases="qkvo"),
    positions=Learned(rows=7),
    feed_forward=Dense(hidden_dim=5, activation="gelu", bias=True),
)
DECODER = GptConfig(
    vocab=9,
    layers=1,
    model_dim=6,
    attention=GroupedQuery(heads=3, head_dim=2),
    positions=Rotary(),
    feed_forward=Dense(hidden_dim=5, activation="silu", gated=True),
)


@pytest.mark.parametrize(
    ("config", "changes", "parts"),
    [
        (BASE, {"norm.order": "pre", "embedding.types": 0}, ["BERT", "order='pre' (it has 'post')", "types=0 (it has 2)"]),
        (BASE, {"attention.kv_heads": 1}, ["groups=1 (it has 3)"]),
        (BASE, dict(head=MaskedLm(transform=False)), ["masked tokens", "transform=False (it has True)"]),
        (BASE, dict(head=Classification(labels=2, pooling="mean")), ["sequence classification", "pooling='mean'"]),
        (DECODER, {"norm.order": "parallel"}, ["Llama", "order='parallel' (it has 'pre')"]),
        (
            DECODER,
            {"positions": RelativeBuckets(), "attention.logit_cap": 50.0},
            ["GPT-2", "positions.class='RelativeBuckets'", "logit_cap=50.0"],
        ),
    ],
    ids=["bert-order", "bert-kv_heads", "bert-transform", "bert-mean", "palm", "lingvo"],
)
def test_what_transformers_has_not_is_refused_by_name(config, changes, parts):
    """PaLM's block, the 480B encoder, mean pooling: one line with everything that stands in the way."""
    family: Any = BERT_FILES if isinstance(config, BertConfig) else GPT_FILES
    family.write_config(config)
    with pytest.raises(InterchangeError) as caught:
        family.write_config(changed(config, changes))
    assert all(part in str(caught.value) for part in parts), caught.value


@pytest.mark.parametrize("config", [BERT, GPT2, LLAMA], ids=lambda c: c["model_type"])
def test_configs_go_there_and_back(config):
    """Ours, written and read again, is the same config."""
    family: Any = BERT_FILES if config is BERT else GPT_FILES
    ours = family.read_config(config)
    assert family.read_config(json.loads(json.dumps(family.write_config(ours)))) == ours
