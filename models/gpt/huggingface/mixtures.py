"""The classes of `transformers` with mixtures of experts: what each adds to LLaMA, as dialects.py for dense decoders. No JAX."""

import json
from collections.abc import Mapping
from typing import Any

from models.gpt.config import GptConfig
from models.gpt.huggingface import rope
from models.gpt.huggingface.dialects import (
    Dialect,
    Fields,
    only_windows,
    pattern,
    qk_norm,
    windows,
    write_one_window,
    write_windows,
)
from models.interchange import InterchangeError, demand, only, setting
from models.parts.attention.config import Latent, LayerVariant
from models.parts.moe.config import MoeConfig

_GROUP = 64  # tokens of a routing group: of our own training; without a capacity it decides nothing
_ROUTED: Fields = dict(router_aux_loss_coef=0.001, output_router_logits=False)


def _experts(theirs: Mapping[str, Any], experts: str, **fields: Any) -> MoeConfig:
    """Returns the mixture of a class: nothing is dropped, and the balance loss is pooled over layers, where it is asked for."""
    weight = setting(theirs, "router_aux_loss_coef", float) if setting(theirs, "output_router_logits", bool) else 0.0
    return MoeConfig(
        experts=setting(theirs, experts, int),
        gating="top_k",
        choices=setting(theirs, "num_experts_per_tok", int),
        group_size=_GROUP,
        capacity_factor=0.0,
        balance="pooled",
        balance_weight=weight,
        **fields,
    )


def _write_experts(c: GptConfig, name: str, experts: str, *free: str) -> Fields:
    """Returns the settings that all mixtures have.

    Raises:
      InterchangeError: the mixture does something that the class does not.
    """
    moe = _mixture(c)
    plain: Fields = dict(
        gating="top_k",
        score="softmax",
        norm_topk=False,
        router_bias=False,
        correction_bias=False,
        expert_groups=1,
        chosen_groups=1,
        gate_scale=1.0,
        activation="same",
        gated="same",
        shared_dim=0,
        shared_gate=False,
        eval_capacity_factor=0.0,
        router_noise=0.0,
        input_jitter=0.0,
        token_dropout=0.0,
    )
    demand(moe, name, **{field: value for field, value in plain.items() if field not in free})
    return {
        experts: moe.experts,
        "num_experts_per_tok": moe.choices,
        "router_aux_loss_coef": moe.balance_weight,
        "output_router_logits": moe.balance == "pooled" and moe.balance_weight > 0,
    }


def _mixture(c: GptConfig) -> MoeConfig:
    if c.moe is None:
        raise InterchangeError("a mixture of experts of Hugging Face has experts, but moe=None")
    return c.moe


def _every_layer(c: GptConfig, name: str) -> None:
    if len(c.layer_group) > 1 or c.leading_layers:
        raise InterchangeError(
            f"Hugging Face's {name} has experts in every layer, but sparse_every={c.sparse_every} and "
            f"leading_layers={c.leading_layers}"
        )


# --- what each class has ---


def _mixtral(theirs: Mapping[str, Any], layers: int) -> Fields:
    only(theirs, router_jitter_noise=(0, 0.0))
    window = setting(theirs, "sliding_window", int, None)
    moe = _experts(theirs, "num_local_experts", norm_topk=True)
    return dict(kinds=pattern([LayerVariant(window=window or 0)] * layers), moe=moe, sparse_every=1)


def _write_mixtral(c: GptConfig) -> Fields:
    _every_layer(c, "Mixtral")
    demand(_mixture(c), "Mixtral", norm_topk=True, hidden_dim=0)
    return write_one_window(c) | _write_experts(c, "Mixtral", "num_local_experts", "norm_topk")


