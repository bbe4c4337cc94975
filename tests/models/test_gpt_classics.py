"""GPT-NeoX, OPT, GPT-J, Falcon, BLOOM and Granite: their sizes, their folders, and what of them is refused.

That their logits and continuations are those of `transformers` is in trainers/weights/test_huggingface.py, by the fixtures that
`python -m tests.parity.live` makes.
"""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from configs.experiment import Lora
from models.errors import UserError
from models.gpt.huggingface import INTERCHANGE
from models.gpt.huggingface.rope import share_of
from models.interchange import Entry, InterchangeError, Part
from models.parts.attention.config import Alibi, GroupedQuery, Learned
from models.parts.attention.logits import masked_logits
from models.parts.attention.mask import AttentionMask
from models.parts.nested import changed
from models.sharding.params import describe
from tests.helpers.folders import assert_refused, copy
from tests.parity import ours
from tests.parity.live import FIXTURES
from trainers import lora
from trainers.weights.huggingface import HuggingFace


def sizes(kind: str, names: tuple[str, str, str], layers: int, dim: int, heads: int, vocab: int, **more: Any) -> dict[str, Any]:
    """The config.json of a model whose depth, width and heads have these names."""
    return {"model_type": kind, "vocab_size": vocab} | dict(zip(names, (layers, dim, heads), strict=True)) | more


PLAIN = ("num_hidden_layers", "hidden_size", "num_attention_heads")


def pythia(layers: int, dim: int, heads: int, vocab: int = 50_304) -> dict[str, Any]:
    return sizes("gpt_neox", PLAIN, layers, dim, heads, vocab, intermediate_size=4 * dim)


def opt(layers: int, dim: int, heads: int) -> dict[str, Any]:
    return sizes("opt", PLAIN, layers, dim, heads, 50_272, ffn_dim=4 * dim)


def bloom(layers: int, dim: int, heads: int) -> dict[str, Any]:
    return sizes("bloom", ("n_layer", "hidden_size", "n_head"), layers, dim, heads, 250_880)


def granite(dim: int, hidden: int) -> dict[str, Any]:
    shape = dict(intermediate_size=hidden, num_key_value_heads=8, tie_word_embeddings=True)
    return sizes("granite", PLAIN, 40, dim, 32, 49_155, **shape)


FALCON_40B = dict(num_kv_heads=8, new_decoder_architecture=True)
# The settings of released folders, and numbers of parameters: Pythia's and BLOOM's are printed on their pages, others are those
# of their files; all are written here from memory.
RELEASED = {
    "pythia_70m": (pythia(6, 512, 8), 70_426_624),
    "pythia_160m": (pythia(12, 768, 12), 162_322_944),
    "pythia_410m": (pythia(24, 1024, 16), 405_334_016),
    "pythia_1b": (pythia(16, 2048, 8), 1_011_781_632),
    "pythia_1_4b": (pythia(24, 2048, 16), 1_414_647_808),
    "pythia_2_8b": (pythia(32, 2560, 32), 2_775_208_960),
    "pythia_6_9b": (pythia(32, 4096, 32, 50_432), 6_857_302_016),
    "pythia_12b": (pythia(36, 5120, 40, 50_688), 11_846_072_320),
    "opt_125m": (opt(12, 768, 12), 125_239_296),
    "opt_1_3b": (opt(24, 2048, 32), 1_315_758_080),
    "opt_2_7b": (opt(32, 2560, 32), 2_651_596_800),
    "opt_6_7b": (opt(32, 4096, 32), 6_658_473_984),
    "opt_13b": (opt(40, 5120, 40), 12_853_473_280),
    "opt_30b": (opt(48, 7168, 56), 29_974_540_288),
    "gptj_6b": (sizes("gptj", ("n_layer", "n_embd", "n_head"), 28, 4096, 16, 50_400), 6_050_882_784),
    "falcon_7b": (sizes("falcon", PLAIN, 32, 4544, 71, 65_024), 6_921_720_704),
    "falcon_40b": (sizes("falcon", PLAIN, 60, 8192, 128, 65_024, **FALCON_40B), 41_303_293_952),
    "bloom_560m": (bloom(24, 1024, 16), 559_214_592),
    "bloom_1b1": (bloom(24, 1536, 16), 1_065_314_304),
    "bloom_1b7": (bloom(24, 2048, 16), 1_722_408_960),
    "bloom_3b": (bloom(30, 2560, 32), 3_002_557_440),
    "bloom_7b1": (bloom(30, 4096, 32), 7_069_016_064),
    "bloom_176b": (bloom(70, 14_336, 112), 176_247_271_424),
    "granite3_2b": (granite(2048, 8192), 2_533_531_648),
    "granite3_8b": (granite(4096, 12_800), 8_170_848_256),
}


