"""The classes of `transformers` of LLaMA's shape: what each adds to LLaMA, in one table. No JAX.

A `Dialect` says what an absent key of a config.json means (in `transformers` 5.23), which settings change what the model
computes, and how they are written.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from models.gpt.config import GptConfig
from models.gpt.huggingface import rope
from models.interchange import InterchangeError, setting
from models.parts.attention.config import LayerVariant

Fields = dict[str, Any]  # of GptConfig
_SLIDING, _FULL = "sliding_attention", "full_attention"  # their names of layers with and without a window
# What absent keys mean to all, where a dialect says nothing else.
DEFAULTS: Fields = dict(
    num_key_value_heads=None,
    head_dim=None,
    hidden_act="silu",
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    attention_dropout=0.0,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attention_bias=False,
    mlp_bias=False,
    max_position_embeddings=2048,
)
# For which null is not the default, but the other choice: as many heads, no window, no cap.
NULLABLE = ("num_key_value_heads", "sliding_window", "final_logit_softcapping", "attn_logit_softcapping", "attention_dropout")
# What LLaMA has no choice of.
PLAIN: Fields = dict(
    order="pre",
    positions="rotary",
    norm="rms",
    norm_bias=False,
    gated=True,
    key_bias=True,
    qk_norm=False,
    kinds=(),
    sinks=False,
    logit_cap=0.0,
    softmax_cap=0.0,
    embedding_scale=1.0,
    attention_scale=True,
    attention_scalar=0.0,
    moe=None,
    latent=None,
    leading_layers=0,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """A class of `transformers` beside LLaMA's.

    Attributes:
      name: of the classes, before "ForCausalLM" and "Model".
      defaults: what absent keys mean, where it is not what they mean to LLaMA.
      nullable: further keys for which null is another choice than their default.
      same: keys that name one setting, of which `transformers` reads any; the first is in `defaults`.
      read: makes the fields of ours that LLaMA does not have, of a complete config.json and the number of layers; it raises
        InterchangeError for settings that we do not support.
      shape: fields that all models of the class have.
      free: fields that LLaMA has no choice of, but these models have: `write` says how.
      write: makes the settings of a model that LLaMA does not have.
      theta: the base of rotary rates where none is named.
      rope: further arguments of `rope.read`.
      biases: of queries, keys and values; of attention's output; of feed-forward networks. None is what the config says, by
        attention_bias and mlp_bias.
      fused: queries, keys and values are one tensor, and so are a feed-forward network's gate and its other input.
    """

    name: str
    defaults: Fields = dataclasses.field(default_factory=dict)
    nullable: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    read: Callable[[Mapping[str, Any], int], Fields] = lambda theirs, layers: {}
    shape: Fields = dataclasses.field(default_factory=dict)
    free: tuple[str, ...] = ()
    write: Callable[[GptConfig], Fields] = lambda c: {}
    theta: float = 10_000.0
    rope: Fields = dataclasses.field(default_factory=dict)
    biases: tuple[bool | None, bool | None, bool | None] = (None, None, None)
    fused: bool = False


# --- kinds of layers ---


def pattern(kinds: Sequence[LayerVariant]) -> tuple[LayerVariant, ...]:
    """Returns the shortest beginning of the layers' kinds that goes on as they do; () where they have nothing special."""
    size = next(n for n in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i % n] for i in range(len(kinds))))
    return () if size == 1 and kinds[0] == LayerVariant() else tuple(kinds[:size])


def of_layers(c: GptConfig) -> list[LayerVariant]:
    """Returns the kind of every layer."""
    kinds = c.kinds or (LayerVariant(),)
    return [kinds[i % len(kinds)] for i in range(c.layers)]


