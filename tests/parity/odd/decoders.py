"""Odd decoders."""

from typing import Any

import numpy as np

from tests.parity.odd.numbers import Draw, below, factor, flag, one_of

_PLAIN = ("hidden_size", "num_hidden_layers", "num_attention_heads")
_EPS = (1e-5, 1e-3)


def _sizes(rng: np.random.Generator, width: str, layers: str, heads: str, hidden: str) -> dict[str, Any]:
    """Returns sizes by their names, and the vocabulary's; a hidden size without a name is no setting."""
    number = below(rng, 7)
    drawn = {width: number * 2 * below(rng, 6), layers: below(rng, 4), heads: number, "vocab_size": below(rng, 90, 20)}
    return drawn | ({hidden: below(rng, 40, 5)} if hidden else {}) | {"tie_word_embeddings": flag(rng)}


def _turned(rng: np.random.Generator, size: int) -> int:
    """Returns how many dimensions of a head of this size are turned."""
    return 2 * below(rng, size // 2 + 1)


def gpt_neox(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """GPT-NeoX, with attention and feed-forward layer side by side and behind one another."""
    sizes = _sizes(rng, *_PLAIN, "intermediate_size")
    size = sizes["hidden_size"] // sizes["num_attention_heads"]
    stretched = {"rope_scaling": {"rope_type": "linear", "factor": 1 + factor(rng)}}
    return "GPTNeoXForCausalLM", sizes | one_of(rng, {}, stretched) | dict(
        rotary_pct=_turned(rng, size) / size + 1e-9,
        rotary_emb_base=1000 * factor(rng),
        use_parallel_residual=flag(rng),
        attention_bias=flag(rng),
        hidden_act=one_of(rng, "gelu", "relu", "gelu_new", "silu"),
        layer_norm_eps=one_of(rng, *_EPS),
    )


def opt(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """OPT, with and without biases."""
    sizes = _sizes(rng, *_PLAIN, "ffn_dim")
    return "OPTForCausalLM", sizes | dict(
        word_embed_proj_dim=sizes["hidden_size"],
        max_position_embeddings=below(rng, 50, 13),
        enable_bias=flag(rng),
        activation_function=one_of(rng, "relu", "gelu", "gelu_new"),
    )


def granite(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """Granite, with all its factors."""
    sizes = _sizes(rng, *_PLAIN, "intermediate_size")
    names = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    return "GraniteForCausalLM", sizes | {name: factor(rng) for name in names} | dict(
        num_key_value_heads=one_of(rng, 1, sizes["num_attention_heads"]),
        attention_bias=flag(rng),
        mlp_bias=flag(rng),
        rms_norm_eps=one_of(rng, *_EPS),
        rope_theta=1000 * factor(rng),
        hidden_act=one_of(rng, "silu", "gelu"),
    )


def gptj(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """GPT-J, of which a part of each head is turned."""
    sizes = _sizes(rng, "n_embd", "n_layer", "n_head", one_of(rng, "n_inner", ""))
    return "GPTJForCausalLM", sizes | dict(
        rotary_dim=_turned(rng, sizes["n_embd"] // sizes["n_head"]),
        activation_function=one_of(rng, "gelu_new", "relu", "gelu"),
        layer_norm_epsilon=one_of(rng, *_EPS),
    )


def falcon(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """Falcon, of its new form and of the first."""
    sizes = _sizes(rng, *_PLAIN, one_of(rng, "ffn_hidden_size", ""))
    heads = sizes["num_attention_heads"]
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    form = one_of(
        rng,
        dict(new_decoder_architecture=True, num_kv_heads=one_of(rng, *divisors), num_ln_in_parallel_attn=one_of(rng, 1, 2)),
        dict(new_decoder_architecture=True),
        dict(multi_query=flag(rng), parallel_attn=flag(rng)),
    )
    return "FalconForCausalLM", sizes | form | dict(
        bias=flag(rng),
        activation=one_of(rng, "gelu", "relu", "silu"),
        layer_norm_epsilon=one_of(rng, *_EPS),
        rope_theta=1000 * factor(rng),
    )


def bloom(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """BLOOM, by the names of its sizes that `transformers` writes."""
    return "BloomForCausalLM", _sizes(rng, "hidden_size", "n_layer", "n_head", "") | dict(layer_norm_epsilon=one_of(rng, *_EPS))


DRAWS: dict[str, Draw] = {"gpt_neox": gpt_neox, "opt": opt, "granite": granite, "gptj": gptj, "falcon": falcon, "bloom": bloom}