def parameters(settings: dict[str, Any]) -> int:
    return sum(info.size for info in describe(ours.abstract(INTERCHANGE.read_config(settings))))


@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes_are_exact(name):
    """Every one is read, built, abstractly, and counted."""
    settings, published = RELEASED[name]
    assert parameters(settings) == published


def test_opt_66b_is_the_sum_of_its_matrices():
    """Derived: two tables, four matrices of attention and two of the network with biases, two norms a layer and one."""
    m, layers = 9216, 64
    layer = 4 * (m * m + m) + (4 * m * m + 4 * m) + (4 * m * m + m) + 4 * m
    assert parameters(opt(layers, m, 72)) == (50_272 + 2050) * m + layers * layer + 2 * m


# --- parts -------------------------------------------------------------------------------------------------------


def test_slopes_are_the_papers():
    """Eight heads have 1/2 to 1/256; of twelve, those of eight and every other of sixteen (Press et al., section 3)."""
    assert Alibi.slopes(8) == tuple(2.0**-i for i in range(1, 9))
    sixteen = Alibi.slopes(16)
    assert sixteen[0] == 2**-0.5 and sixteen[-1] == 2.0**-8
    assert Alibi.slopes(12) == Alibi.slopes(8) + sixteen[0:8:2]
    assert len(Alibi.slopes(71)) == 71 and Alibi.slopes(1) == (2.0**-8,)


def test_groups_of_heads_alternate():
    """The file has of two groups queries 0 1, key 0, value 0, then queries 2 3, key 1, value 1; and they go back."""
    parts = (Part("q", (1, 4, 1), 1), Part("k", (1, 2, 1), 1), Part("v", (1, 2, 1), 1))
    entry = Entry("qkv", parts, transposed=True, groups=2)
    rows = np.arange(8.0)[:, None]
    q, k, v = entry.split(rows)
    assert (q.ravel().tolist(), k.ravel().tolist(), v.ravel().tolist()) == ([0, 1, 4, 5], [2, 6], [3, 7])
    assert_array_equal(entry.join([q, k, v]), rows)


def test_pairs_of_some_dimensions_become_halves():
    """Rows 0 1 | 2 3 of a head are 0 2 | 1 3 for us, and what is not turned stays behind them."""
    entry = Entry("q", (Part("q", (1, 2, 6), 1),), transposed=True, pairs=2, turned=4)
    rows = np.arange(12.0)[:, None]
    (q,) = entry.split(rows)
    assert q[0].tolist() == [[0, 2, 1, 3, 4, 5], [6, 8, 7, 9, 10, 11]]
    assert_array_equal(entry.join([q]), rows)


def test_a_share_of_a_head_is_written_so_that_it_is_read():
    """`transformers` takes the whole number below size times share: 30 / 88 of 88 would be 29."""
    assert int(88 * (30 / 88)) == 29
    assert all(int(size * share_of(dims, size)) == dims for size in range(2, 400, 2) for dims in range(2, size, 2))


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("bloom", {"prefix": True}, "prefix=True: with positions=Alibi there is no such model here; nearest is Rotary"),
        ("bloom", {"output.divisor": 0.0}, "divisor=0.0: logits cannot be divided by it; 1 changes nothing"),
        ("opt", {"positions.first": 30}, "first=30: must be below rows=25"),
        ("granite", {"norm.branch_scale": math.nan}, "branch_scale=nan: must be a finite number"),
    ],
)
def test_what_no_decoder_is_is_refused(name, fields, error):
    with pytest.raises(ValueError) as caught:
        changed(HuggingFace(FIXTURES / name).config, fields)
    assert error in str(caught.value)


def test_others_have_no_norm_of_embeddings():
    """An encoder's embeddings have their own norm, and a field that says so again would be read by nobody."""
    config = HuggingFace(FIXTURES / "bert").config
    for fields, error in (({"norm.embedding": True}, "norm.embedding=True"), ({"output.divisor": 2.0}, "output.divisor=2.0")):
        with pytest.raises(ValueError, match=error):
            changed(config, fields)


def test_rows_beyond_opts_table_are_refused():
    """Its two first rows are no position: a table of 25 has 23."""
    model = ours.abstract(HuggingFace(FIXTURES / "opt").config)
    assert isinstance(model.c.positions, Learned) and (model.c.positions.rows, model.longest) == (25, 23)


