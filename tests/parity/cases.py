"""Small random models of `transformers`, of odd sizes, in every variant that the zoo reads and writes. Plain data."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Case:
    """A model: its class, the settings of its config, and the version of `transformers` that computes it; `left` adds a row of an
    encoder, or a decoder, with its padding in front; `continued`: a decoder also writes eight tokens after each row.

    Version 5 (5.23) gives NLLB-MoE's tokens to experts 0 and 1 alone, whichever the router chose: it passes a mask where numbers
    of experts are read. Version 4 (4.57.6) has it right.
    """

    architecture: str
    settings: dict[str, Any]
    version: int = 5
    left: bool = False
    continued: bool = False


_BERT = dict(
    vocab_size=101,
    hidden_size=27,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=23,
    type_vocab_size=2,
)
_ROBERTA = _BERT | dict(vocab_size=103, type_vocab_size=1, max_position_embeddings=21, layer_norm_eps=1e-5, pad_token_id=1)
_DISTILBERT = dict(vocab_size=101, dim=27, n_layers=2, n_heads=3, hidden_dim=20, max_position_embeddings=23)
_NARROW = _BERT | dict(vocab_size=61, hidden_size=15, intermediate_size=14)
_ELECTRA = _NARROW | dict(embedding_size=7)
_ALBERT = _NARROW | dict(embedding_size=11, num_hidden_layers=4)
_MPNET = _NARROW | dict(max_position_embeddings=21, layer_norm_eps=1e-5)
# Distances of up to 12 in 4 buckets to either side, of which two are logarithmic.
_DEBERTA = {key: value for key, value in _NARROW.items() if key != "type_vocab_size"} | dict(
    relative_attention=True,
    position_buckets=4,
    max_position_embeddings=11,
    share_att_key=True,
    norm_rel_ebd="layer_norm",
    position_biased_input=False,
    pos_att_type="p2c|c2p",
)
# A window of 3 to either side, in rows of 13; 3 heads of 6 or 11 of 2.
_MODERNBERT = dict(
    vocab_size=97,
    hidden_size=18,
    num_hidden_layers=5,
    num_attention_heads=3,
    intermediate_size=14,
    local_attention=7,
    pad_token_id=0,
    cls_token_id=1,
    sep_token_id=2,
    bos_token_id=1,
    eos_token_id=2,
)
_BASES = {
    "full_attention": {"rope_type": "default", "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
}
_GPT2 = dict(vocab_size=101, n_embd=27, n_layer=3, n_head=3, n_positions=23, bos_token_id=None, eos_token_id=None)
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
_CLASSICS = {
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
_THETA: dict[str, Any] = {"rope_theta": 500.0, "rope_type": "default"}
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

_T5 = dict(
    vocab_size=101,
    d_model=20,
    d_kv=6,
    d_ff=28,
    num_layers=2,
    num_heads=3,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=9,
)

_M2M100 = dict(
    vocab_size=101,
    d_model=24,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=3,
    decoder_attention_heads=3,
    encoder_ffn_dim=28,
    decoder_ffn_dim=28,
    bos_token_id=0,
    eos_token_id=2,
    pad_token_id=1,
    max_position_embeddings=40,
)

# BART's kin ends no text by force at the last step.
_BART = _M2M100 | dict(forced_eos_token_id=None, max_position_embeddings=17)
_MARIAN = _BART | dict(
    activation_function="swish", scale_embedding=True, pad_token_id=100, decoder_start_token_id=100, eos_token_id=0
)
_PEGASUS = _BART | dict(activation_function="relu", scale_embedding=True, pad_token_id=0, eos_token_id=1)
# Prime and odd sizes, a decoder of another depth.
_ODD = dict(
    vocab_size=103,
    d_model=33,
    encoder_layers=3,
    decoder_layers=1,
    encoder_attention_heads=11,
    decoder_attention_heads=11,
    encoder_ffn_dim=29,
    decoder_ffn_dim=29,
)

_VIT = dict(
    hidden_size=30, num_hidden_layers=2, num_attention_heads=3, intermediate_size=22, image_size=21, patch_size=7, num_channels=3
)
_DEIT = _VIT | dict(hidden_size=18)
_BEIT = _DEIT | dict(use_relative_position_bias=True)
_DINOV2 = {key: value for key, value in _DEIT.items() if key != "intermediate_size"}
_TOWERS: dict[str, Any] = dict(
    vision_config=_DEIT | dict(num_hidden_layers=2),
    text_config=dict(
        vocab_size=47,
        hidden_size=18,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=22,
        max_position_embeddings=13,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=3,
    ),
)

_WHISPER = dict(
    vocab_size=101,
    d_model=24,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=3,
    decoder_attention_heads=3,
    encoder_ffn_dim=28,
    decoder_ffn_dim=28,
    num_mel_bins=7,
    max_source_positions=15,
    max_target_positions=19,
    decoder_start_token_id=2,
    bos_token_id=1,
    eos_token_id=1,
    pad_token_id=1,
    suppress_tokens=None,
    begin_suppress_tokens=None,
)

_CAPTIONER: dict[str, Any] = dict(
    encoder=_VIT | dict(model_type="vit"),
    decoder=_GPT2 | dict(model_type="gpt2", n_inner=20, add_cross_attention=True, is_decoder=True),
    decoder_start_token_id=2,
)

_READER: dict[str, Any] = dict(
    encoder=_VIT | dict(model_type="vit", qkv_bias=False),
    decoder=dict(
        model_type="trocr",
        vocab_size=101,
        d_model=20,
        decoder_layers=2,
        decoder_attention_heads=5,
        decoder_ffn_dim=26,
        max_position_embeddings=17,
        cross_attention_hidden_size=30,
        is_decoder=True,
        add_cross_attention=True,
    ),
    decoder_start_token_id=2,
)

_WAVE = dict(
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=28,
    conv_dim=[10] * 7,
    vocab_size=13,
    mask_time_prob=0.0,
    num_conv_pos_embeddings=6,
    num_conv_pos_embedding_groups=4,
)
_STABLE = dict(feat_extract_norm="layer", conv_bias=True, do_stable_layer_norm=True)

_FRAMES = dict(
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=28,
    feature_projection_input_dim=14,
    conv_depthwise_kernel_size=5,
    vocab_size=13,
    mask_time_prob=0.0,
)

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
_MIXTURES = {
    "mixtral": Case("MixtralForCausalLM", _MIXTURE | dict(num_local_experts=5, num_experts_per_tok=2, head_dim=10)),
    "mixtral_window": Case(
        "MixtralForCausalLM",
        _MIXTURE | dict(num_local_experts=3, num_experts_per_tok=3, sliding_window=4, rope_parameters=_THETA),
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
            rope_parameters=_THETA,
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

CASES = {
    "bert": Case("BertModel", _BERT),
    "bert_masked_lm": Case("BertForMaskedLM", _BERT | dict(hidden_act="gelu_new", type_vocab_size=3)),
    "bert_pretraining": Case("BertForPreTraining", _BERT | dict(num_hidden_layers=3)),
    "bert_classification": Case("BertForSequenceClassification", _BERT | dict(num_labels=5, hidden_act="relu")),
    "bert_tagging": Case("BertForTokenClassification", _BERT | dict(num_labels=7)),
    "bert_span": Case("BertForQuestionAnswering", _BERT),
    # Positions count from the row behind padding's, whatever padding is; the XLM-R has two types, as a file that doesn't say.
    "roberta": Case("RobertaModel", _ROBERTA, left=True),
    "roberta_masked_lm": Case("RobertaForMaskedLM", _ROBERTA | dict(num_hidden_layers=3), left=True),
    "roberta_classification": Case("RobertaForSequenceClassification", _ROBERTA | dict(num_labels=5, hidden_act="relu")),
    "roberta_tagging": Case("RobertaForTokenClassification", _ROBERTA | dict(num_labels=7, pad_token_id=4), left=True),
    "roberta_span": Case("RobertaForQuestionAnswering", _ROBERTA),
    "xlm_roberta": Case("XLMRobertaModel", _ROBERTA | dict(pad_token_id=0, type_vocab_size=2), left=True),
    "xlm_roberta_masked_lm": Case("XLMRobertaForMaskedLM", _ROBERTA | dict(hidden_size=22, num_attention_heads=11)),
    "distilbert": Case("DistilBertModel", _DISTILBERT, left=True),
    "distilbert_masked_lm": Case(
        "DistilBertForMaskedLM", _DISTILBERT | dict(activation="relu", sinusoidal_pos_embds=True), left=True
    ),
    "distilbert_classification": Case("DistilBertForSequenceClassification", _DISTILBERT | dict(num_labels=5)),
    "distilbert_tagging": Case("DistilBertForTokenClassification", _DISTILBERT | dict(num_labels=7, n_layers=3), left=True),
    "distilbert_span": Case("DistilBertForQuestionAnswering", _DISTILBERT),
    # Embeddings of another size than the model's, and of the model's.
    "electra": Case("ElectraModel", _ELECTRA, left=True),
    "electra_discriminator": Case("ElectraForPreTraining", _ELECTRA | dict(embedding_size=15, hidden_act="relu")),
    "electra_masked_lm": Case("ElectraForMaskedLM", _ELECTRA | dict(embedding_size=31, num_hidden_layers=3), left=True),
    "electra_classification": Case("ElectraForSequenceClassification", _ELECTRA | dict(num_labels=5, hidden_act="gelu_new")),
    # One layer run four times; two, each run twice.
    "albert": Case("AlbertModel", _ALBERT, left=True),
    "albert_masked_lm": Case("AlbertForMaskedLM", _ALBERT | dict(num_hidden_groups=2, type_vocab_size=3), left=True),
    "albert_classification": Case("AlbertForSequenceClassification", _ALBERT | dict(num_labels=5, hidden_act="relu")),
    "deberta": Case("DebertaV2Model", _DEBERTA, left=True),
    "deberta_masked_lm": Case("DebertaV2ForMaskedLM", _DEBERTA | dict(num_hidden_layers=3, hidden_act="relu"), left=True),
    "deberta_masked_lm_new": Case("DebertaV2ForMaskedLM", _DEBERTA | dict(legacy=False, type_vocab_size=3), left=True),
    "deberta_classification": Case("DebertaV2ForSequenceClassification", _DEBERTA | dict(num_labels=5, position_buckets=5)),
    "mpnet": Case("MPNetModel", _MPNET, left=True),
    "mpnet_masked_lm": Case("MPNetForMaskedLM", _MPNET | dict(num_hidden_layers=3), left=True),
    "mpnet_classification": Case("MPNetForSequenceClassification", _MPNET | dict(num_labels=5, hidden_act="relu")),
    # Layers that see everything, then near positions alone; every kind of bias; and one pattern that has no period.
    "modernbert": Case("ModernBertModel", _MODERNBERT, left=True),
    "modernbert_masked_lm": Case(
        "ModernBertForMaskedLM", _MODERNBERT | dict(num_hidden_layers=7, rope_parameters=_BASES), left=True
    ),
    "modernbert_biased": Case(
        "ModernBertForMaskedLM",
        _MODERNBERT
        | dict(
            hidden_size=22,
            num_attention_heads=11,
            norm_bias=True,
            attention_bias=True,
            mlp_bias=True,
            classifier_bias=True,
            decoder_bias=False,
            hidden_activation="silu",
            classifier_activation="silu",
            layer_types=["sliding_attention"] * 3 + ["full_attention", "sliding_attention"],
        ),
        left=True,
    ),
    "modernbert_classification": Case("ModernBertForSequenceClassification", _MODERNBERT | dict(num_labels=5)),
    "modernbert_classification_mean": Case(
        "ModernBertForSequenceClassification",
        _MODERNBERT | dict(num_labels=3, classifier_pooling="mean", global_attn_every_n_layers=2),
        left=True,
    ),
    "modernbert_tagging": Case("ModernBertForTokenClassification", _MODERNBERT | dict(num_labels=7), left=True),
    "modernbert_span": Case("ModernBertForQuestionAnswering", _MODERNBERT),
    # The same model as version 4 computes it, and writes its settings.
    "modernbert_version4": Case("ModernBertForMaskedLM", _MODERNBERT | dict(global_rope_theta=500.0), version=4, left=True),
    "gpt2": Case("GPT2LMHeadModel", _GPT2 | dict(n_inner=20)),
    "gpt2_untied": Case("GPT2LMHeadModel", _GPT2 | dict(n_layer=1, tie_word_embeddings=False)),
    "llama": Case("LlamaForCausalLM", _LLAMA | dict(num_attention_heads=9, num_key_value_heads=3)),
    "llama_tied": Case(
        "LlamaForCausalLM",
        _LLAMA | dict(num_attention_heads=3, num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=_THETA),
    ),
    # Rotary positions, in rows of more than twice the length that they are stretched from.
    "llama_llama3": Case("LlamaForCausalLM", _LLAMA | dict(num_attention_heads=3, rope_parameters=_THETA | _LLAMA3), left=True),
    "llama_linear": Case(
        "LlamaForCausalLM", _LLAMA | dict(num_attention_heads=3, rope_parameters=_THETA | dict(rope_type="linear", factor=3.0))
    ),
    "llama_yarn": Case(
        "LlamaForCausalLM",
        _LLAMA | dict(num_attention_heads=3, attention_bias=True, mlp_bias=True, rope_parameters=_THETA | _YARN),
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
        {k: v for k, v in _GEMMA.items() if k != "query_pre_attn_scalar"} | dict(num_key_value_heads=1, rope_parameters=_THETA),
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
    **_CLASSICS,
    **_MIXTURES,
    "t5": Case("T5ForConditionalGeneration", _T5 | dict(num_layers=3)),
    "t5_v1_1": Case("T5ForConditionalGeneration", _T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    # A decoder of less depth, over bytes; and a gate of another function.
    "byt5": Case(
        "T5ForConditionalGeneration",
        _T5 | dict(vocab_size=384, num_layers=3, num_decoder_layers=1, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
    "ul2": Case("T5ForConditionalGeneration", _T5 | dict(feed_forward_proj="gated-silu", tie_word_embeddings=False, d_kv=9)),
    "mt5": Case("MT5ForConditionalGeneration", _T5 | dict(tie_word_embeddings=False)),
    "switch": Case(
        "SwitchTransformersForConditionalGeneration",
        _T5 | dict(num_layers=4, num_decoder_layers=4, num_experts=5, num_sparse_encoder_layers=2, num_sparse_decoder_layers=2),
    ),
    "switch_all_sparse": Case(
        "SwitchTransformersForConditionalGeneration",
        _T5 | dict(num_decoder_layers=2, num_experts=3, num_sparse_encoder_layers=2, num_sparse_decoder_layers=2),
    ),
    # Prime sizes, and rows longer than the distance from which on all share a bucket.
    "t5_primes": Case(
        "T5ForConditionalGeneration",
        dict(
            vocab_size=97,
            d_model=23,
            d_kv=7,
            d_ff=31,
            num_layers=3,
            num_heads=5,
            relative_attention_num_buckets=10,
            relative_attention_max_distance=7,
        ),
    ),
    "m2m100_primes": Case(
        "M2M100ForConditionalGeneration",
        _M2M100
        | dict(
            vocab_size=103,
            d_model=33,
            encoder_layers=3,
            decoder_layers=3,
            encoder_attention_heads=11,
            decoder_attention_heads=11,
            encoder_ffn_dim=29,
            decoder_ffn_dim=29,
        ),
    ),
    "m2m100": Case("M2M100ForConditionalGeneration", _M2M100),
    "bart": Case("BartForConditionalGeneration", _BART),
    "bart_odd": Case(
        "BartForConditionalGeneration",
        _BART | _ODD | dict(scale_embedding=True, activation_function="gelu_new", decoder_start_token_id=5, pad_token_id=7),
    ),
    "mbart": Case("MBartForConditionalGeneration", _BART | dict(decoder_start_token_id=None, bos_token_id=3)),
    "mbart_odd": Case(
        "MBartForConditionalGeneration",
        _BART | _ODD | dict(scale_embedding=True, activation_function="relu", decoder_start_token_id=2),
    ),
    "marian": Case("MarianMTModel", _MARIAN),
    "marian_odd": Case("MarianMTModel", _MARIAN | _ODD | dict(activation_function="gelu", scale_embedding=False)),
    "pegasus": Case("PegasusForConditionalGeneration", _PEGASUS),
    "pegasus_odd": Case("PegasusForConditionalGeneration", _PEGASUS | _ODD | dict(activation_function="gelu")),
    "nllb_moe": Case(
        "NllbMoeForConditionalGeneration",
        _M2M100
        | dict(
            encoder_layers=4,
            decoder_layers=4,
            num_experts=4,
            encoder_sparse_step=2,
            decoder_sparse_step=2,
            expert_capacity=64,
            moe_eval_capacity_token_fraction=1.0,
        ),
        version=4,
    ),
    # Two resolutions; logits, and features with the pooled class token.
    "vit_classification": Case("ViTForImageClassification", _VIT | dict(num_labels=5, hidden_act="gelu_new")),
    "vit_classification_larger": Case("ViTForImageClassification", _VIT | dict(num_labels=3, image_size=35)),
    "vit_features": Case("ViTModel", _VIT),
    "vit_features_larger": Case("ViTModel", _VIT | dict(image_size=42, num_hidden_layers=3)),
    # A teacher's token, with a head of its own or none; factors of layers' outputs, and the mean of patches beside a class token.
    "deit": Case("DeiTForImageClassification", _DEIT | dict(num_labels=5)),
    "deit_teacher": Case(
        "DeiTForImageClassificationWithTeacher", _DEIT | dict(num_labels=3, image_size=35, hidden_act="gelu_new")
    ),
    "deit_features": Case("DeiTModel", _DEIT | dict(num_hidden_layers=1)),
    "dinov2": Case(
        "Dinov2ForImageClassification", _DINOV2 | dict(num_labels=5, use_swiglu_ffn=True, mlp_ratio=2, layer_norm_eps=1e-5)
    ),
    "dinov2_features": Case("Dinov2Model", _DINOV2 | dict(image_size=35, hidden_act="relu", mlp_ratio=1)),
    # Biases of offsets in the plane, and a norm behind pooling.
    "beit": Case("BeitForImageClassification", _BEIT | dict(num_labels=5)),
    "beit_features": Case("BeitModel", _BEIT | dict(image_size=28, layer_scale_init_value=0.0, num_hidden_layers=1)),
    # Pictures beside texts: a text's end, or the last of all positions; towers of one width and of two.
    "clip": Case("CLIPModel", _TOWERS | dict(projection_dim=10)),
    "siglip": Case("SiglipModel", _TOWERS),
    "siglip_widths": Case(
        "SiglipModel",
        dict(
            vision_config=_TOWERS["vision_config"] | dict(image_size=28, hidden_act="gelu"),
            text_config=_TOWERS["text_config"] | dict(hidden_size=22, num_attention_heads=11, projection_size=18, pad_token_id=0),
        ),
    ),
    "whisper": Case("WhisperForConditionalGeneration", _WHISPER),
    # Fewer layers in the decoder, as large-v3-turbo.
    "whisper_turbo": Case("WhisperForConditionalGeneration", _WHISPER | dict(encoder_layers=4, num_mel_bins=12)),
    # A picture's text, the two parts of unlike and of one width.
    "captioner": Case("VisionEncoderDecoderModel", _CAPTIONER),
    "captioner_of_one_width": Case(
        "VisionEncoderDecoderModel", _CAPTIONER | dict(encoder=_CAPTIONER["encoder"] | dict(hidden_size=27))
    ),
    # Lines of text: keys and values of the tower's own width, or of a projection; a table of positions, or sinusoids.
    "trocr": Case("VisionEncoderDecoderModel", _READER),
    "trocr_sinusoids": Case(
        "VisionEncoderDecoderModel",
        dict(
            encoder=_READER["encoder"] | dict(qkv_bias=True, hidden_act="relu"),
            decoder=_READER["decoder"]
            | dict(
                use_learned_position_embeddings=False,
                scale_embedding=True,
                layernorm_embedding=False,
                cross_attention_hidden_size=None,
                activation_function="relu",
                decoder_layers=3,
            ),
            decoder_start_token_id=2,
        ),
    ),
    # Sounds: a norm over time, layers normed behind; norms by position, layers normed before; two kinds of positions.
    "wav2vec2": Case("Wav2Vec2ForCTC", _WAVE | dict(num_hidden_layers=3)),
    "wav2vec2_stable": Case("Wav2Vec2Model", _WAVE | _STABLE | dict(num_conv_pos_embeddings=5, num_conv_pos_embedding_groups=2)),
    "wav2vec2_conformer": Case(
        "Wav2Vec2ConformerForCTC", _WAVE | dict(hidden_act="swish", conv_depthwise_kernel_size=7, conv_bias=True)
    ),
    "wav2vec2_conformer_rotary": Case(
        "Wav2Vec2ConformerModel",
        _WAVE
        | dict(hidden_act="swish", conv_depthwise_kernel_size=5, position_embeddings_type="rotary", feat_extract_norm="layer"),
    ),
    "hubert": Case(
        "HubertForCTC", _WAVE | _STABLE | dict(num_conv_pos_embeddings=7, num_conv_pos_embedding_groups=3, conv_bias=False)
    ),
    # As distilled: no norm before the map to the model's width.
    "hubert_distilled": Case(
        "HubertModel",
        _WAVE | dict(feat_proj_layer_norm=False, hidden_size=30, num_attention_heads=5, num_conv_pos_embedding_groups=5),
    ),
    # Gated biases of relative positions, with norms behind and before; few buckets, of which rows of ten fill all.
    "wavlm": Case("WavLMForCTC", _WAVE | dict(num_buckets=12, max_bucket_distance=7)),
    "wavlm_stable": Case("WavLMModel", _WAVE | _STABLE | dict(num_buckets=320, max_bucket_distance=800, num_hidden_layers=3)),
    # Frames, not a waveform: vectors of distances, and the positions that its config also names.
    "wav2vec2_bert": Case("Wav2Vec2BertForCTC", _FRAMES | dict(left_max_position_embeddings=4, right_max_position_embeddings=2)),
    "wav2vec2_bert_relative": Case(
        "Wav2Vec2BertModel", _FRAMES | dict(position_embeddings_type="relative", conv_depthwise_kernel_size=7)
    ),
    "llama_biased": Case(
        "LlamaForCausalLM",
        _LLAMA | dict(num_attention_heads=3, num_hidden_layers=3, attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Translator:
    """A tokenizer of `transformers` for SentencePiece's pieces, beside a small random model that translates with it.

    Attributes:
      tokenizer: its class.
      directions: languages from which and into which is translated, the tokenizer's names of them.
    """

    tokenizer: str
    settings: dict[str, Any]
    directions: tuple[tuple[str, str], ...]
    version: int = 4


_FLORES = dict(additional_special_tokens=["ace_Arab", "ace_Latn", "deu_Latn", "eng_Latn", "zho_Hans"])
_FROM_AND_TO = (("deu_Latn", "eng_Latn"), ("eng_Latn", "zho_Hans"))

# Version 5 (5.23) keeps a blank at the end of a text for NLLB, which SentencePiece removes.
TRANSLATORS = {
    "translator_nllb": Translator("NllbTokenizerFast", _FLORES, _FROM_AND_TO),
    "translator_nllb_legacy": Translator("NllbTokenizer", _FLORES | dict(legacy_behaviour=True), _FROM_AND_TO),
    "translator_m2m100": Translator("M2M100Tokenizer", {}, (("de", "en"), ("en", "zh")), version=5),
}
ODD_TEXT = "  Naïve ② ﬁne  漢字漢 £ x"
TRANSLATED = (
    "Forgotten your password?",
    "bada felu nomi",
    ODD_TEXT,
    "",
    " a ",
    "ａｂｃ\t1,234.5\n%(name)s",
    "bada felu nomi dagu " * 9,
)
TRANSLATOR_SETTINGS = _M2M100 | dict(max_position_embeddings=200)

GIVEN = (
    "samples",
    "pairs",
    "frames",
    "tokens",
    "mask",
    "types",
    "targets",
    "real",
    "images",
    "prompts",
)  # a model's inputs, beside its outputs in expected.safetensors

# What MiniLM's embeddings are compared on: two pairs of paraphrases, then strangers.
SENTENCES = (
    "The cat sits on the mat.",
    "A cat is lying on a rug.",
    "How do I reset my password?",
    "I forgot my password and need a new one.",
    "Interest rates rose sharply in the last quarter.",
    "Unrelated: 1,234 protons, naïve café!",
)
