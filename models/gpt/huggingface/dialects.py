"""The dense classes of `transformers` of LLaMA's shape: what each adds to LLaMA, in one table. No JAX.

A row says what an absent key of a config.json means (in `transformers` 5.23), which settings change what the model computes, and
how they are written.
"""

from typing import Any

from models.gpt.config import GptConfig
from models.gpt.huggingface import base, rope
from models.gpt.huggingface.base import Dialect
from models.interchange import InterchangeError
from models.interchange.rows import Row, Setting, allowed
from models.interchange.settings import Fields, Settings, setting
from models.parts.attention.config import LayerVariant, Rotary

# --- Qwen ---


def _read_qwen(theirs: Settings) -> Fields:
    first = setting(theirs, "max_window_layers", int)
    on = setting(theirs, "use_sliding_window", bool) and setting(theirs, "sliding_window", int, None) is not None
    if not on:
        if any(base.sliding_layers(theirs, lambda i: False)):
            raise InterchangeError("config.json: layer_types has layers that slide, but use_sliding_window is false")
        return {"attention.pattern": ()}
    return base.windows(theirs, lambda i: i >= first)


_QWEN_WINDOWS = base.some_windows("Qwen", _read_qwen, switched=True)
_QWEN: Fields = dict(
    use_sliding_window=False,
    sliding_window=4096,
    max_window_layers=28,
    layer_types=None,
    max_position_embeddings=32_768,
    num_key_value_heads=32,
)


# --- Gemma ---


def _read_gemma3(theirs: Settings) -> Fields:
    every = setting(theirs, "sliding_window_pattern", int)
    local = {"rope_theta": theirs.get("rope_local_base_freq", 1e4)} | setting(_by_type(theirs), base.SLIDING, dict, {})
    rotary = _turning(theirs, local, theta=1e4, types={"default": "default"})
    return base.windows(theirs, lambda i: (i + 1) % every != 0, LayerVariant(base=rotary.base, scaled=False))


def _read_gemma3_rotary(theirs: Settings) -> Rotary:
    full = {"rope_theta": theirs.get("rope_theta", 1e6)} | setting(_by_type(theirs), base.FULL, dict, {})
    return _turning(theirs, full | setting(theirs, "rope_scaling", dict, {}), theta=1e6)


def _by_type(theirs: Settings) -> dict[str, Any]:
    """Returns the settings of rotary positions by the type of a layer."""
    by_type = setting(theirs, "rope_parameters", dict, {})
    if set(by_type) - {base.SLIDING, base.FULL}:
        raise InterchangeError(f"config.json: rope_parameters={str(by_type)[:80]}: must have {base.SLIDING!r} and {base.FULL!r}")
    return by_type


def _turning(theirs: Settings, settings: Settings, **options: Any) -> Rotary:
    head_dim, longest = setting(theirs, "head_dim", int), setting(theirs, "max_position_embeddings", int)
    return rope.turning(settings, head_dim, longest=longest, **options)


def _write_gemma3(c: GptConfig) -> dict[str, Any]:
    local = {(kind.base, kind.scaled, kind.rotary) for kind in c.attention.pattern if kind.window}
    full = {kind for kind in c.attention.pattern if not kind.window}
    if len(local) > 1 or any(kind != LayerVariant() for kind in full) or any(scaled for _, scaled, _ in local):
        raise InterchangeError(
            f"Hugging Face's Gemma 3 has one kind of layers beside those with windows, but pattern={c.attention.pattern}"
        )
    return base.write_windows(c, 4096)


def _write_local_base(c: GptConfig) -> dict[str, Any]:
    return {
        "rope_local_base_freq": next((kind.base for kind in c.attention.pattern if kind.window), 0.0) or base.rotary_of(c).base
    }


def _scaled_embeddings(theirs: Settings) -> Fields:
    return {"embedding_scale": setting(theirs, "hidden_size", int) ** 0.5}


def _released_gelu(theirs: Settings) -> Fields:
    """Returns the activation of Gemma's first folders, whose "gelu" means the tanh form."""
    return {"feed_forward.activation": "gelu_tanh"} if theirs.get("hidden_act") == "gelu" else {}


