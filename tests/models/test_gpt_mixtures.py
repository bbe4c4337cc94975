"""Mixtures of experts in Hugging Face's files: every form of their tensors, and every setting of their config.json."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from safetensors.numpy import load_file, save_file

from models.gpt.huggingface import INTERCHANGE as GPT_FILES
from models.gpt.huggingface.experts import unpacked
from models.gpt.huggingface.mixtures import MIXTURES
from models.interchange import InterchangeError, tensors
from models.parts.attention.config import Latent
from models.parts.nested import changed
from tests.parity.live import FIXTURES
from trainers.weights import source as weights
from trainers.weights.huggingface import HuggingFace

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
# Settings that decide nothing where another one is as it is by default: lengths without YaRN, weights of a loss that is off,
# windows that are off.
IDLE = {"max_position_embeddings", "router_aux_loss_coef", "resid_pdrop", "embd_pdrop"}
IDLE_OF = {
    "qwen2_moe": {"sliding_window", "max_window_layers", "attention_bias", "mlp_bias"},
    "qwen3_moe": {"sliding_window", "mlp_bias"},
    "mixtral": {"attention_bias", "mlp_bias"},
    "olmoe": {"mlp_bias"},
    "gpt_oss": {"mlp_bias"},
    "deepseek_v3": {"mlp_bias", "head_dim"},
}


def described(kind: str) -> dict[str, Any]:
    """The settings of a config of `transformers` that was given none."""
    return json.loads((FIXTURES / "defaults.json").read_text())[kind]


@pytest.mark.parametrize("kind", MIXTURES)
def test_absent_settings_mean_what_they_mean_to_transformers(kind):
    """A config.json of sizes alone is the model of one with every default written out."""
    whole = described(kind)
    bare = {"model_type": kind} | {key: whole[key] for key in SIZES}
    assert GPT_FILES.read_config(bare) == GPT_FILES.read_config(whole)


@pytest.mark.parametrize("kind", MIXTURES)
def test_no_setting_is_passed_over(kind):
    """Whichever setting changes, the model that is read changes, or it is refused in one line; but for those that decide
    nothing."""
    sizes = {key: described(kind)[key] for key in SIZES}
    settings = MIXTURES[kind].defaults | sizes
    bare = {"model_type": kind} | sizes
    was = GPT_FILES.read_config(bare)
    for key in settings.keys() - IDLE - IDLE_OF[kind]:
        changes = {bool: lambda v: not v, int: lambda v: 2 * v + 2, float: lambda v: v + 0.25, str: lambda v: "relu"}
        other = changes.get(type(settings[key]), lambda v: [0])(settings[key])
        try:
            assert GPT_FILES.read_config(bare | {key: other}) != was, f"{key}: {settings[key]} -> {other}"
        except (InterchangeError, ValueError) as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("mixtral", dict(router_jitter_noise=0.1), "router_jitter_noise=0.1 is not supported"),
        ("mixtral", dict(num_experts=9, num_local_experts=8), "num_local_experts and num_experts are not the same"),
        ("mixtral", dict(num_experts_per_tok=9), "router.choices=9: must be from 1 to experts.count=8"),
        ("qwen2_moe", dict(mlp_only_layers=[3]), "decoder_sparse_step=1 with mlp_only_layers="),
        ("qwen2_moe", dict(decoder_sparse_step=7), "decoder_sparse_step=7 with mlp_only_layers="),
        ("olmoe", dict(clip_qkv=8.0), "clip_qkv=8.0 is not supported, only null"),
        ("gpt_oss", dict(swiglu_limit=5.0), "swiglu_limit=5.0 is not supported"),
        ("deepseek_v3", dict(scoring_func="softmax"), 'scoring_func="softmax" is not supported'),
        ("deepseek_v3", dict(num_key_value_heads=64), "num_key_value_heads=64: only as num_attention_heads=128"),
        ("deepseek_v3", dict(attention_bias=True), "attention_bias=true is not supported"),
        ("deepseek_v3", dict(n_group=7), "router.groups.count=7: must divide experts.count=256; nearest is 8"),
    ],
)
def test_what_is_not_read_is_refused(kind, fields, message):
    with pytest.raises(ValueError) as error:
        GPT_FILES.read_config(described(kind) | fields)
    assert message in str(error.value)


def test_queries_may_be_made_without_a_latent():
    """A q_lora_rank of null is none, an absent one 1536."""
    whole = described("deepseek_v3")
    latents = [GPT_FILES.read_config(whole | fields).attention for fields in ({}, {"q_lora_rank": None})]
    assert [isinstance(latent, Latent) and latent.query_rank for latent in latents] == [1536, 0]


def fused(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors as `transformers` 5 has them in memory: all experts of a layer in one, gate and up one behind the other."""
    layers: dict[str, list[dict[str, np.ndarray]]] = {}
    kept = {}
    for name, tensor in tensors.items():
        at, _, place = name.replace("block_sparse_moe", "mlp").partition(".experts.")
        if not place:
            kept[at] = tensor
            continue
        expert, piece, _ = place.split(".")
        layer = layers.setdefault(at, [])
        layer += [{} for _ in range(int(expert) + 1 - len(layer))]
        layer[int(expert)][{"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(piece, piece)] = tensor
    for at, layer in layers.items():
        both = [np.concatenate([e["gate_proj"], e["up_proj"]]) for e in layer]
        kept[f"{at}.experts.gate_up_proj"] = np.stack(both)
        kept[f"{at}.experts.down_proj"] = np.stack([e["down_proj"] for e in layer])
    return kept


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe_sparse", "deepseek_v3"])
def test_both_forms_are_one_model(name, tmp_path):
    """A folder with a layer's experts in one tensor has the parameters of one with a tensor for each; with both it is refused."""
    want = HuggingFace(FIXTURES / name)
    shutil.copy(FIXTURES / name / "config.json", tmp_path)
    tensors = load_file(FIXTURES / name / "model.safetensors")
    save_file(fused(tensors), tmp_path / "model.safetensors")
    model = HuggingFace(tmp_path)
    assert model.shapes == want.shapes and model.config == want.config
    for parameter in want.shapes:
        assert_array_equal(model.read(parameter), want.read(parameter), err_msg=parameter)
    save_file(fused(tensors) | tensors, tmp_path / "model.safetensors")
    with pytest.raises(InterchangeError, match="is there twice"):
        HuggingFace(tmp_path)


NUMBERS = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def test_packed_numbers_are_unpacked():
    """Bytes 0x21 and 0xF7 with a scale of 128 are 2 * (.5, 1, 6, -6): the lower half first, and a scale is a power of two."""
    blocks = np.zeros((1, 1, 1, 16), np.uint8)
    blocks[..., :2] = 0x21, 0xF7
    numbers = unpacked(blocks, np.full((1, 1, 1), 128, np.uint8))
    assert numbers.shape == (1, 32, 1)
    assert_array_equal(numbers[0, :4, 0], [1, 2, 12, -12])


@pytest.mark.parametrize("name", ["gemma2_uncapped", "gemma3_whole", "gpt_oss_plain"])
def test_a_model_without_windows_names_one(name):
    """Their classes make the mask of a window, which no layer may read, and fail without its size."""
    config = changed(HuggingFace(FIXTURES / name).config, {"attention.pattern": ()})
    theirs = GPT_FILES.write_config(config)
    assert isinstance(theirs["sliding_window"], int) and set(theirs["layer_types"]) == {"full_attention"}
    assert GPT_FILES.read_config(theirs).attention.pattern == ()


def test_a_folder_of_packed_experts_is_read(tmp_path):
    """gpt-oss as it is released: experts' matrices in MXFP4, [experts, out, blocks of 32 inputs], are the numbers they stand for,
    with gates and others in turn."""
    config = json.loads((FIXTURES / "gpt_oss/config.json").read_text())
    config |= dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, layer_types=None)
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    rng, made = np.random.default_rng(0), {}
    for name, shape in tensors.their_shapes(GPT_FILES.entries(GPT_FILES.read_config(config))).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            made[name] = rng.normal(size=shape).astype(np.float32)
            continue
        experts, inputs, outputs = shape
        made[f"{name}_blocks"] = rng.integers(0, 256, (experts, outputs, inputs // 32, 16)).astype(np.uint8)
        made[f"{name}_scales"] = rng.integers(120, 130, (experts, outputs, inputs // 32)).astype(np.uint8)
    save_file(made, tmp_path / "model.safetensors")
    source = HuggingFace(tmp_path)
    at = "model.layers.1.mlp.experts.gate_up_proj"
    gate, up = (source.read(f"decoder.sparse.ffn.{name}")[1] for name in ("wg", "wi"))
    for expert, place, output in ((0, 5, 0), (4, 31, 7), (2, 16, 12)):
        byte = made[f"{at}_blocks"][expert, output, 0, place // 2]
        code = byte >> 4 if place % 2 else byte & 15
        scale = 2.0 ** (int(made[f"{at}_scales"][expert, output, 0]) - 127)
        want = scale * NUMBERS[code & 7] * (-1 if code & 8 else 1)
        assert (gate, up)[output % 2][expert, place, output // 2] == want
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(InterchangeError, match="quantization_config="):
        HuggingFace(tmp_path)


def test_a_second_prediction_layer_is_left_out(tmp_path):
    """DeepSeek-V3's layer behind the last, which predicts a further token, is no part of the model."""
    tensors = load_file(FIXTURES / "deepseek_v3/model.safetensors")
    shutil.copy(FIXTURES / "deepseek_v3/config.json", tmp_path)
    save_file(tensors | {"model.layers.3.eh_proj.weight": np.ones((2, 2), np.float32)}, tmp_path / "model.safetensors")
    assert HuggingFace(Path(tmp_path)).shapes == HuggingFace(FIXTURES / "deepseek_v3").shapes


def test_weights_of_another_router_are_refused():
    """Gates that are divided by their sum and those that are not have the same shapes, and one line tells them apart."""
    source = HuggingFace(FIXTURES / "qwen3_moe")
    assert source.config.moe
    other = changed(source.config, {"moe.router.normalized": False})
    message = r"with moe\.router\.normalized=True, this one has False; set --model\.moe\.router\.normalized"
    with pytest.raises(InterchangeError, match=message):
        weights.fitting(other, source.shapes, source)
