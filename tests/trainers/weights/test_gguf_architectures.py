"""GGUF files of every architecture that is read, made of the tiny models of `transformers` in tests/fixtures/parity/: they hold
what their folders hold."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file

from models.gpt.gguf import INTERCHANGE as GGUF
from models.gpt.huggingface import INTERCHANGE as HUGGING_FACE
from models.interchange import InterchangeError, tensors
from models.parts.attention.config import GroupedQuery, Llama3, LongRope, Rotary, Scaling
from tests.fuzz import writers
from trainers.weights.gguf import Gguf
from trainers.weights.huggingface import HuggingFace

PARITY = Path(__file__).parents[2] / "fixtures/parity"
# llama.cpp's names of a layer's tensors, by Hugging Face's.
NAMES = {
    "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
EXPERTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
AFTER = ("gemma2", "gemma3", "olmo2", "gpt-oss")  # whose post_attention_layernorm has the name that it says
PERMUTED = ("llama", "smollm3")
KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
}


def converted(architecture: str, theirs: dict[str, Any], tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of a folder, named, ordered and put together as llama.cpp's converter does."""
    made: dict[str, np.ndarray] = {}
    experts: dict[str, dict[int, np.ndarray]] = {}
    heads = {"attn_q": theirs["num_attention_heads"], "attn_k": theirs["num_key_value_heads"]}
    for name, x in tensors.items():
        if architecture == "gemma2" or architecture == "gemma3":
            x = x + np.float32(1) if name.endswith("norm.weight") else x
        base, _, suffix = name.rpartition(".")
        if base in OUTER:
            made[f"{OUTER[base]}.{suffix}"] = x
            continue
        _, _, layer, inside = name.split(".", 3)
        inside, _, suffix = inside.rpartition(".") if not inside.endswith(("sinks", "_proj", "_bias")) else (inside, "", "weight")
        at = f"blk.{layer}."
        if ".experts." in f"{inside}." and architecture == "gpt-oss":
            made |= {f"{at}{key}": value for key, value in of_oss(name.rpartition(".")[2], x).items()}
        elif ".experts." in inside:
            _, number, which = inside.rsplit(".", 2)
            experts.setdefault(f"{at}ffn_{EXPERTS[which]}_exps.weight", {})[int(number)] = x
        elif inside == "post_attention_layernorm":
            made[f"{at}{'post_attention_norm' if architecture in AFTER else 'ffn_norm'}.{suffix}"] = x
        else:
            to = NAMES[inside]
            if architecture in PERMUTED and to in heads:
                x = x.reshape(heads[to], 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
            made[f"{at}{to}.{suffix}"] = x.squeeze() if to == "ffn_gate_inp_shexp" else x
    return made | {name: np.stack([x for _, x in sorted(numbered.items())]) for name, numbered in experts.items()}


def of_oss(name: str, x: np.ndarray) -> dict[str, np.ndarray]:
    """gpt-oss's experts: gates and others in turn in theirs, apart in llama.cpp's, as [experts, out, in]."""
    suffix = "bias" if name.endswith("_bias") else "weight"
    x = x if suffix == "bias" else x.swapaxes(1, 2)
    if name.startswith("down"):
        return {f"ffn_down_exps.{suffix}": x}
    return {f"ffn_gate_exps.{suffix}": x[:, ::2], f"ffn_up_exps.{suffix}": x[:, 1::2]}


def write(
    path: Path, architecture: str, theirs: dict[str, Any], tensors: dict[str, np.ndarray], kind: Kind = Kind.F32, **keys: Any
) -> Path:
    """A GGUF file with the settings of a config.json, with further keys ("attention__key" for attention.key), and of tensors."""
    settings = {key: theirs[name] for name, key in KEYS.items() if theirs.get(name)}
    rope = theirs.get("rope_parameters") or {}
    base = rope.get("full_attention", rope).get("rope_theta")
    settings |= {"rope.freq_base": base, **{key.replace("__", "."): value for key, value in keys.items()}}
    return writers.gguf(path, architecture, settings, tensors.items(), kind.name)


def folder(case: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    at = PARITY / case
    return json.loads((at / "config.json").read_text()), load_file(at / "model.safetensors")


def of_case(case: str, path: Path, architecture: str, **keys: Any) -> Path:
    theirs, tensors = folder(case)
    return write(path, architecture, theirs, converted(architecture, theirs, tensors), **keys)


MOE = dict(expert_count=7, expert_used_count=3)
SLIDES = dict(attention__sliding_window=5, attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
AMPLITUDE = float(f"{math.sqrt(1 + math.log(4) / math.log(6)):.7g}")
LONG = dict(
    rope_type="longrope",
    rope_theta=500.0,
    partial_rotary_factor=0.75,
    long_factor=[2.0, 3.0, 5.0],
    short_factor=[1.0, 1.2, 1.5],
    original_max_position_embeddings=6,
    attention_factor=AMPLITUDE,
)
# The folder, its architecture, further keys of the file, and what settings a file cannot have.
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("llama", "llama", {}, {}),
    ("llama_biased", "llama", {}, dict(hidden_act="silu")),
    ("llama_linear", "llama", dict(rope__scaling__type="linear", rope__scaling__factor=3.0), {}),
    (
        "llama_yarn",
        "llama",
        dict(
            rope__scaling__type="yarn",
            rope__scaling__factor=4.0,
            rope__scaling__original_context_length=6,
            rope__scaling__yarn_beta_fast=3.0,
        ),
        {},
    ),
    ("mixtral", "llama", dict(expert_count=5, expert_used_count=2), {}),
    ("qwen2", "qwen2", {}, {}),
    ("qwen3", "qwen3", {}, {}),
    ("gemma2", "gemma2", SLIDES, dict(query_pre_attn_scalar=6)),
    (
        "gemma3",
        "gemma3",
        dict(
            attention__sliding_window=4,
            attention__sliding_window_pattern=3,
            rope__freq_base_swa=70.0,
            rope__scaling__type="linear",
            rope__scaling__factor=4.0,
        ),
        dict(query_pre_attn_scalar=6),
    ),
    ("phi3", "phi3", dict(attention__sliding_window=6), {}),
    (
        "phi3_long",
        "phi3",
        dict(
            rope__dimension_count=6,
            rope__scaling__original_context_length=6,
            attention__sliding_window=0,
            rope__scaling__attn_factor=AMPLITUDE,
        ),
        dict(rope_parameters=LONG),
    ),
    ("olmo2", "olmo2", {}, {}),
    ("smollm3", "smollm3", {}, dict(no_rope_layers=None, no_rope_layer_interval=4)),
    ("qwen2_moe", "qwen2moe", MOE | dict(expert_feed_forward_length=10, expert_shared_feed_forward_length=14), {}),
    ("qwen3_moe", "qwen3moe", MOE | dict(expert_feed_forward_length=10), {}),
    ("olmoe", "olmoe", MOE, {}),
    (
        "gpt_oss",
        "gpt-oss",
        dict(
            expert_count=5,
            expert_used_count=3,
            expert_feed_forward_length=20,
            attention__sliding_window=4,
            rope__scaling__type="yarn",
            rope__scaling__factor=32.0,
            rope__scaling__original_context_length=4096,
        ),
        {},
    ),
]


@pytest.mark.parametrize(("case", "architecture", "keys", "cannot"), CASES, ids=[case for case, *_ in CASES])
def test_a_file_holds_what_its_folder_holds(case, architecture, keys, cannot, tmp_path):
    """The same configuration and the same parameters, bit for bit; Gemma's norms to what is left of them beside the 1 that is
    added. Attention's scale of Gemma and the step of SmolLM3's layers without positions are in no key."""
    theirs, tensors = folder(case)
    made = converted(architecture, theirs, tensors)
    if case == "phi3_long":
        made |= {f"rope_factors_{x}.weight": np.array(LONG[f"{x}_factor"]) for x in ("long", "short")}
    weights = Gguf(write(tmp_path / "m.gguf", architecture, theirs, made, **keys))
    assert weights.config == HUGGING_FACE.read_config(theirs | cannot)
    want = HuggingFace(PARITY / case)
    assert weights.shapes == want.shapes
    for name in want.shapes:
        x = want.read(name)
        plus_one = case.startswith("gemma") and name.endswith(".scale")
        assert_array_equal(weights.read(name), (x + np.float32(1)) - np.float32(1) if plus_one else x, err_msg=name)


def test_windows_are_where_the_file_or_the_architecture_says(tmp_path):
    """Every second layer of Gemma 2 without a word about it, others by a list of layers; all five but the last of six of Gemma
    3, with a base of 10,000."""
    at = tmp_path / "m.gguf"
    kinds = Gguf(
        of_case("gemma2", at, "gemma2", **SLIDES, attention__sliding_window_pattern=[False, True, True])
    ).config.attention.pattern
    assert [kind.window for kind in kinds] == [0, 5, 5]
    kinds = Gguf(of_case("gemma3", at, "gemma3", attention__sliding_window=4)).config.attention.pattern
    assert [(kind.window, kind.base) for kind in kinds] == [(4, 1e4)]
    theirs, tensors = folder("gemma3")
    tensors |= {name.replace("layers.0", "layers.5"): x for name, x in tensors.items() if ".layers.0." in name}
    theirs = theirs | dict(num_hidden_layers=6)
    made = converted("gemma3", theirs, tensors)
    kinds = Gguf(write(at, "gemma3", theirs, made, attention__sliding_window=4)).config.attention.pattern
    assert [kind.window for kind in kinds] == [4, 4, 4, 4, 4, 0]


PLAIN = Rotary(base=500_000.0)


def stretched(scaling: Scaling | None) -> Rotary:
    return dataclasses.replace(PLAIN, scaling=scaling)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_factors_of_llama_3_are_known(factor, tmp_path):
    """Factors of Llama 3.1 and 3.2 are read as their rule, so that a folder can be written of it; others as they are."""
    theirs, tensors = folder("llama_llama3")
    made = converted("llama", theirs, tensors)

    def read(scaling: Scaling | None) -> Any:
        rates = zip(PLAIN.rates(10), stretched(scaling).rates(10), strict=True)
        factors = {"rope_freqs.weight": np.array([plain / slow for plain, slow in rates])}
        return Gguf(
            write(tmp_path / "m.gguf", "llama", theirs, made | factors, rope__freq_base=500_000.0)
        ).config.positions.scaling

    llama3 = Llama3(factor=factor, original=8192)
    assert read(llama3) == llama3
    assert read(None) is None
    for changed in (dict(original=100), dict(factor=1.05 * factor)):
        other = dataclasses.replace(llama3, **changed)
        scaling = read(other)
        assert isinstance(scaling, LongRope) and scaling.amplitude == 1
        for long in (False, True):
            assert_allclose(stretched(scaling).rates(10, long=long), stretched(other).rates(10), rtol=1e-6)


@pytest.mark.parametrize(("layers", "width", "scalar"), [(46, 4608, 144.0), (42, 3584, 256.0)])
def test_one_size_of_gemma_has_another_scale(layers, width, scalar):
    """Logits of the 27B model are divided by the square root of width / heads, those of others by that of a head's size."""
    settings = {
        "block_count": layers,
        "embedding_length": width,
        "feed_forward_length": 64,
        "context_length": 8192,
        "attention.head_count": 32 if layers == 46 else 16,
        "attention.key_length": 128 if layers == 46 else 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    c = GGUF.read_config("gemma2", settings, {"token_embd.weight": np.zeros((8, 1))})
    heads = c.attention
    assert isinstance(heads, GroupedQuery)
    assert (heads.scale_dim, heads.logit_cap, c.output.cap, heads.pattern[0].window) == (scalar, 50, 30, 4096)


def test_a_file_may_say_how_experts_are_weighed(tmp_path):
    """Over the sum of the chosen in Qwen3, not in OLMoE, where the file doesn't say."""
    for keys, wanted in (({}, False), (dict(expert_weights_norm=True), True)):
        moe = Gguf(of_case("olmoe", tmp_path / "m.gguf", "olmoe", **MOE, **keys)).config.moe
        assert moe and moe.router.normalized == wanted


def test_old_files_have_a_tensor_for_each_expert(tmp_path):
    """Mixtral's first files have no stacked experts; they hold the same."""
    theirs, tensors = folder("mixtral")
    made = converted("llama", theirs, tensors)
    for name in [name for name in made if "_exps." in name]:
        made |= {name.replace("_exps.", f".{e}."): x for e, x in enumerate(made.pop(name))}
    weights = Gguf(write(tmp_path / "m.gguf", "llama", theirs, made, expert_count=5, expert_used_count=2))
    want = HuggingFace(PARITY / "mixtral")
    for name in want.shapes:
        assert_array_equal(weights.read(name), want.read(name), err_msg=name)


@pytest.mark.parametrize(("kind", "error"), [(Kind.Q8_0, 0.02), (Kind.MXFP4, 0.6)], ids=str)
def test_an_expert_is_read_by_itself(kind, error, tmp_path, monkeypatch):
    """No more of a layer's stacked experts is dequantized at once than one expert."""
    theirs, _ = folder("mixtral")
    theirs = theirs | dict(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=8)
    shapes = tensors.their_shapes(HUGGING_FACE.entries(HUGGING_FACE.read_config(theirs)))
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    made = converted("llama", theirs, arrays)
    weights = Gguf(write(tmp_path / "m.gguf", "llama", theirs, made, kind, expert_count=5, expert_used_count=2))
    sizes: list[int] = []

    def counted(data: np.ndarray, kind_: Kind) -> np.ndarray:
        numbers = dequantize(data, kind_)
        sizes.append(numbers.size)
        return numbers

    dequantize = gguf.dequantize
    monkeypatch.setattr(gguf, "dequantize", counted)
    want = np.stack([arrays[f"model.layers.1.block_sparse_moe.experts.{e}.w2.weight"].T for e in (2, 3)])[None]
    assert_allclose(weights.read("decoder.sparse.ffn.wo", (slice(1, 2), slice(2, 4))), want, atol=error)
    assert sizes == [32 * 64] * 2


# --- blocks of 256 and 32 numbers that the library reads but cannot write ---


def scales_of(sc: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Eight scales and eight minima of 6 bits in twelve bytes (get_scale_min_k4 of ggml)."""
    low = [sc[:4] | sc[4:] >> 4 << 6, m[:4] | m[4:] >> 4 << 6, sc[4:] & 15 | (m[4:] & 15) << 4]
    return np.concatenate(low).astype(np.uint8)


def halves(x: np.float16) -> np.ndarray:
    return np.array([x], np.float16).view(np.uint8)


def q4_k(rng: np.random.Generator, high: bool = False) -> tuple[np.ndarray, np.ndarray]:
    q, (sc, m) = rng.integers(0, 32 if high else 16, (8, 32)), rng.integers(0, 64, (2, 8))
    bits = [np.packbits(q >> 4, axis=0, bitorder="little")[0]] if high else []
    low = [(q[i] & 15) | (q[i + 1] & 15) << 4 for i in range(0, 8, 2)]
    block = [halves(np.float16(0.5)), halves(np.float16(0.25)), scales_of(sc, m), *bits, *low]
    return np.concatenate(block).astype(np.uint8), (0.5 * sc[:, None] * q - 0.25 * m[:, None]).ravel()


def q5_k(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return q4_k(rng, high=True)


def q6_k(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    q, scales = rng.integers(0, 64, (2, 4, 32)), rng.integers(-128, 128, 16)
    low = [(half[i] & 15) | (half[i + 2] & 15) << 4 for half in q for i in (0, 1)]
    top = [sum(half[i] >> 4 << 2 * i for i in range(4)) for half in q]
    block = np.concatenate([*low, *top, scales.astype(np.int8).view(np.uint8), halves(np.float16(0.5))])
    return block.astype(np.uint8), 0.5 * np.repeat(scales, 16) * (q.ravel() - 32)


def mxfp4(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    q, exponents = rng.integers(0, 16, (8, 32)), rng.integers(117, 137, (8, 1))
    blocks = np.concatenate([exponents, q[:, :16] | q[:, 16:] << 4], 1)
    return blocks.astype(np.uint8).ravel(), (values[q] * 2.0 ** (exponents - 127)).ravel()


@pytest.mark.parametrize("pack", [q4_k, q5_k, q6_k, mxfp4])
def test_quantisations_that_people_ship(pack: Callable[..., tuple[np.ndarray, np.ndarray]], tmp_path):
    """Blocks packed by hand give the numbers that they stand for, exactly."""
    theirs, tensors = folder("llama")
    theirs, rng = theirs | dict(intermediate_size=256), np.random.default_rng(0)
    shapes = {"gate": (256, 27), "up": (256, 27), "down": (27, 256)}
    tensors |= {f"model.layers.{i}.mlp.{x}_proj.weight": np.zeros(s, np.float32) for x, s in shapes.items() for i in (0, 1)}
    made = converted("llama", theirs, tensors)
    rows = [pack(rng) for _ in range(27)]
    path, writer = tmp_path / "m.gguf", gguf.GGUFWriter.add_tensor
    packed, numbers = (np.stack(side) for side in zip(*rows, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            gguf.GGUFWriter,
            "add_tensor",
            lambda file, name, x: (
                writer(file, name, packed, raw_dtype=Kind[pack.__name__.upper()])
                if name == "blk.1.ffn_down.weight"
                else writer(file, name, x)
            ),
        )
        write(path, "llama", theirs, made)
    assert_array_equal(Gguf(path).read("decoder.ffn.wo", (slice(1, 2),))[0], numbers.T)


@pytest.mark.parametrize(
    ("case", "architecture", "keys", "message"),
    [
        ("llama", "llama", dict(attention__sliding_window=4), "llama.attention.sliding_window=4 is not supported here"),
        ("llama", "llama", dict(attention__head_count_kv=[3, 9]), "head_count_kv=[3, 9] is not supported, only one value"),
        ("llama", "llama", dict(rope__scaling__type="longrope"), "llama.rope.scaling.type='longrope' is not supported"),
        ("llama", "llama", dict(rope__dimension_count=4), "partial_rotary_factor=0.4 is not supported here"),
        ("llama", "llama", dict(attention__causal=False), "llama.attention.causal=False is not supported here, only True"),
        ("llama", "llama", dict(rope__scaling__type="none", rope__scaling__factor=4.0), "rope.scaling.factor=4.0 is not"),
        ("llama", "llama", dict(attention__value_length=12), "attention.value_length=12 is not supported here, only 10"),
        ("llama", "llama", dict(attention__head_count=0), "llama.attention.head_count is 0"),
        ("llama", "llama", dict(embedding_length="wide"), "llama.embedding_length='wide' is not supported, only a number"),
        ("llama", "llama", dict(split__count=3), "one of 3 parts of a model"),
        ("qwen2", "qwen2", dict(attn_logit_softcapping=50.0), "qwen2.attn_logit_softcapping=50.0 is not supported"),
        ("gemma3", "gemma3", {}, "gemma3.attention.sliding_window is missing"),
        ("olmoe", "olmoe", MOE | dict(attention__clamp_kqv=8.0), "olmoe.attention.clamp_kqv=8.0 is not supported"),
        ("qwen3_moe", "qwen3moe", MOE | dict(expert_feed_forward_length=10, expert_gating_func=2), "expert_gating_func=2 is not"),
        ("qwen2", "qwen22", {}, "architecture 'qwen22' cannot be read; did you mean 'qwen2'?"),
        ("qwen2", "llama", {}, "blk.0.attn_output.bias is missing"),
    ],
    ids=str,
)
def test_settings_of_no_model_of_ours_are_refused(case, architecture, keys, message, tmp_path):
    """In one line that names the key and its value; none is passed over that would change what is computed."""
    with pytest.raises(InterchangeError) as caught:
        Gguf(of_case(case, tmp_path / "m.gguf", architecture, **keys))
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_keys_that_change_nothing_are_passed_over(tmp_path):
    keys = dict(expert_count=0, attention__sliding_window=0, rope__scaling__type="none", attention__causal=True, vocab_size=101)
    assert Gguf(of_case("llama", tmp_path / "m.gguf", "llama", **keys)).config.dialect == "llama"
