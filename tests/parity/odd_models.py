"""Odd models, each setting at random, of families that are compared so with `transformers`. Plain data."""

from collections.abc import Callable
from typing import Any

import numpy as np

Draw = Callable[[np.random.Generator], tuple[str, dict[str, Any]]]  # (the class of `transformers`, its settings)


def _below(rng: np.random.Generator, most: int, least: int = 1) -> int:
    return int(rng.integers(least, most))


def _flag(rng: np.random.Generator) -> bool:
    return bool(rng.integers(2))


def _stack(rng: np.random.Generator) -> dict[str, Any]:
    heads = _below(rng, 6)
    return dict(
        vocab_size=_below(rng, 50, 3),
        num_hidden_layers=_below(rng, 4),
        hidden_size=2 * heads * _below(rng, 9),
        num_attention_heads=heads,
        intermediate_size=_below(rng, 30),
        mask_time_prob=0.0,
    )


def _wave(rng: np.random.Generator) -> dict[str, Any]:
    return _stack(rng) | dict(
        conv_dim=[_below(rng, 12, 4)] * 7,
        conv_bias=_flag(rng),
        do_stable_layer_norm=_flag(rng),
        feat_extract_norm=str(rng.choice(["group", "layer"])),
        num_conv_pos_embeddings=_below(rng, 9),
        num_conv_pos_embedding_groups=2,
    )


def _use(rng: np.random.Generator) -> str:
    return str(rng.choice(["ForCTC", "Model"]))


def hubert(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """HuBERT, with and without the norm before the map to the width."""
    return f"Hubert{_use(rng)}", _wave(rng) | dict(feat_proj_layer_norm=_flag(rng))


def wavlm(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """WavLM, of few and many buckets."""
    buckets = 4 * _below(rng, 20)
    return f"WavLM{_use(rng)}", _wave(rng) | dict(num_buckets=buckets, max_bucket_distance=buckets // 4 + _below(rng, 300))


def wav2vec2_bert(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """Wav2Vec2-BERT, of each kind of positions."""
    return f"Wav2Vec2Bert{_use(rng)}", _stack(rng) | dict(
        position_embeddings_type=[None, "relative_key", "relative", "rotary"][_below(rng, 4, 0)],
        feature_projection_input_dim=2 * _below(rng, 30),
        left_max_position_embeddings=_below(rng, 9, 0),
        right_max_position_embeddings=_below(rng, 9, 0),
        conv_depthwise_kernel_size=2 * _below(rng, 5, 0) + 1,
    )


def t5(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """T5, ByT5 and UL2: decoders of less depth, as version 5 generates with no deeper one; gated by several functions."""
    tied, depth = _flag(rng), _below(rng, 4)
    return "T5ForConditionalGeneration", dict(
        vocab_size=_below(rng, 300, 12),
        d_model=_below(rng, 40, 4),
        d_kv=_below(rng, 12),
        d_ff=_below(rng, 40),
        num_layers=depth,
        num_decoder_layers=_below(rng, depth + 1),
        num_heads=_below(rng, 6),
        relative_attention_num_buckets=4 * _below(rng, 6),
        relative_attention_max_distance=_below(rng, 40, 13),
        feed_forward_proj=str(rng.choice(["relu", "gelu", "gated-gelu", "gated-silu", "gated-relu", "silu"])),
        tie_word_embeddings=tied,
    )


def trocr(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """TrOCR's decoder under a ViT, with a table of positions and sinusoids."""
    seen, heads = _below(rng, 6), _below(rng, 6)
    width = seen * _below(rng, 8, 2)
    encoder = dict(
        model_type="vit",
        hidden_size=width,
        num_hidden_layers=_below(rng, 4),
        num_attention_heads=seen,
        intermediate_size=_below(rng, 30),
        image_size=14,
        patch_size=7,
        qkv_bias=_flag(rng),
    )
    decoder = dict(
        model_type="trocr",
        is_decoder=True,
        add_cross_attention=True,
        vocab_size=_below(rng, 90, 12),
        d_model=heads * _below(rng, 8, 4),
        decoder_layers=_below(rng, 4),
        decoder_attention_heads=heads,
        decoder_ffn_dim=_below(rng, 30),
        activation_function=str(rng.choice(["gelu", "relu", "gelu_new"])),
        max_position_embeddings=_below(rng, 30, 12),
        scale_embedding=_flag(rng),
        layernorm_embedding=_flag(rng),
        use_learned_position_embeddings=_flag(rng),
        cross_attention_hidden_size=[None, width][_below(rng, 2, 0)],
    )
    return "VisionEncoderDecoderModel", dict(encoder=encoder, decoder=decoder, decoder_start_token_id=2)


DRAWS: dict[str, Draw] = {"hubert": hubert, "wavlm": wavlm, "wav2vec2-bert": wav2vec2_bert, "trocr": trocr, "t5": t5}
