"""`vision-encoder-decoder` in Hugging Face's files: a ViT, and a GPT-2 that attends to what it sees. No JAX."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from models.gpt import huggingface as gpt
from models.gpt.config import GptConfig
from models.gpt.huggingface import gpt2
from models.interchange import (
    Entry,
    InterchangeError,
    Part,
    demand,
    dense,
    kept_apart,
    model_type,
    no_head,
    norm,
    only,
    setting,
    table,
    write_activation,
)
from models.multimodal.config import MultimodalConfig
from models.vit import huggingface as vit

MODEL_TYPES = ("vision-encoder-decoder",)
_ARCHITECTURES = {"vision-encoder-decoder": ("VisionEncoderDecoderModel",)}
_TABLE, _OUTPUT = "decoder.transformer.wte.weight", "decoder.lm_head.weight"


def read_config(theirs: Mapping[str, Any]) -> MultimodalConfig:
    """Returns the configuration of the model that a config.json describes.

    Raises:
      InterchangeError: a setting is missing, or our model does not support it.
    """
    model_type(theirs, _ARCHITECTURES)
    sides = {side: setting(theirs, side, dict) for side in ("encoder", "decoder")}
    for side, kind in (("encoder", "vit"), ("decoder", "gpt2")):
        if (found := sides[side].get("model_type")) != kind:
            raise InterchangeError(f"config.json: {side}.model_type={found!r} is not supported, only {kind!r}")
    only(sides["decoder"], tie_word_embeddings=(True,), cross_attention_hidden_size=())
    if not setting(sides["decoder"], "add_cross_attention", bool, False):
        raise InterchangeError("config.json: decoder.add_cross_attention is false: the text would not depend on the picture")
    tower = vit.read_config(sides["encoder"] | {"architectures": ["ViTModel"]})
    d = gpt2.read_gpt2(sides["decoder"])
    return MultimodalConfig(
        vocab=d.vocab,
        layers=d.layers,
        model_dim=d.model_dim,
        hidden_dim=d.hidden_dim,
        heads=d.heads,
        head_dim=d.head_dim,
        max_positions=d.max_positions,
        activation=d.activation,
        norm_eps=d.norm_eps,
        dropout=d.dropout,
        start_id=setting(theirs, "decoder_start_token_id", int, setting(sides["decoder"], "bos_token_id", int, 50_256)),
        seam="plain",
        vision=dataclasses.replace(tower, pooler=False),
    )


def _decoder(c: MultimodalConfig) -> GptConfig:
    """Returns the decoder as a GPT-2."""
    return GptConfig(
        vocab=c.vocab,
        layers=c.layers,
        model_dim=c.model_dim,
        hidden_dim=c.hidden_dim,
        heads=c.heads,
        head_dim=c.head_dim,
        max_positions=c.max_positions,
        activation=c.activation,
        norm="layer",
        norm_bias=True,
        norm_eps=c.norm_eps,
        attention_bias=True,
        ffn_bias=True,
        dropout=c.dropout,
    )


def write_config(c: MultimodalConfig) -> dict[str, Any]:
    """Returns the config.json of a model.

    Raises:
      InterchangeError: `transformers` has no class for the model; the message names the fields that differ.
    """
    demand(
        c,
        "ViT and GPT-2",
        conformer=None,
        whisper=None,
        moe=None,
        seam="plain",
        positions="none",
        norm="layer",
        norm_bias=True,
        order="pre",
        gated=False,
        attention_bias=True,
        key_bias=True,
        output_bias="same",
        ffn_bias=True,
        qk_norm=False,
        per_dim_scale=False,
        attention_scale=True,
        logit_cap=0.0,
        groups=c.heads,
        head_dim=c.model_dim // c.heads,
    )
    assert c.vision is not None  # the only tower left
    decoder = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "add_cross_attention": True,
        "is_decoder": True,
        "vocab_size": c.vocab,
        "n_layer": c.layers,
        "n_embd": c.model_dim,
        "n_inner": c.hidden_dim,
        "n_head": c.heads,
        "n_positions": c.max_positions,
        "activation_function": write_activation(c.activation),
        "layer_norm_epsilon": c.norm_eps,
        "tie_word_embeddings": True,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), c.dropout),
    }
    return {
        "architectures": ["VisionEncoderDecoderModel"],
        "model_type": "vision-encoder-decoder",
        "is_encoder_decoder": True,
        "decoder_start_token_id": c.start_id,
        "encoder": vit.write_config(dataclasses.replace(c.vision, pooler=True)),
        "decoder": decoder,
    }


def entries(c: MultimodalConfig) -> list[Entry]:
    """Returns the entries of all tensors that we write for such a model: without the pooler, which it does not use."""
    assert c.vision is not None
    m, width, decoder = c.model_dim, c.vision.model_dim, _decoder(c)
    tower = [_placed(e, f"encoder.{e.theirs.removeprefix('vit.')}", "vision_tower.") for e in vit.readable(c.vision)]
    table_, places = "decoder.transformer.wte.weight", "decoder.transformer.wpe.weight"
    return [
        *tower,
        *(dense("enc_to_dec_proj", "vision_seam.weight", (width, m), bias="vision_seam.bias") if width != m else []),
        table(table_, "embedding.table", (c.vocab, m)),
        table(places, "positions", (c.max_positions, m)),
        *(_placed(e, f"decoder.{e.theirs}", "") for e in gpt2.gpt2_layers(decoder, "decoder.dense", cross=True)),
        *norm("decoder.transformer.ln_f", "decoder_norm", m),
    ]


def _placed(entry: Entry, theirs: str, at: str) -> Entry:
    """Returns the entry of a part's tensor in the whole model's files: their name, and where our parameters are."""
    parts = tuple(Part(f"{at}{part.name}", part.shape, part.inputs) for part in entry.parts)
    return dataclasses.replace(entry, theirs=theirs, parts=parts)


def copies(c: MultimodalConfig) -> dict[str, str]:
    """Returns the tensors that a file may hold besides `readable`, and those that they repeat, by canonical name."""
    del c
    return {_OUTPUT: _TABLE}


def canonical(c: MultimodalConfig, theirs: str) -> str | None:
    """Returns the name of a file's tensor in `readable` or `copies`; None for a tensor that is not needed."""
    side, _, name = theirs.partition(".")
    if side == "encoder" and c.vision is not None:
        known = vit.canonical(c.vision, name)
        return f"encoder.{known.removeprefix('vit.')}" if known and not known.startswith("vit.pooler.") else None
    if side == "decoder":
        known = gpt.canonical(_decoder(c), name)
        return known and f"decoder.{known}"
    return theirs


readable = entries  # the tensors to look for in a folder
untied = kept_apart
is_head_tensor = no_head
