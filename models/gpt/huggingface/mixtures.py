"""The classes of `transformers` with mixtures of experts: what each adds to LLaMA, as dialects.py for dense decoders. No JAX."""

import json
from typing import Any

from models.gpt.config import GptConfig
from models.gpt.huggingface import base, rope
from models.gpt.huggingface.base import Dialect
from models.interchange import InterchangeError
from models.interchange.rows import Row, Setting, allowed, constant, fixed
from models.interchange.settings import Fields, Settings, setting, under, value_at, without
from models.parts.attention.config import Latent, LayerVariant, Rotary, Yarn
from models.parts.moe.config import Correction, ExpertGroups, MoeConfig, SharedExpert, TopK

_GROUP = 64  # tokens of a routing group: of our own training; without a capacity it decides nothing
# Nothing is dropped, and the balance loss is pooled over layers.
_INITIAL: Fields = {
    "moe": MoeConfig,
    "moe.router": TopK,
    "moe.group_size": _GROUP,
    "moe.capacity.factor": 0.0,
    "moe.losses.balance": "pooled",
}
# What Mixtral's mixture has no choice of.
_PLAIN: Fields = {
    "moe.router.class": lambda c: "TopK",
    **under("moe.router", score="softmax", normalized=False, bias=False, correction=None, groups=None, scale=1.0),
    **under("moe.experts", activation="same", gated="same", shared=None),
    "moe.capacity.eval_factor": 0.0,
    **under("moe.router", noise=None, jitter=0.0),
    "moe.experts.token_dropout": 0.0,
}
_IN_EVERY_LAYER: Fields = under("moe", every=1, leading=0)


def _mixture(
    kind: str,
    name: str,
    *rows: Row,
    defaults: Fields,
    fields: Fields,
    free: tuple[str, ...] = (),
    initial: Fields | None = None,
    **more: Any,
) -> dict[str, Dialect]:
    """Returns a class of mixtures; arguments are as of `dialect`, but that `free` may name fields of the mixture."""
    return base.dialect(
        kind,
        name,
        *rows,
        defaults=defaults,
        fields=without(_PLAIN, *free) | fields,
        free=("moe", *free),
        initial=_INITIAL | (initial or {}),
        **more,
    )


def _routing(key: str, experts: int, choices: int, weight: float = 0.001) -> tuple[Row, ...]:
    """Returns the rows of the router and its loss, which counts where it is asked for, given what absent keys mean.

    Args:
      key: of the number of experts.
    """

    def read(theirs: Settings) -> Fields:
        counts = setting(theirs, "output_router_logits", bool)
        return {"moe.losses.balance_weight": setting(theirs, "router_aux_loss_coef", float) if counts else 0.0}

    def write(c: GptConfig) -> dict[str, Any]:
        assert c.moe is not None
        losses = c.moe.losses
        counts = losses.balance == "pooled" and losses.balance_weight > 0
        return {"router_aux_loss_coef": losses.balance_weight, "output_router_logits": counts}

    return (
        Setting(key, "moe.experts.count", int, experts),
        Setting("num_experts_per_tok", "moe.router.choices", int, choices),
        Row(read, write, {"router_aux_loss_coef": weight, "output_router_logits": False}),
    )


def _size_of_experts(c: GptConfig) -> int:
    assert c.moe is not None
    return c.moe.experts.hidden_dim or c.feed_forward.hidden_dim


def _hidden(default: int) -> Row:
    return Row(
        lambda theirs: {"moe.experts.hidden_dim": setting(theirs, "moe_intermediate_size", int)},
        lambda c: {"moe_intermediate_size": _size_of_experts(c)},
        {"moe_intermediate_size": default},
    )


_NORM_TOPK = Setting("norm_topk_prob", "moe.router.normalized", bool, False)


# --- Qwen ---