def _check_gelu(c: GptConfig) -> dict[str, Any]:
    if c.feed_forward.activation == "gelu":
        raise InterchangeError("Hugging Face's Gemma takes feed_forward.activation='gelu' for 'gelu_tanh', which is the nearest")
    return {}


def _check_scaled(c: GptConfig) -> dict[str, Any]:
    if c.embedding_scale != c.model_dim**0.5:
        raise InterchangeError(f"Hugging Face's Gemma has embedding_scale={c.model_dim**0.5}, the model {c.embedding_scale}")
    return {}


def _gemma(kind: str, name: str, layers: Row, *rows: Row, **more: Any) -> dict[str, Dialect]:
    """Returns a Gemma, given the row of what its layers differ in, and further ones."""
    return base.dialect(
        kind,
        name,
        layers,
        Setting("query_pre_attn_scalar", "attention.scale_dim", float, encode=lambda n: int(n) if n == int(n) else n),
        Setting("final_logit_softcapping", "output.cap", float, 0.0, encode=lambda cap: cap or None),
        Row(_scaled_embeddings, _check_gemma),
        *rows,
        free=("attention.pattern", "attention.scale_dim", "output.cap", "embedding_scale", *more.pop("free", ())),
        biases=(None, None, False),
        **more,
    )


def _check_gemma(c: GptConfig) -> dict[str, Any]:
    if not c.attention.scale_dim:
        raise InterchangeError("Hugging Face's Gemma 2 and 3 have an attention.scale_dim, the model has none")
    return _check_scaled(c)


_GEMMA: Fields = dict(
    head_dim=256,
    num_key_value_heads=4,
    hidden_activation="gelu_pytorch_tanh",
    tie_word_embeddings=True,
    query_pre_attn_scalar=256.0,
    sliding_window=4096,
    layer_types=None,
)
_SANDWICH: Fields = {"norm.order": "sandwich", "norm.kind": "rms_plus_one"}


# --- SmolLM3 ---


def _read_smollm3(theirs: Settings) -> Fields:
    layers = setting(theirs, "num_hidden_layers", int)
    turned, every = setting(theirs, "no_rope_layers", list, None), setting(theirs, "no_rope_layer_interval", int)
    turned = [int((i + 1) % every != 0) for i in range(layers)] if turned is None else turned[:layers]
    if len(turned) < layers or not all(type(turn) is int for turn in turned):
        raise InterchangeError(f"config.json: no_rope_layers={str(turned)[:80]}: must be 0 or 1 for each of {layers} layers")
    window = setting(theirs, "sliding_window", int, None) if setting(theirs, "use_sliding_window", bool) else None
    slides = base.sliding_layers(theirs, lambda i: bool(window) and not turned[i])
    if any(slides) and not window:
        raise InterchangeError("config.json: layer_types has layers that slide, but there is no window")
    kinds = [LayerVariant(window=(window or 0) * slide, rotary=bool(turn)) for slide, turn in zip(slides, turned, strict=True)]
    return {"attention.pattern": base.pattern(kinds)}


def _write_smollm3(c: GptConfig) -> dict[str, Any]:
    kinds = base.of_layers(c)
    if any(kind.base or not kind.scaled for kind in kinds):
        raise InterchangeError(f"Hugging Face's SmolLM3 has one base for all layers, but pattern={c.attention.pattern}"[:200])
    return base.write_windows(c) | {
        "no_rope_layers": [int(kind.rotary) for kind in kinds],
        "use_sliding_window": any(kind.window for kind in kinds),
    }


# --- Granite ---


def _read_multiplier(theirs: Settings) -> Fields:
    """Returns the dimension by whose square root logits of attention are divided, for a factor that they have instead."""
    multiplier = setting(theirs, "attention_multiplier", float)
    if not 1e-6 < multiplier < 1e6:
        raise InterchangeError(
            f"config.json: attention_multiplier={multiplier:g}: must be within 1e-6 and 1e6; Granite's are 1/64"
        )
    return {"attention.scale_dim": multiplier**-2}