def _slides(theirs: Mapping[str, Any], layers: int, default: Callable[[int], bool]) -> list[bool]:
    """Returns which layers have a window: as layer_types says, or by default."""
    names = setting(theirs, "layer_types", list, None)
    if names is None:
        return [default(i) for i in range(layers)]
    if len(names) != layers or not all(name in (_SLIDING, _FULL) for name in names):
        raise InterchangeError(
            f"config.json: layer_types={str(names)[:80]}: must name {_SLIDING!r} or {_FULL!r} for each of {layers} layers"
        )
    return [name == _SLIDING for name in names]


def windows(theirs: Mapping[str, Any], layers: int, default: Callable[[int], bool], local: LayerVariant | None = None) -> Fields:
    """Returns kinds of layers of which some see a window of sliding_window positions, and are else as `local`."""
    slides = _slides(theirs, layers, default)
    window = setting(theirs, "sliding_window", int, None)
    if any(slides) and not window:
        raise InterchangeError(f"config.json: sliding_window is {json.dumps(window)}, but some layers of layer_types slide")
    sliding = dataclasses.replace(local or LayerVariant(), window=window or 0)
    return dict(kinds=pattern([sliding if slide else LayerVariant() for slide in slides]))


def write_windows(c: GptConfig, unused: int | None = None) -> Fields:
    """Returns the settings of windows that some layers have.

    Args:
      unused: the window where no layer has one, for classes that make its mask all the same.

    Raises:
      InterchangeError: windows of several sizes.
    """
    kinds = of_layers(c)
    sizes = sorted({kind.window for kind in kinds if kind.window})
    if len(sizes) > 1:
        raise InterchangeError(f"Hugging Face's models have one window, but kinds have {' and '.join(map(str, sizes))}")
    types = [_SLIDING if kind.window else _FULL for kind in kinds]
    return {"sliding_window": sizes[0] if sizes else unused, "layer_types": types}


def only_windows(c: GptConfig, name: str, *, of_all: bool = False) -> None:
    """Raises InterchangeError where layers differ in more than windows, or, `of_all`, in these."""
    plain = all(dataclasses.replace(kind, window=0) == LayerVariant() for kind in c.kinds)
    if not plain or (of_all and len(c.kinds) > 1):
        allowed = "one window for all layers" if of_all else "layers with and without a window"
        raise InterchangeError(f"Hugging Face's {name} has {allowed}, but kinds={c.kinds}"[:200])


# --- what each class has ---


def _one_window(theirs: Mapping[str, Any], layers: int) -> Fields:
    window = setting(theirs, "sliding_window", int, None)
    return dict(kinds=pattern([LayerVariant(window=window or 0)] * layers))


def write_one_window(c: GptConfig) -> Fields:
    only_windows(c, "class of one window", of_all=True)
    return {"sliding_window": c.kinds[0].window if c.kinds else None}


def _qwen(theirs: Mapping[str, Any], layers: int) -> Fields:
    first = setting(theirs, "max_window_layers", int)
    on = setting(theirs, "use_sliding_window", bool) and setting(theirs, "sliding_window", int, None) is not None
    if not on:
        if any(_slides(theirs, layers, lambda i: False)):
            raise InterchangeError("config.json: layer_types has layers that slide, but use_sliding_window is false")
        return dict(kinds=())
    return windows(theirs, layers, lambda i: i >= first)


def _write_qwen(c: GptConfig) -> Fields:
    only_windows(c, "Qwen")
    return write_windows(c) | {"use_sliding_window": any(kind.window for kind in c.kinds)}


def _gemma(theirs: Mapping[str, Any]) -> Fields:
    return dict(
        attention_scalar=setting(theirs, "query_pre_attn_scalar", float),
        softmax_cap=setting(theirs, "final_logit_softcapping", float, 0.0),
        embedding_scale=setting(theirs, "hidden_size", int) ** 0.5,
    )


def _gemma2(theirs: Mapping[str, Any], layers: int) -> Fields:
    cap = setting(theirs, "attn_logit_softcapping", float, 0.0)
    return _gemma(theirs) | windows(theirs, layers, lambda i: i % 2 == 0) | dict(logit_cap=cap)


