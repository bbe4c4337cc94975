"""Decoders with mixtures of experts."""

from .case import Case
from .decoders import THETA

# Mixtures: prime vocabularies, experts that are no power of two, heads whose size is not hidden / heads.
_MIXTURE = dict(
    vocab_size=101,
    hidden_size=24,
    num_hidden_layers=2,
    intermediate_size=20,
    num_attention_heads=3,
    num_key_value_heads=1,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
_DEEPSEEK_YARN = dict(
    rope_type="yarn", rope_theta=700.0, factor=8.0, original_max_position_embeddings=4, beta_fast=32, beta_slow=1
)
_DEEPSEEK = _MIXTURE | dict(
    num_hidden_layers=3,
    num_key_value_heads=3,
    moe_intermediate_size=14,
    n_routed_experts=12,
    num_experts_per_tok=3,
    n_group=4,
    topk_group=2,
    first_k_dense_replace=1,
    n_shared_experts=2,
    q_lora_rank=11,
    kv_lora_rank=9,
    qk_nope_head_dim=5,
    qk_rope_head_dim=6,
    v_head_dim=7,
    num_nextn_predict_layers=0,
)

CASES = {
    "mixtral": Case("MixtralForCausalLM", _MIXTURE | dict(num_local_experts=5, num_experts_per_tok=2, head_dim=10)),
    "mixtral_window": Case(
        "MixtralForCausalLM", _MIXTURE | dict(num_local_experts=3, num_experts_per_tok=3, sliding_window=4, rope_parameters=THETA)
    ),
    "qwen2_moe": Case(
        "Qwen2MoeForCausalLM",
        _MIXTURE | dict(num_experts=7, num_experts_per_tok=3, moe_intermediate_size=10, shared_expert_intermediate_size=14),
    ),
    # Every second layer dense, of a size of its own.
    "qwen2_moe_sparse": Case(
        "Qwen2MoeForCausalLM",
        _MIXTURE
        | dict(
            num_hidden_layers=4,
            num_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=10,
            decoder_sparse_step=2,
            shared_expert_intermediate_size=14,
            norm_topk_prob=True,
            qkv_bias=False,
            use_sliding_window=True,
            sliding_window=5,
            max_window_layers=3,
        ),
    ),
    "qwen3_moe": Case(
        "Qwen3MoeForCausalLM",
        _MIXTURE | dict(num_experts=7, num_experts_per_tok=3, moe_intermediate_size=10, head_dim=10, norm_topk_prob=True),
    ),
    "qwen3_moe_leading": Case(
        "Qwen3MoeForCausalLM",
        _MIXTURE
        | dict(
            num_hidden_layers=3,
            num_experts=5,
            num_experts_per_tok=2,
            moe_intermediate_size=10,
            mlp_only_layers=[0],
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=4,
        ),
    ),
    "olmoe": Case("OlmoeForCausalLM", _MIXTURE | dict(num_experts=7, num_experts_per_tok=3)),
    # YaRN by default, and windows in even layers.
    "gpt_oss": Case(
        "GptOssForCausalLM",
        _MIXTURE | dict(num_hidden_layers=4, num_local_experts=5, num_experts_per_tok=3, head_dim=10, sliding_window=4),
    ),
    "gpt_oss_plain": Case(
        "GptOssForCausalLM",
        _MIXTURE
        | dict(
            num_local_experts=5,
            num_experts_per_tok=2,
            head_dim=8,
            attention_bias=False,
            rope_parameters=THETA,
            layer_types=["full_attention", "full_attention"],
        ),
    ),
    "deepseek_v3": Case(
        "DeepseekV3ForCausalLM", _DEEPSEEK | dict(rope_parameters=_DEEPSEEK_YARN | dict(mscale=1.0, mscale_all_dim=1.0))
    ),
    "deepseek_v3_plain": Case(
        "DeepseekV3ForCausalLM",
        _DEEPSEEK | dict(q_lora_rank=None, rope_interleave=False, first_k_dense_replace=0, norm_topk_prob=False),
    ),
}