def _sparse_layers(theirs: Mapping[str, Any], layers: int) -> Fields:
    """Returns which layers of a Qwen have experts: every n-th, or all but the first."""
    every, dense_ = setting(theirs, "decoder_sparse_step", int), setting(theirs, "mlp_only_layers", list, [])
    if sorted(dense_) == list(range(len(dense_))) and every == 1 and len(dense_) < layers:
        return dict(sparse_every=1, leading_layers=len(dense_))
    if dense_ or every < 1 or layers % every:
        raise InterchangeError(
            f"config.json: decoder_sparse_step={every} with mlp_only_layers={json.dumps(dense_)[:60]} of {layers} layers is not "
            "supported, only experts in every n-th layer, or in all but the first"
        )
    return dict(sparse_every=every)


def _write_sparse_layers(c: GptConfig, name: str) -> Fields:
    if (c.sparse_first and len(c.layer_group) > 1) or (c.leading_layers and len(c.layer_group) > 1):
        raise InterchangeError(
            f"Hugging Face's {name} has experts in every n-th layer, or in all but the first, but sparse_first={c.sparse_first} "
            f"and leading_layers={c.leading_layers}"
        )
    return {"decoder_sparse_step": len(c.layer_group), "mlp_only_layers": list(range(c.leading_layers))}


def _qwen_experts(theirs: Mapping[str, Any], **fields: Any) -> MoeConfig:
    hidden, norm = setting(theirs, "moe_intermediate_size", int), setting(theirs, "norm_topk_prob", bool)
    return _experts(theirs, "num_experts", hidden_dim=hidden, norm_topk=norm, **fields)


def _write_qwen_experts(c: GptConfig, name: str, *free: str) -> Fields:
    moe = _mixture(c)
    sizes = {"moe_intermediate_size": moe.hidden_dim or c.hidden_dim, "norm_topk_prob": moe.norm_topk}
    return sizes | _write_experts(c, name, "num_experts", "norm_topk", *free) | _write_sparse_layers(c, name)


def _qwen2_moe(theirs: Mapping[str, Any], layers: int) -> Fields:
    bias, first = setting(theirs, "qkv_bias", bool), setting(theirs, "max_window_layers", int)
    shared = setting(theirs, "shared_expert_intermediate_size", int)
    on = setting(theirs, "use_sliding_window", bool)
    if not on and any(name != "full_attention" for name in setting(theirs, "layer_types", list, [])):
        raise InterchangeError("config.json: layer_types has layers that slide, but use_sliding_window is false")
    kinds = windows(theirs, layers, lambda i: i % 2 == 0 and i < first) if on else {}
    return (
        _sparse_layers(theirs, layers)
        | kinds
        | dict(
            attention_bias=bias,
            output_bias="no" if bias else "same",
            moe=_qwen_experts(theirs, shared_dim=shared, shared_gate=True),
        )
    )


def _write_qwen2_moe(c: GptConfig) -> Fields:
    moe = _mixture(c)
    if not moe.shared_gate:
        raise InterchangeError(f"Hugging Face's Qwen2Moe has a gated shared expert, but shared_gate={moe.shared_gate}")
    only_windows(c, "Qwen2Moe")
    return (
        write_windows(c)
        | _write_qwen_experts(c, "Qwen2Moe", "shared_dim", "shared_gate")
        | {
            "shared_expert_intermediate_size": moe.shared_dim,
            "use_sliding_window": any(kind.window for kind in c.kinds),
            "qkv_bias": c.attention_bias,
        }
    )


def _qwen3_moe(theirs: Mapping[str, Any], layers: int) -> Fields:
    window = setting(theirs, "sliding_window", int, None) if setting(theirs, "use_sliding_window", bool) else None
    kinds = pattern([LayerVariant(window=window or 0)] * layers)
    return _sparse_layers(theirs, layers) | dict(kinds=kinds, moe=_qwen_experts(theirs))


def _write_qwen3_moe(c: GptConfig) -> Fields:
    on = {"use_sliding_window": bool(c.kinds)}
    return write_one_window(c) | on | _write_qwen_experts(c, "Qwen3Moe")