def _gemma3(theirs: Mapping[str, Any], layers: int) -> Fields:
    every, head_dim = setting(theirs, "sliding_window_pattern", int), setting(theirs, "head_dim", int)
    longest = setting(theirs, "max_position_embeddings", int)
    by_type = setting(theirs, "rope_parameters", dict, {})
    if set(by_type) - {_SLIDING, _FULL}:
        raise InterchangeError(f"config.json: rope_parameters={str(by_type)[:80]}: must have {_SLIDING!r} and {_FULL!r}")
    full = {"rope_theta": theirs.get("rope_theta", 1e6)} | setting(by_type, _FULL, dict, {})
    local = {"rope_theta": theirs.get("rope_local_base_freq", 1e4)} | setting(by_type, _SLIDING, dict, {})
    full |= setting(theirs, "rope_scaling", dict, {})
    base, rotary = rope.turning(full, head_dim, theta=1e6, longest=longest)
    local_base, _ = rope.turning(local, head_dim, theta=1e4, longest=longest, types={"default": "default"})
    kind = LayerVariant(base=local_base, scaled=False)
    kinds = windows(theirs, layers, lambda i: (i + 1) % every != 0, kind)
    return _gemma(theirs) | kinds | dict(rotary_base=base, rotary=rotary)


def _write_gemma(c: GptConfig) -> Fields:
    if c.embedding_scale != c.model_dim**0.5 or not c.attention_scalar:
        raise InterchangeError(
            f"Hugging Face's Gemma has embedding_scale={c.model_dim**0.5} and an attention_scalar, but the model has "
            f"{c.embedding_scale} and {c.attention_scalar}"
        )
    scalar = int(c.attention_scalar) if c.attention_scalar == int(c.attention_scalar) else c.attention_scalar
    return write_windows(c, 4096) | {"query_pre_attn_scalar": scalar, "final_logit_softcapping": c.softmax_cap or None}


def _write_gemma2(c: GptConfig) -> Fields:
    only_windows(c, "Gemma 2")
    return _write_gemma(c) | {"attn_logit_softcapping": c.logit_cap or None}


def _write_gemma3(c: GptConfig) -> Fields:
    locals_ = {dataclasses.replace(kind, window=0) for kind in c.kinds if kind.window}
    full = {kind for kind in c.kinds if not kind.window}
    if len(locals_) > 1 or any(kind != LayerVariant() for kind in full) or any(kind.scaled for kind in locals_):
        raise InterchangeError(f"Hugging Face's Gemma 3 has one kind of layers beside those with windows, but kinds={c.kinds}")
    base = next((kind.base for kind in locals_), 0.0) or c.rotary_base
    return _write_gemma(c) | {"rope_local_base_freq": base}


def _smollm3(theirs: Mapping[str, Any], layers: int) -> Fields:
    turned, every = setting(theirs, "no_rope_layers", list, None), setting(theirs, "no_rope_layer_interval", int)
    turned = [int((i + 1) % every != 0) for i in range(layers)] if turned is None else turned[:layers]
    if len(turned) < layers or not all(type(turn) is int for turn in turned):
        raise InterchangeError(f"config.json: no_rope_layers={str(turned)[:80]}: must be 0 or 1 for each of {layers} layers")
    window = setting(theirs, "sliding_window", int, None) if setting(theirs, "use_sliding_window", bool) else None
    slides = _slides(theirs, layers, lambda i: bool(window) and not turned[i])
    if any(slides) and not window:
        raise InterchangeError("config.json: layer_types has layers that slide, but there is no window")
    kinds = [LayerVariant(window=(window or 0) * slide, rotary=bool(turn)) for slide, turn in zip(slides, turned, strict=True)]
    return dict(kinds=pattern(kinds))


def _write_smollm3(c: GptConfig) -> Fields:
    kinds = of_layers(c)
    if any(kind.base or not kind.scaled for kind in kinds):
        raise InterchangeError(f"Hugging Face's SmolLM3 has one base for all layers, but kinds={c.kinds}"[:200])
    return write_windows(c) | {
        "no_rope_layers": [int(kind.rotary) for kind in kinds],
        "use_sliding_window": any(kind.window for kind in kinds),
    }


