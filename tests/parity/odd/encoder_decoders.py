"""Odd encoder-decoders."""

from typing import Any

import numpy as np

from tests.parity.odd.numbers import Draw, below, flag


def t5(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """T5, ByT5 and UL2: decoders of less depth, as version 5 generates with no deeper one; gated by several functions."""
    tied, depth = flag(rng), below(rng, 4)
    return "T5ForConditionalGeneration", dict(
        vocab_size=below(rng, 300, 12),
        d_model=below(rng, 40, 4),
        d_kv=below(rng, 12),
        d_ff=below(rng, 40),
        num_layers=depth,
        num_decoder_layers=below(rng, depth + 1),
        num_heads=below(rng, 6),
        relative_attention_num_buckets=4 * below(rng, 6),
        relative_attention_max_distance=below(rng, 40, 13),
        feed_forward_proj=str(rng.choice(["relu", "gelu", "gated-gelu", "gated-silu", "gated-relu", "silu"])),
        tie_word_embeddings=tied,
    )


def trocr(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """TrOCR's decoder under a ViT, with a table of positions and sinusoids."""
    seen, heads = below(rng, 6), below(rng, 6)
    width = seen * below(rng, 8, 2)
    encoder = dict(
        model_type="vit",
        hidden_size=width,
        num_hidden_layers=below(rng, 4),
        num_attention_heads=seen,
        intermediate_size=below(rng, 30),
        image_size=14,
        patch_size=7,
        qkv_bias=flag(rng),
    )
    decoder = dict(
        model_type="trocr",
        is_decoder=True,
        add_cross_attention=True,
        vocab_size=below(rng, 90, 12),
        d_model=heads * below(rng, 8, 4),
        decoder_layers=below(rng, 4),
        decoder_attention_heads=heads,
        decoder_ffn_dim=below(rng, 30),
        activation_function=str(rng.choice(["gelu", "relu", "gelu_new"])),
        max_position_embeddings=below(rng, 30, 12),
        scale_embedding=flag(rng),
        layernorm_embedding=flag(rng),
        use_learned_position_embeddings=flag(rng),
        cross_attention_hidden_size=[None, width][below(rng, 2, 0)],
    )
    return "VisionEncoderDecoderModel", dict(encoder=encoder, decoder=decoder, decoder_start_token_id=2)


DRAWS: dict[str, Draw] = {"trocr": trocr, "t5": t5}