def _read_sparse_layers(theirs: Settings) -> Fields:
    """Returns which layers of a Qwen have experts: every n-th, or all but the first."""
    layers = setting(theirs, "num_hidden_layers", int)
    every, dense = setting(theirs, "decoder_sparse_step", int), setting(theirs, "mlp_only_layers", list, [])
    if sorted(dense) == list(range(len(dense))) and every == 1 and len(dense) < layers:
        return {"moe.every": 1, "moe.leading": len(dense)}
    if dense or every < 1 or layers % every:
        raise InterchangeError(
            f"config.json: decoder_sparse_step={every} with mlp_only_layers={json.dumps(dense)[:60]} of {layers} layers is not "
            "supported, only experts in every n-th layer, or in all but the first"
        )
    return {"moe.every": every}


def _write_sparse_layers(c: GptConfig) -> dict[str, Any]:
    assert c.moe is not None
    if len(c.layer_group) > 1 and (c.moe.first or c.leading):
        raise InterchangeError(
            f"Hugging Face's Qwen has experts in every n-th layer, or in all but the first, but moe.first={c.moe.first} "
            f"and moe.leading={c.leading}"
        )
    return {"decoder_sparse_step": len(c.layer_group), "mlp_only_layers": list(range(c.leading))}


def _read_qwen2_windows(theirs: Settings) -> Fields:
    first, on = setting(theirs, "max_window_layers", int), setting(theirs, "use_sliding_window", bool)
    if on:
        return base.windows(theirs, lambda i: i % 2 == 0 and i < first)
    if any(name != base.FULL for name in setting(theirs, "layer_types", list, [])):
        raise InterchangeError("config.json: layer_types has layers that slide, but use_sliding_window is false")
    return {}


def _read_qwen3_window(theirs: Settings) -> Fields:
    window = setting(theirs, "sliding_window", int, None) if setting(theirs, "use_sliding_window", bool) else None
    return {"attention.pattern": base.pattern([LayerVariant(window=window or 0)] * setting(theirs, "num_hidden_layers", int))}


def _qwen_experts(hidden: int, experts: int, choices: int) -> tuple[Row, ...]:
    sparse = Row(_read_sparse_layers, _write_sparse_layers, {"decoder_sparse_step": 1, "mlp_only_layers": None})
    return _hidden(hidden), _NORM_TOPK, *_routing("num_experts", experts, choices), sparse


_QWEN: Fields = dict(max_position_embeddings=32_768, use_sliding_window=False, sliding_window=4096)


# --- gpt-oss ---

_OSS_ROPE = dict(
    rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=4096
)


def _read_oss_rotary(theirs: Settings) -> Rotary:
    if all(theirs.get(key) is None for key in ("rope_scaling", "rope_parameters")):  # an empty one is no YaRN
        theirs = {**theirs, "rope_parameters": _OSS_ROPE | {"rope_theta": theirs.get("rope_theta", 150_000.0)}}
    return base.read_rotary(theirs, theta=150_000.0)


# --- DeepSeek ---


def _read_deepseek_heads(theirs: Settings) -> Fields:
    heads, kv_heads = setting(theirs, "num_attention_heads", int), setting(theirs, "num_key_value_heads", int, None)
    if kv_heads not in (None, heads):
        raise InterchangeError(f"config.json: num_key_value_heads={kv_heads}: only as num_attention_heads={heads}")
    return {"attention.heads": heads}


def _read_shared(theirs: Settings) -> Fields:
    hidden, shared = setting(theirs, "moe_intermediate_size", int), setting(theirs, "n_shared_experts", int)
    if shared < 1:
        raise InterchangeError(f"config.json: n_shared_experts={shared} is not supported, only 1 and more")
    return {"moe.experts.shared": SharedExpert(hidden_dim=hidden * shared)}