# --- folders -----------------------------------------------------------------------------------------------------


def same(folder: Path, name: str) -> None:
    """Asserts that a folder holds a fixture's model."""
    want, source = HuggingFace(FIXTURES / name), HuggingFace(folder)
    assert source.config == want.config and source.shapes == want.shapes
    for key in want.shapes:
        assert_array_equal(source.read(key), want.read(key), err_msg=key)


OLD = {  # of each: the prefix that a bare model's files lack, and a buffer that old releases saved
    "gpt_neox": ("gpt_neox.", "gpt_neox.layers.0.attention.masked_bias"),
    "opt": ("model.", None),
    "gptj": ("transformer.", "transformer.h.1.attn.bias"),
    "falcon_grouped": ("transformer.", "transformer.h.0.self_attention.rotary.inv_freq"),
    "bloom": ("transformer.", None),
    "granite": ("model.", "model.layers.0.self_attn.rotary_emb.inv_freq"),
}


@pytest.mark.parametrize("name", OLD)
def test_names_of_old_releases_are_understood(name, tmp_path):
    """Without the model's prefix, with buffers that can be computed, and with a copy of a tied table as output matrix."""
    prefix, buffer = OLD[name]

    def old(tensors):
        tensors = tensors | ({buffer: np.zeros(1, np.float32)} if buffer else {})
        tables = [k for k in tensors if k.endswith(("embed_tokens.weight", "word_embeddings.weight"))]
        if not any(k.startswith(("lm_head", "embed_out")) for k in tensors):
            tensors["lm_head.weight"] = tensors[tables[0]] + 0
        return {k.removeprefix(prefix): v for k, v in tensors.items()}

    same(copy(name, tmp_path / "f", old), name)


def test_an_output_matrix_of_pythia_has_either_name(tmp_path):
    """Files have embed_out, version 5 in memory lm_head."""

    def renamed(tensors):
        assert "embed_out.weight" in tensors
        return {k.replace("embed_out", "lm_head"): v for k, v in tensors.items()}

    same(copy("gpt_neox", tmp_path / "f", renamed), "gpt_neox")


def test_blooms_settings_have_two_names(tmp_path):
    """As bigscience/bloom has them, and as `transformers` writes them."""
    older: dict[str, Any] = {"n_embed": 30, "num_hidden_layers": 2, "num_attention_heads": 5}
    same(copy("bloom", tmp_path / "f", drop=("hidden_size", "n_layer", "n_head"), **older), "bloom")