_LONGROPE = {"default": "default", "longrope": "longrope", "su": "longrope", "yarn": "longrope"}
_QWEN: Fields = dict(
    use_sliding_window=False,
    sliding_window=4096,
    max_window_layers=28,
    layer_types=None,
    max_position_embeddings=32_768,
    num_key_value_heads=32,
)
_GEMMA: Fields = dict(
    head_dim=256,
    num_key_value_heads=4,
    hidden_activation="gelu_pytorch_tanh",
    tie_word_embeddings=True,
    query_pre_attn_scalar=256.0,
    sliding_window=4096,
    layer_types=None,
)
_SANDWICH: Fields = dict(order="sandwich", norm="rms_plus_one")
_OF_GEMMA = ("kinds", "attention_scalar", "softmax_cap", "embedding_scale")


def qk_norm(kind: str, over: str) -> Fields:
    return dict(qk_norm=True, qk_norm_kind=kind, qk_norm_over=over)


DIALECTS: dict[str, Dialect] = {
    "llama": Dialect(name="Llama"),
    "mistral": Dialect(
        name="Mistral",
        defaults=dict(sliding_window=4096, num_key_value_heads=8, max_position_embeddings=131_072),
        read=_one_window,
        free=("kinds",),
        write=write_one_window,
        biases=(False, False, False),
    ),
    "qwen2": Dialect(name="Qwen2", defaults=_QWEN, read=_qwen, free=("kinds",), write=_write_qwen, biases=(True, False, False)),
    "qwen3": Dialect(
        name="Qwen3",
        defaults=_QWEN | dict(head_dim=128),
        read=_qwen,
        shape=qk_norm("rms", "head"),
        free=("kinds",),
        write=_write_qwen,
        biases=(None, None, False),
    ),
    "gemma2": Dialect(
        name="Gemma2",
        defaults=_GEMMA | dict(final_logit_softcapping=30.0, attn_logit_softcapping=50.0, max_position_embeddings=8192),
        read=_gemma2,
        shape=_SANDWICH,
        free=(*_OF_GEMMA, "logit_cap"),
        write=_write_gemma2,
        biases=(None, None, False),
    ),
    "gemma3_text": Dialect(
        name="Gemma3",
        defaults=_GEMMA | dict(final_logit_softcapping=None, sliding_window_pattern=6, max_position_embeddings=131_072),
        read=_gemma3,
        shape=_SANDWICH | qk_norm("rms_plus_one", "head"),
        free=_OF_GEMMA,
        write=_write_gemma3,
        biases=(None, None, False),
    ),
    "phi3": Dialect(
        name="Phi3",
        defaults=dict(
            rms_norm_eps=1e-5, sliding_window=None, original_max_position_embeddings=4096, max_position_embeddings=4096
        ),
        read=_one_window,
        free=("kinds",),
        write=write_one_window,
        rope=dict(types=_LONGROPE, partial=True),
        biases=(False, False, False),
        fused=True,
    ),
    "olmo2": Dialect(
        name="Olmo2",
        defaults=dict(rms_norm_eps=1e-5),
        shape=dict(order="reordered") | qk_norm("rms", "all"),
        biases=(None, None, False),
    ),
    "smollm3": Dialect(
        name="SmolLM3",
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
        read=_smollm3,
        free=("kinds",),
        write=_write_smollm3,
        theta=2_000_000.0,
    ),
}


def classes(dialects: dict[str, Dialect]) -> dict[str, tuple[str, str]]:
    """Returns the classes of models with and without an output matrix, by model type."""
    return {kind: (f"{d.name}ForCausalLM", f"{d.name}Model") for kind, d in dialects.items()}


ARCHITECTURES = classes(DIALECTS)
ARCHITECTURES["gemma3_text"] = ("Gemma3ForCausalLM", "Gemma3TextModel")