_MULTIPLIERS = (
    Setting("embedding_multiplier", "embedding_scale", float, 1.0),
    Setting("residual_multiplier", "norm.branch_scale", float, 1.0),
    Setting("logits_scaling", "output.divisor", float, 1.0),
    Row(
        _read_multiplier,
        lambda c: {"attention_multiplier": float(f"{(c.attention.scale_dim or c.attention.head_dim) ** -0.5:.15g}")},
        {"attention_multiplier": 1.0},
    ),
)


DIALECTS: dict[str, Dialect] = {
    **base.dialect("llama", "Llama"),
    **base.dialect(
        "mistral",
        "Mistral",
        base.ONE_WINDOW,
        defaults=dict(sliding_window=4096, num_key_value_heads=8, max_position_embeddings=131_072),
        free=("attention.pattern",),
        biases=(False, False, False),
    ),
    **base.dialect("qwen2", "Qwen2", _QWEN_WINDOWS, defaults=_QWEN, free=("attention.pattern",), biases=(True, False, False)),
    **base.dialect(
        "qwen3",
        "Qwen3",
        _QWEN_WINDOWS,
        defaults=_QWEN | dict(head_dim=128),
        fields=base.qk_norm("rms", "head"),
        free=("attention.pattern",),
        biases=(None, None, False),
    ),
    **base.dialect(
        "gemma",
        "Gemma",
        Row(_scaled_embeddings, _check_scaled),
        Row(_released_gelu, _check_gelu),
        allowed("hidden_activation", "gelu_pytorch_tanh"),  # which version 4 reads instead of hidden_act
        defaults=dict(
            head_dim=256,
            num_key_value_heads=16,
            hidden_act="gelu_pytorch_tanh",
            tie_word_embeddings=True,
            max_position_embeddings=8192,
        ),
        fields={"norm.kind": "rms_plus_one"},
        free=("embedding_scale",),
        biases=(None, None, False),
    ),
    **_gemma(
        "gemma2",
        "Gemma2",
        base.some_windows("Gemma 2", lambda theirs: base.windows(theirs, lambda i: i % 2 == 0), 4096),
        Setting("attn_logit_softcapping", "attention.logit_cap", float, 0.0, encode=lambda cap: cap or None),
        defaults=_GEMMA | dict(final_logit_softcapping=30.0, attn_logit_softcapping=50.0, max_position_embeddings=8192),
        fields=_SANDWICH,
        free=("attention.logit_cap",),
    ),
    **_gemma(
        "gemma3_text",
        "Gemma3",
        Row(_read_gemma3, _write_gemma3),
        Row(write=_write_local_base),
        defaults=_GEMMA | dict(final_logit_softcapping=None, sliding_window_pattern=6, max_position_embeddings=131_072),
        fields=_SANDWICH | base.qk_norm("rms_plus_one", "head"),
        rotary=base.rotary_row(_read_gemma3_rotary),
    ),
    **base.dialect(
        "phi3",
        "Phi3",
        base.ONE_WINDOW,
        defaults=dict(rms_norm_eps=1e-5, original_max_position_embeddings=4096, max_position_embeddings=4096),
        free=("attention.pattern",),
        biases=(False, False, False),
        rotary=base.rotary_row(
            types={"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}, partial=True, beside=True
        ),
        fused=True,
    ),
    **base.dialect(
        "olmo2",
        "Olmo2",
        defaults=dict(rms_norm_eps=1e-5),
        fields={"norm.order": "reordered"} | base.qk_norm("rms", "all"),
        biases=(None, None, False),
    ),
    **base.dialect(
        "smollm3",
        "SmolLM3",
        Row(_read_smollm3, _write_smollm3),
        defaults=dict(
            num_key_value_heads=4,
            tie_word_embeddings=True,
            no_rope_layers=None,
            no_rope_layer_interval=4,
            use_sliding_window=False,
            sliding_window=None,
            layer_types=None,
            max_position_embeddings=32_768,
        ),
        free=("attention.pattern",),
        rotary=base.rotary_row(theta=2_000_000.0),
    ),
    **base.dialect(
        "granite",
        "Granite",
        *_MULTIPLIERS,
        free=("embedding_scale", "norm.branch_scale", "output.divisor", "attention.scale_dim"),
    ),
}