@pytest.mark.parametrize(
    ("name", "settings", "error"),
    [
        ("gpt_neox", dict(architectures=["GPTNeoXForTokenClassification"]), "did you mean 'GPTNeoXForCausalLM'?"),
        ("gpt_neox", dict(hidden_act="gelu_fast"), "no activation 'gelu_fast' here; did you mean 'gelu'?"),
        ("gpt_neox", dict(use_parallel_residual="yes"), 'use_parallel_residual="yes" is not supported, only true or false'),
        ("gpt_neox", dict(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "no rotary positions of type 'dynamic' here"),
        ("gpt_neox", dict(model_type="gpt_neo"), "no model of type 'gpt_neo' here; did you mean 'gpt_neox'?"),
        ("opt", dict(do_layer_norm_before=False), "do_layer_norm_before=false is not supported, only true"),
        ("opt", dict(word_embed_proj_dim=12), "word_embed_proj_dim=12 is not supported, only 24"),
        ("opt", dict(_remove_final_layer_norm=True), "_remove_final_layer_norm=true is not supported, only false"),
        ("opt", dict(max_position_embeddings=22), "model.decoder.embed_positions.weight is [25, 24], expected [24, 24]"),
        ("granite", dict(attention_multiplier=0), "attention_multiplier=0: must be within 1e-6 and 1e6; Granite's are 1/64"),
        ("granite", dict(logits_scaling=0), "divisor=0.0: logits cannot be divided by it"),
        ("gptj", dict(rotary_dim=0), "rotary_dim=0: must be 2 or more; GPT-J's is 64"),
        ("gptj", dict(rotary_dim=12), "positions.dims=12: must be even, at most head_dim=10; nearest is 10"),
        ("gptj", dict(rotary_dim=None), "rotary_dim is null; left out, it would be 64"),
        ("falcon", dict(alibi=True), "alibi=true is not supported, only false"),
        ("falcon", dict(num_ln_in_parallel_attn=2), "num_ln_in_parallel_attn=2 is not supported, only 1"),
        ("falcon", dict(multi_query=False, num_kv_heads=1), "num_kv_heads=1: without multi_query only num_attention_heads=5"),
        ("falcon_grouped", dict(num_kv_heads=4), "num_attention_heads=6 is no multiple of num_kv_heads=4"),
        (
            "falcon_grouped",
            dict(parallel_attn=False),
            "parallel_attn=false is not supported with new_decoder_architecture, only true",
        ),
        ("falcon_grouped", dict(num_ln_in_parallel_attn=3), "num_ln_in_parallel_attn=3 is not supported, only 1 or 2"),
        (
            "bloom",
            dict(apply_residual_connection_post_layernorm=True),
            "apply_residual_connection_post_layernorm=true is not supported, only false",
        ),
        ("bloom", dict(hidden_size=31), "hidden_size=31 is no multiple of n_head=5"),
    ],
)
def test_a_folder_of_another_model_is_refused(name, settings, error, tmp_path):
    """In one line, with the setting, its value and what would do."""
    assert_refused(copy(name, tmp_path / "f", **settings), error, UserError)


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("llama", {"norm.branch_scale": 0.5}, "norm.branch_scale=0.5 (it has 1.0)"),
        ("llama", {"output.divisor": 2.0}, "output.divisor=2.0 (it has 1.0)"),
        ("gpt2", {"positions.first": 2}, "positions.first=2 (it has 0)"),
        ("gptj", {"positions.base": 500.0}, "positions.base=500.0 (it has 10000.0)"),
        ("bloom", {"norm.embedding": False}, "norm.embedding=False (it has True)"),
        ("opt", {"attention.biases": "qkv"}, "have biases of all projections or of none, but attention.biases='qkv'"),
        ("falcon_sequential", {"attention.kv_heads": 1, "norm.order": "post"}, "norm.order='post' with attention.kv_heads=1"),
        ("gpt_neox", {"norm.order": "parallel"}, "norm.order='parallel', only 'parallel_two' or 'pre'"),
    ],
)
def test_what_none_of_them_has_is_not_written(name, fields, error):
    with pytest.raises(InterchangeError) as caught:
        INTERCHANGE.write_config(changed(HuggingFace(FIXTURES / name).config, fields))
    assert error in str(caught.value)


def test_a_model_without_a_folder_is_of_the_class_that_it_fits():
    """A decoder made here, not read, is written as what it is like."""
    for name in ("gpt_neox", "gptj", "bloom", "opt", "granite", "falcon_grouped"):
        config = HuggingFace(FIXTURES / name).config
        assert INTERCHANGE.write_config(changed(config, {"dialect": ""}))["model_type"] == config.dialect


TARGETS = {  # modules by PEFT's names of them, and ours
    "gpt_neox": (("query_key_value", "dense"), "qkvo"),
    "falcon_grouped": (("query_key_value",), "qkv"),
    "bloom": (("query_key_value", "self_attention.dense"), "qkvo"),
    "opt": (("q_proj", "v_proj", "out_proj"), "qvo"),
    "gptj": (("q_proj", "v_proj"), "qv"),
    "granite": (("q_proj", "v_proj"), "qv"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_of_adapters_have_pefts_names(name):
    theirs, attention = TARGETS[name]
    model = HuggingFace(FIXTURES / name).config
    infos = {info.name: info for info in describe(ours.abstract(model))}
    assert isinstance(model.attention, GroupedQuery)  # pyright: ignore[reportAttributeAccessIssue]
    chosen = lora.targeted(infos, Lora(rank=1, targets=theirs), model)
    assert set(chosen) == {f"decoder.attention.{part}" for part in attention}
    both = lora.targeted(infos, Lora(rank=1, targets=("all-linear",)), model)
    assert set(both) >= {"decoder.ffn.wi", "decoder.ffn.wo", "decoder.attention.q"} and "softmax.weight" not in both


def test_a_bias_of_relative_distance_falls_with_it():
    """ALiBi's logits of a query differ from those without by its slope times the distance, in every head."""
    ones = jnp.ones((1, 5), jnp.int32)
    mask = AttentionMask.for_rows(ones, ones, causal=True)
    q, k = (jax.random.normal(jax.random.key(i), (1, 5, 3, 4)) for i in (0, 1))
    slopes = jnp.asarray([[0.5], [0.25], [0.125]])
    with_, without = (masked_logits(q, k, table, mask, limit=0.0, max_distance=0) for table in (slopes, None))
    for query in range(5):
        for key in range(query + 1):
            np.testing.assert_allclose((with_ - without)[0, :, query, key], slopes[:, 0] * (key - query), atol=1e-6)
