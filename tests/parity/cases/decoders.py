"""Decoders of text whose layers are dense."""

from typing import Any

from .case import Case

GPT2 = dict(vocab_size=101, n_embd=27, n_layer=3, n_head=3, n_positions=23, bos_token_id=None, eos_token_id=None)
_LLAMA = dict(
    vocab_size=101,
    hidden_size=27,
    num_hidden_layers=2,
    intermediate_size=20,
    head_dim=10,
    rms_norm_eps=1e-5,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
# Heads of 10, of which no number is a power of 2 in most.
_WIDE = dict(vocab_size=101, hidden_size=30, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20)
_OPT = dict(vocab_size=101, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, ffn_dim=28, max_position_embeddings=23)
_GPTJ = dict(vocab_size=101, n_embd=30, n_layer=2, n_head=3, n_inner=20, n_positions=40, rotary_dim=6)
_FALCON = dict(vocab_size=101, hidden_size=30, num_hidden_layers=2, num_attention_heads=5, ffn_hidden_size=20)
_GRANITE = dict(embedding_multiplier=3.0, attention_multiplier=0.15, residual_multiplier=0.7, logits_scaling=1.7)
THETA: dict[str, Any] = {"rope_theta": 500.0, "rope_type": "default"}
_LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=6)
_YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=6, beta_fast=3.0)
_GEMMA = dict(
    vocab_size=101,
    hidden_size=27,
    num_hidden_layers=2,
    intermediate_size=20,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=6,
    query_pre_attn_scalar=10,
    attn_implementation="eager",
)
_PHI = dict(
    vocab_size=101,
    hidden_size=40,
    num_hidden_layers=2,
    intermediate_size=20,
    num_attention_heads=5,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
    max_position_embeddings=24,
)
_LONGROPE = dict(
    rope_type="longrope", rope_theta=500.0, short_factor=[1.0, 1.2, 1.5], long_factor=[2.0, 3.0, 5.0], partial_rotary_factor=0.75
)