def _olmoe(theirs: Mapping[str, Any], layers: int) -> Fields:
    del layers
    only(theirs, clip_qkv=(), sliding_window=())
    return dict(moe=_experts(theirs, "num_experts", norm_topk=setting(theirs, "norm_topk_prob", bool)), sparse_every=1)


def _write_olmoe(c: GptConfig) -> Fields:
    _every_layer(c, "Olmoe")
    if c.heads * c.head_dim != c.model_dim:
        raise InterchangeError(f"Hugging Face's Olmoe has heads of model_dim / heads, but head_dim={c.head_dim}, heads={c.heads}")
    demand(_mixture(c), "Olmoe", hidden_dim=0)
    written = _write_experts(c, "Olmoe", "num_experts", "norm_topk")
    return written | {"norm_topk_prob": _mixture(c).norm_topk, "clip_qkv": None}


_OSS_ROPE = dict(
    rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=4096
)


def _gpt_oss(theirs: Mapping[str, Any], layers: int) -> Fields:
    only(theirs, swiglu_alpha=(1.702,), swiglu_limit=(7, 7.0), hidden_act=("silu",))
    if all(theirs.get(key) is None for key in ("rope_scaling", "rope_parameters")):  # an empty one is no YaRN
        theirs = {**theirs, "rope_parameters": _OSS_ROPE | {"rope_theta": theirs.get("rope_theta", 150_000.0)}}
    width, heads = setting(theirs, "hidden_size", int), setting(theirs, "num_attention_heads", int)
    head_dim = setting(theirs, "head_dim", int, width // heads)
    longest = setting(theirs, "max_position_embeddings", int)
    base, rotary = rope.read(theirs, head_dim, theta=150_000.0, longest=longest)
    moe = _experts(theirs, "num_local_experts", norm_topk=True, router_bias=True, activation="clipped_swiglu", gated="yes")
    return windows(theirs, layers, lambda i: i % 2 == 0) | dict(rotary_base=base, rotary=rotary, moe=moe, sparse_every=1)


def _write_gpt_oss(c: GptConfig) -> Fields:
    _every_layer(c, "GptOss")
    only_windows(c, "GptOss")
    demand(_mixture(c), "GptOss", norm_topk=True, router_bias=True, activation="clipped_swiglu", gated="yes", hidden_dim=0)
    free = ("norm_topk", "router_bias", "activation", "gated")
    written = write_windows(c, 128) | _write_experts(c, "GptOss", "num_local_experts", *free)
    if c.rotary is None:  # an absent one would be YaRN
        written["rope_scaling"] = {"rope_type": "default"}
    return written


def _deepseek(theirs: Mapping[str, Any], layers: int) -> Fields:
    only(theirs, scoring_func=("sigmoid",), topk_method=("noaux_tc",), moe_layer_freq=(1,), attention_bias=(False,))
    heads, kv_heads = setting(theirs, "num_attention_heads", int), setting(theirs, "num_key_value_heads", int, None)
    if kv_heads not in (None, heads):
        raise InterchangeError(f"config.json: num_key_value_heads={kv_heads}: only as num_attention_heads={heads}")
    rotated, plain = setting(theirs, "qk_rope_head_dim", int), setting(theirs, "qk_nope_head_dim", int)
    base, rotary = rope.read(theirs, rotated, theta=10_000.0, longest=setting(theirs, "max_position_embeddings", int))
    hidden, shared = setting(theirs, "moe_intermediate_size", int), setting(theirs, "n_shared_experts", int)
    if shared < 1:
        raise InterchangeError(f"config.json: n_shared_experts={shared} is not supported, only 1 and more")
    moe = _experts(
        theirs,
        "n_routed_experts",
        norm_topk=setting(theirs, "norm_topk_prob", bool, False),
        score="sigmoid",
        correction_bias=True,
        expert_groups=setting(theirs, "n_group", int),
        chosen_groups=setting(theirs, "topk_group", int),
        gate_scale=setting(theirs, "routed_scaling_factor", float),
        hidden_dim=hidden,
        shared_dim=hidden * shared,
    )
    latent = Latent(
        rank=setting(theirs, "kv_lora_rank", int),
        query_rank=setting(theirs, "q_lora_rank", int, 0),
        head_dim=plain,
        value_dim=setting(theirs, "v_head_dim", int),
        interleaved=setting(theirs, "rope_interleave", bool, False),
    )
    return dict(
        latent=latent,
        head_dim=rotated,
        kv_heads=0,
        rotary_base=base,
        rotary=rotary,
        moe=moe,
        sparse_every=1,
        leading_layers=setting(theirs, "first_k_dense_replace", int),
        attention_scalar=_scalar(plain + rotated, theirs),
    )


def _scalar(size: int, theirs: Mapping[str, Any]) -> float:
    """Returns by the square root of which logits are divided: the head's size, less YaRN's factor of either side, squared."""
    settings = theirs.get("rope_scaling") or theirs.get("rope_parameters") or {}
    of_all = settings.get("mscale_all_dim") or 0.0
    if settings.get("rope_type", settings.get("type", "default")) == "default" or not of_all:
        return float(size)
    return size / rope.magnitude(settings["factor"], of_all) ** 4


def _write_deepseek(c: GptConfig) -> Fields:
    moe, latent = _mixture(c), c.latent
    if (
        latent is None
        or len(c.layer_group) > 1
        or moe.shared_dim % (hidden := moe.hidden_dim or c.hidden_dim)
        or not moe.shared_dim
    ):
        raise InterchangeError(
            f"no DeepSeek-V3 of Hugging Face is like this model: latent={latent}, sparse_every={c.sparse_every}, "
            f"shared_dim={moe.shared_dim}"
        )
    demand(latent, "DeepSeek-V3", norm_eps=1e-6)
    demand(moe, "DeepSeek-V3", score="sigmoid", correction_bias=True)
    free = "score", "norm_topk", "correction_bias", "expert_groups", "chosen_groups", "gate_scale", "shared_dim"
    size = latent.head_dim + c.head_dim
    return (
        _write_experts(c, "DeepSeek-V3", "n_routed_experts", *free)
        | _write_scale(c, size)
        | {
            "moe_intermediate_size": hidden,
            "n_shared_experts": moe.shared_dim // hidden,
            "norm_topk_prob": moe.norm_topk,
            "n_group": moe.expert_groups,
            "topk_group": moe.chosen_groups,
            "routed_scaling_factor": moe.gate_scale,
            "first_k_dense_replace": c.leading_layers,
            "num_nextn_predict_layers": 0,
            "kv_lora_rank": latent.rank,
            "q_lora_rank": latent.query_rank or None,
            "qk_nope_head_dim": latent.head_dim,
            "qk_rope_head_dim": c.head_dim,
            "v_head_dim": latent.value_dim,
            "rope_interleave": latent.interleaved,
        }
    )


def _write_scale(c: GptConfig, size: int) -> Fields:
    """Returns the rotary settings with YaRN's factor by which logits are scaled, where they are."""
    written = rope.write(c.rotary_base, c.rotary, c.head_dim)
    if c.attention_scalar in (0, size):
        return written
    factor = c.rotary.factor if c.rotary else 1.0
    wanted = (size / c.attention_scalar) ** 0.25
    of_all = (wanted - 1) / (rope.magnitude(factor) - 1) if factor > 1 else 0.0
    if not c.rotary or c.rotary.scaling != "yarn" or of_all <= 0:
        raise InterchangeError(
            f"no DeepSeek-V3 of Hugging Face is like this model: attention_scalar={c.attention_scalar} without YaRN; nearest is "
            f"{size}"
        )
    written["rope_scaling"] = written["rope_scaling"] | {"mscale_all_dim": of_all}
    return written


_FREE = ("kinds", "moe", "sparse_every", "leading_layers")
_SAME = "num_experts", "num_local_experts"
MIXTURES: dict[str, Dialect] = {
    "mixtral": Dialect(
        name="Mixtral",
        defaults=_ROUTED
        | dict(
            num_key_value_heads=8,
            rms_norm_eps=1e-5,
            max_position_embeddings=131_072,
            sliding_window=None,
            num_local_experts=8,
            num_experts_per_tok=2,
        ),
        same=_SAME[::-1],
        read=_mixtral,
        free=_FREE,
        write=_write_mixtral,
        theta=1_000_000.0,
        biases=(False, False, False),
    ),
    "qwen2_moe": Dialect(
        name="Qwen2Moe",
        defaults=_ROUTED
        | dict(
            num_key_value_heads=16,
            max_position_embeddings=32_768,
            use_sliding_window=False,
            sliding_window=4096,
            max_window_layers=28,
            layer_types=None,
            qkv_bias=True,
            decoder_sparse_step=1,
            mlp_only_layers=None,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            num_experts_per_tok=4,
            num_experts=60,
            norm_topk_prob=False,
        ),
        same=_SAME,
        read=_qwen2_moe,
        free=(*_FREE, "attention_bias"),
        write=_write_qwen2_moe,
        biases=(None, False, False),
    ),
    "qwen3_moe": Dialect(
        name="Qwen3Moe",
        defaults=_ROUTED
        | dict(
            num_key_value_heads=4,
            max_position_embeddings=32_768,
            use_sliding_window=False,
            sliding_window=4096,
            decoder_sparse_step=1,
            mlp_only_layers=None,
            moe_intermediate_size=768,
            num_experts_per_tok=8,
            num_experts=128,
            norm_topk_prob=False,
        ),
        same=_SAME,
        read=_qwen3_moe,
        shape=qk_norm("rms", "head"),
        free=_FREE,
        write=_write_qwen3_moe,
        biases=(None, None, False),
    ),
    "olmoe": Dialect(
        name="Olmoe",
        defaults=_ROUTED
        | dict(
            rms_norm_eps=1e-5,
            max_position_embeddings=4096,
            num_experts_per_tok=8,
            num_experts=64,
            norm_topk_prob=False,
            router_aux_loss_coef=0.01,
        ),
        same=_SAME,
        read=_olmoe,
        shape=qk_norm("rms", "all"),
        free=_FREE,
        write=_write_olmoe,
        biases=(None, None, False),
    ),
    "gpt_oss": Dialect(
        name="GptOss",
        defaults=_ROUTED
        | dict(
            num_key_value_heads=8,
            head_dim=64,
            rms_norm_eps=1e-5,
            max_position_embeddings=131_072,
            sliding_window=128,
            layer_types=None,
            num_local_experts=128,
            num_experts_per_tok=4,
            attention_bias=True,
        ),
        same=_SAME[::-1],
        nullable=("head_dim",),
        read=_gpt_oss,
        shape=dict(sinks=True),
        free=_FREE,
        write=_write_gpt_oss,
        theta=150_000.0,
        biases=(None, None, True),
    ),
    "deepseek_v3": Dialect(
        name="DeepseekV3",
        defaults=_ROUTED
        | dict(
            num_key_value_heads=128,
            max_position_embeddings=4096,
            moe_intermediate_size=2048,
            n_shared_experts=1,
            n_routed_experts=256,
            routed_scaling_factor=2.5,
            kv_lora_rank=512,
            q_lora_rank=1536,
            qk_rope_head_dim=64,
            v_head_dim=128,
            qk_nope_head_dim=128,
            n_group=8,
            topk_group=4,
            num_experts_per_tok=8,
            first_k_dense_replace=3,
            norm_topk_prob=True,
            rope_interleave=True,
        ),
        same=("n_routed_experts", *_SAME),
        nullable=("q_lora_rank", "norm_topk_prob", "rope_interleave"),
        read=_deepseek,
        free=(*_FREE, "latent", "attention_scalar"),
        write=_write_deepseek,
        biases=(False, False, False),
    ),
}
