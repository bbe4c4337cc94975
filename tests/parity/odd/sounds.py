"""Odd models of speech."""

from typing import Any

import numpy as np

from tests.parity.odd.numbers import Draw, below, flag


def _stack(rng: np.random.Generator) -> dict[str, Any]:
    heads = below(rng, 6)
    return dict(
        vocab_size=below(rng, 50, 3),
        num_hidden_layers=below(rng, 4),
        hidden_size=2 * heads * below(rng, 9),
        num_attention_heads=heads,
        intermediate_size=below(rng, 30),
        mask_time_prob=0.0,
    )


def _wave(rng: np.random.Generator) -> dict[str, Any]:
    return _stack(rng) | dict(
        conv_dim=[below(rng, 12, 4)] * 7,
        conv_bias=flag(rng),
        do_stable_layer_norm=flag(rng),
        feat_extract_norm=str(rng.choice(["group", "layer"])),
        num_conv_pos_embeddings=below(rng, 9),
        num_conv_pos_embedding_groups=2,
    )


def _use(rng: np.random.Generator) -> str:
    return str(rng.choice(["ForCTC", "Model"]))


def hubert(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """HuBERT, with and without the norm before the map to the width."""
    return f"Hubert{_use(rng)}", _wave(rng) | dict(feat_proj_layer_norm=flag(rng))


def wavlm(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """WavLM, of few and many buckets."""
    buckets = 4 * below(rng, 20)
    return f"WavLM{_use(rng)}", _wave(rng) | dict(num_buckets=buckets, max_bucket_distance=buckets // 4 + below(rng, 300))


def wav2vec2_bert(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """Wav2Vec2-BERT, of each kind of positions."""
    return f"Wav2Vec2Bert{_use(rng)}", _stack(rng) | dict(
        position_embeddings_type=[None, "relative_key", "relative", "rotary"][below(rng, 4, 0)],
        feature_projection_input_dim=2 * below(rng, 30),
        left_max_position_embeddings=below(rng, 9, 0),
        right_max_position_embeddings=below(rng, 9, 0),
        conv_depthwise_kernel_size=2 * below(rng, 5, 0) + 1,
    )


DRAWS: dict[str, Draw] = {"hubert": hubert, "wavlm": wavlm, "wav2vec2-bert": wav2vec2_bert}
