"""Encoder-decoders of text."""

from .case import Case

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
M2M100 = dict(
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
_BART = M2M100 | dict(forced_eos_token_id=None, max_position_embeddings=17)
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

CASES = {
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
        M2M100
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
    "m2m100": Case("M2M100ForConditionalGeneration", M2M100),
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
        M2M100
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
}