def _write_shared(c: GptConfig) -> dict[str, Any]:
    shared = c.moe.experts.shared if c.moe else None
    if shared is None or shared.gated or shared.hidden_dim % _size_of_experts(c):
        raise InterchangeError(f"no DeepSeek-V3 of Hugging Face is like this model: shared={shared}")
    return {"n_shared_experts": shared.hidden_dim // _size_of_experts(c)}


def _read_groups(theirs: Settings) -> Fields:
    groups = ExpertGroups(count=setting(theirs, "n_group", int), chosen=setting(theirs, "topk_group", int))
    return {"moe.router.groups": groups if groups.count > 1 else None}


def _write_groups(c: GptConfig) -> dict[str, Any]:
    groups = value_at(c, "moe.router.groups") or ExpertGroups(count=1, chosen=1)
    return {"n_group": groups.count, "topk_group": groups.chosen}


def _read_scale(theirs: Settings) -> Fields:
    size = setting(theirs, "qk_nope_head_dim", int) + setting(theirs, "qk_rope_head_dim", int)
    return {"attention.scale_dim": _scalar(size, theirs)}


def _scalar(size: int, theirs: Settings) -> float:
    """Returns by the square root of which logits are divided: the head's size, less YaRN's factor of either side, squared."""
    settings = theirs.get("rope_scaling") or theirs.get("rope_parameters") or {}
    of_all = settings.get("mscale_all_dim") or 0.0
    if settings.get("rope_type", settings.get("type", "default")) == "default" or not of_all:
        return float(size)
    return size / rope.magnitude(settings["factor"], of_all) ** 4


def _write_scale(c: GptConfig) -> dict[str, Any]:
    """Returns the rotary settings with YaRN's factor by which logits are scaled, where they are."""
    size, rotary = c.attention.head_dim + c.attention.rotary_dim, base.rotary_of(c)
    written = rope.write(rotary, c.attention.rotary_dim)
    if c.attention.scale_dim in (0, size):
        return written
    factor = rotary.scaling.factor if isinstance(rotary.scaling, Yarn) else 1.0
    wanted = (size / c.attention.scale_dim) ** 0.25
    of_all = (wanted - 1) / (rope.magnitude(factor) - 1) if factor > 1 else 0.0
    if of_all <= 0:
        raise InterchangeError(
            f"no DeepSeek-V3 of Hugging Face is like this model: attention.scale_dim={c.attention.scale_dim} without YaRN; "
            f"nearest is {size}"
        )
    written["rope_scaling"] = written["rope_scaling"] | {"mscale_all_dim": of_all}
    return written


_SAME = "num_experts", "num_local_experts"
MIXTURES: dict[str, Dialect] = {
    **_mixture(
        "mixtral",
        "Mixtral",
        base.ONE_WINDOW,
        *_routing("num_local_experts", 8, 2),
        allowed("router_jitter_noise", 0, 0.0),
        defaults=dict(num_key_value_heads=8, rms_norm_eps=1e-5, max_position_embeddings=131_072),
        same=_SAME[::-1],
        fields=_IN_EVERY_LAYER | {"moe.router.normalized": True, "moe.experts.hidden_dim": 0},
        free=("attention.pattern",),
        biases=(False, False, False),
        rotary=base.rotary_row(theta=1_000_000.0),
    ),
    **_mixture(
        "qwen2_moe",
        "Qwen2Moe",
        base.some_windows("Qwen2Moe", _read_qwen2_windows, switched=True),
        *_qwen_experts(1408, 60, 4),
        Setting("shared_expert_intermediate_size", "moe.experts.shared.hidden_dim", int, 5632),
        Setting("qkv_bias", "attention.biases", bool, True, lambda on: "qkv" if on else "", lambda biases: "q" in biases),
        defaults=_QWEN | dict(num_key_value_heads=16, max_window_layers=28, layer_types=None),
        same=_SAME,
        fields={"moe.experts.shared.gated": True},
        initial={"moe.experts.shared": SharedExpert},
        free=("attention.pattern", "moe.router.normalized", "moe.experts.shared"),
        biases=(None, False, False),
    ),
    **_mixture(
        "qwen3_moe",
        "Qwen3Moe",
        Row(_read_qwen3_window, lambda c: base.write_window(c) | {"use_sliding_window": bool(c.attention.pattern)}),
        *_qwen_experts(768, 128, 8),
        defaults=_QWEN | dict(num_key_value_heads=4),
        same=_SAME,
        fields=base.qk_norm("rms", "head"),
        free=("attention.pattern", "moe.router.normalized"),
        biases=(None, None, False),
    ),
    **_mixture(
        "olmoe",
        "Olmoe",
        *_routing("num_experts", 64, 8, 0.01),
        _NORM_TOPK,
        fixed("clip_qkv", None),
        allowed("sliding_window"),
        defaults=dict(rms_norm_eps=1e-5, max_position_embeddings=4096),
        same=_SAME,
        fields=_IN_EVERY_LAYER
        | base.qk_norm("rms", "all")
        | {"moe.experts.hidden_dim": 0, "attention.head_dim": lambda c: c.model_dim // c.attention.heads},
        free=("moe.router.normalized",),
        biases=(None, None, False),
    ),
    **_mixture(
        "gpt_oss",
        "GptOss",
        base.some_windows("GptOss", lambda theirs: base.windows(theirs, lambda i: i % 2 == 0), 128),
        *_routing("num_local_experts", 128, 4),
        allowed("swiglu_alpha", 1.702),
        allowed("swiglu_limit", 7, 7.0),
        allowed("hidden_act", "silu"),
        Row(
            write=lambda c: {} if base.rotary_of(c).scaling else {"rope_scaling": {"rope_type": "default"}}
        ),  # an absent one would be YaRN
        defaults=dict(
            num_key_value_heads=8,
            head_dim=64,
            rms_norm_eps=1e-5,
            max_position_embeddings=131_072,
            sliding_window=128,
            layer_types=None,
            attention_bias=True,
        ),
        same=_SAME[::-1],
        nullable=("head_dim",),
        fields=_IN_EVERY_LAYER
        | {"attention.sinks": True}
        | under("moe.router", normalized=True, bias=True)
        | under("moe.experts", activation="clipped_swiglu", gated="yes", hidden_dim=0),
        free=("attention.pattern",),
        biases=(None, None, True),
        rotary=base.rotary_row(_read_oss_rotary),
    ),
    **_mixture(
        "deepseek_v3",
        "DeepseekV3",
        *_routing("n_routed_experts", 256, 8),
        Row(_read_scale, _write_scale),
        _hidden(2048),
        Row(_read_shared, _write_shared, {"n_shared_experts": 1}),
        _NORM_TOPK,
        Row(_read_groups, _write_groups, {"n_group": 8, "topk_group": 4}),
        Setting("routed_scaling_factor", "moe.router.scale", float, 2.5),
        Setting("first_k_dense_replace", "moe.leading", int, 3),
        constant("num_nextn_predict_layers", 0),
        Setting("kv_lora_rank", "attention.rank", int, 512),
        Setting("q_lora_rank", "attention.query_rank", int, 0, encode=lambda rank: rank or None),
        Setting("qk_nope_head_dim", "attention.head_dim", int, 128),
        Setting("qk_rope_head_dim", "attention.rotary_dim", int, 64),
        Setting("v_head_dim", "attention.value_dim", int, 128),
        Setting("rope_interleave", "attention.interleaved", bool, False),
        allowed("scoring_func", "sigmoid"),
        allowed("topk_method", "noaux_tc"),
        allowed("moe_layer_freq", 1),
        allowed("attention_bias", False),
        defaults=dict(
            num_key_value_heads=128, max_position_embeddings=4096, q_lora_rank=1536, norm_topk_prob=True, rope_interleave=True
        ),
        same=("n_routed_experts", *_SAME),
        nullable=("q_lora_rank", "norm_topk_prob", "rope_interleave"),
        fields={
            "attention.class": lambda c: "Latent",
            "attention.norm_eps": 1e-6,
            "moe.router.score": "sigmoid",
            "moe.router.correction.class": lambda c: "Correction",
            "moe.every": 1,
        },
        initial={"attention": Latent, "moe.router.correction": Correction()},
        heads=Row(_read_deepseek_heads, base.write_heads),
        free=(
            *(f"attention.{name}" for name in ("scale_dim", "sinks", "per_dim_scale", "logit_cap", "qk_norm")),
            *(f"moe.router.{name}" for name in ("normalized", "correction", "groups", "scale")),
            "moe.experts.shared",
        ),
        biases=(False, False, False),
        rotary=base.rotary_row(size="qk_rope_head_dim"),
    ),
}