CASES = {
    "gpt2": Case("GPT2LMHeadModel", GPT2 | dict(n_inner=20)),
    "gpt2_untied": Case("GPT2LMHeadModel", GPT2 | dict(n_layer=1, tie_word_embeddings=False)),
    "llama": Case("LlamaForCausalLM", _LLAMA | dict(num_attention_heads=9, num_key_value_heads=3)),
    "llama_tied": Case(
        "LlamaForCausalLM",
        _LLAMA | dict(num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=THETA),
    ),
    # Rotary positions, in rows of more than twice the length that they are stretched from.
    "llama_llama3": Case("LlamaForCausalLM", _LLAMA | dict(num_attention_heads=3, rope_parameters=THETA | _LLAMA3), left=True),
    "llama_linear": Case(
        "LlamaForCausalLM", _LLAMA | dict(num_attention_heads=3, rope_parameters=THETA | dict(rope_type="linear", factor=3.0))
    ),
    "llama_yarn": Case(
        "LlamaForCausalLM",
        _LLAMA | dict(num_attention_heads=3, attention_bias=True, mlp_bias=True, rope_parameters=THETA | _YARN),
    ),
    "mistral": Case(
        "MistralForCausalLM", _LLAMA | dict(num_attention_heads=9, num_key_value_heads=3, sliding_window=5), left=True
    ),
    "mistral_whole": Case("MistralForCausalLM", _LLAMA | dict(num_attention_heads=9, num_key_value_heads=9, sliding_window=None)),
    "qwen2": Case("Qwen2ForCausalLM", _LLAMA | dict(num_attention_heads=9, num_key_value_heads=3)),
    "qwen2_window": Case(
        "Qwen2ForCausalLM",
        _LLAMA
        | dict(
            num_attention_heads=3,
            num_key_value_heads=1,
            num_hidden_layers=3,
            use_sliding_window=True,
            sliding_window=4,
            max_window_layers=1,
        ),
    ),
    "qwen3": Case("Qwen3ForCausalLM", _LLAMA | dict(num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True)),
    "gemma": Case(
        "GemmaForCausalLM",
        {k: v for k, v in _GEMMA.items() if k != "query_pre_attn_scalar"} | dict(num_key_value_heads=1, rope_parameters=THETA),
    ),
    "gemma2": Case("Gemma2ForCausalLM", _GEMMA | dict(num_hidden_layers=3, sliding_window=5)),
    "gemma2_uncapped": Case("Gemma2ForCausalLM", _GEMMA | dict(final_logit_softcapping=None, attn_logit_softcapping=None)),
    "gemma3": Case(
        "Gemma3ForCausalLM",
        _GEMMA
        | dict(
            num_hidden_layers=5,
            sliding_window=4,
            sliding_window_pattern=3,
            bos_token_id=None,
            eos_token_id=None,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 900.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
            },
        ),
        left=True,
    ),
    # No layer has a window.
    "gemma3_whole": Case(
        "Gemma3ForCausalLM",
        _GEMMA | dict(layer_types=["full_attention"] * 2, sliding_window=4, bos_token_id=None, eos_token_id=None),
    ),
    "phi3": Case("Phi3ForCausalLM", _PHI | dict(num_key_value_heads=1, sliding_window=6)),
    # Rows longer, and shorter, than those of the first training.
    "phi3_long": Case("Phi3ForCausalLM", _PHI | dict(original_max_position_embeddings=6, rope_parameters=_LONGROPE)),
    "phi3_short": Case(
        "Phi3ForCausalLM", _PHI | dict(original_max_position_embeddings=16, tie_word_embeddings=True, rope_parameters=_LONGROPE)
    ),
    "olmo2": Case("Olmo2ForCausalLM", _LLAMA | dict(num_attention_heads=9, num_key_value_heads=3), left=True),
    "smollm3": Case(
        "SmolLM3ForCausalLM",
        _LLAMA | dict(num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=5, no_rope_layer_interval=3),
    ),
    "smollm3_untied": Case(
        "SmolLM3ForCausalLM",
        _LLAMA
        | dict(
            num_attention_heads=3,
            num_key_value_heads=3,
            num_hidden_layers=3,
            no_rope_layers=[0, 1, 1],
            use_sliding_window=True,
            sliding_window=4,
            tie_word_embeddings=False,
        ),
        left=True,
    ),
    "llama_biased": Case(
        "LlamaForCausalLM",
        _LLAMA | dict(num_attention_heads=3, num_hidden_layers=3, attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    ),
    "gpt_neox": Case("GPTNeoXForCausalLM", _WIDE | dict(rotary_pct=0.4), left=True, continued=True),
    "gpt_neox_sequential": Case(
        "GPTNeoXForCausalLM",
        _WIDE
        | dict(
            use_parallel_residual=False,
            attention_bias=False,
            tie_word_embeddings=True,
            rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=500.0, partial_rotary_factor=1.0),
        ),
        continued=True,
    ),
    "opt": Case("OPTForCausalLM", _OPT, left=True, continued=True),
    "opt_plain": Case(
        "OPTForCausalLM",
        _OPT | dict(enable_bias=False, activation_function="gelu", tie_word_embeddings=False, num_attention_heads=1),
        left=True,
        continued=True,
    ),
    "granite": Case(
        "GraniteForCausalLM", _LLAMA | _GRANITE | dict(num_attention_heads=9, num_key_value_heads=3), left=True, continued=True
    ),
    "granite_tied": Case(
        "GraniteForCausalLM",
        _LLAMA | _GRANITE | dict(num_attention_heads=3, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
        continued=True,
    ),
    "gptj": Case("GPTJForCausalLM", _GPTJ, left=True, continued=True),
    "gptj_whole": Case("GPTJForCausalLM", _GPTJ | dict(rotary_dim=10, tie_word_embeddings=True), continued=True),
    # As the 7B, with one head of keys and values; as the 40B, with groups and two norms; with one norm; one after the other.
    "falcon": Case("FalconForCausalLM", _FALCON, left=True, continued=True),
    "falcon_grouped": Case(
        "FalconForCausalLM",
        _FALCON | dict(hidden_size=36, num_attention_heads=6, num_kv_heads=2, new_decoder_architecture=True),
        left=True,
        continued=True,
    ),
    "falcon_one_norm": Case(
        "FalconForCausalLM",
        _FALCON
        | dict(num_kv_heads=5, new_decoder_architecture=True, num_ln_in_parallel_attn=1, bias=True, tie_word_embeddings=False),
        continued=True,
    ),
    "falcon_sequential": Case(
        "FalconForCausalLM", _FALCON | dict(multi_query=False, parallel_attn=False, bias=True), continued=True
    ),
    # Five heads, of which one has a slope of the next power of 2.
    "bloom": Case("BloomForCausalLM", dict(vocab_size=101, hidden_size=30, n_layer=2, n_head=5), left=True, continued=True),
    "bloom_untied": Case(
        "BloomForCausalLM", dict(vocab_size=101, hidden_size=24, n_layer=3, n_head=8, tie_word_embeddings=False), continued=True
    ),
}
