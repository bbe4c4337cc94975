"""`vision-encoder-decoder` in Hugging Face's files: a ViT, and a GPT-2 that attends to what it sees. No JAX."""

import dataclasses
from typing import Any

from models.gpt.huggingface import gpt2
from models.interchange import Entry, Interchange, InterchangeError, Part
from models.interchange.rows import ModelType, Row, Setting, also, constant, fixed
from models.interchange.settings import Fields, Settings, only, setting
from models.interchange.tensors import dense, norm, table
from models.multimodal.config import MultimodalConfig
from models.parts.nested import changed
from models.vit.huggingface import INTERCHANGE as VIT

_TABLE, _OUTPUT = "decoder.transformer.wte.weight", "decoder.lm_head.weight"


def _side(theirs: Settings, side: str, kind: str) -> dict[str, Any]:
    """Returns the settings of one of the two models, which must be of this model_type."""
    settings = setting(theirs, side, dict)
    if (given := settings.get("model_type")) != kind:
        raise InterchangeError(f"config.json: {side}.model_type={given!r} is not supported, only {kind!r}")
    return settings


def _read_vision(theirs: Settings) -> Fields:
    tower = VIT.read_config(_side(theirs, "encoder", "vit") | {"architectures": ["ViTModel"]})
    return {"towers.vision": changed(tower, {"head.pooler": False})}


def _write_vision(c: MultimodalConfig) -> dict[str, Any]:
    assert c.towers.vision is not None  # the only tower left
    settings = VIT.write_config(changed(c.towers.vision, {"head.pooler": True}))
    if (kind := settings["model_type"]) != "vit":
        raise InterchangeError(f"towers.vision: no captioner with an encoder of type {kind!r} is written here, only 'vit'")
    return {"encoder": settings}


_DECODER = (
    constant("model_type", "gpt2"),
    constant("architectures", ["GPT2LMHeadModel"]),
    constant("add_cross_attention", True),
    constant("is_decoder", True),
    Setting("vocab_size", "vocab", int),
    *gpt2.SIZES,
    fixed("tie_word_embeddings", True),
    also("attn_pdrop", "dropout"),
    also("embd_pdrop", "dropout"),
    gpt2.DROPOUT,
)


def _read_decoder(theirs: Settings) -> Fields:
    settings = _side(theirs, "decoder", "gpt2")
    only(settings, cross_attention_hidden_size=())
    if not setting(settings, "add_cross_attention", bool, False):
        raise InterchangeError("config.json: decoder.add_cross_attention is false: the text would not depend on the picture")
    setting(settings, "tie_word_embeddings", bool, True)
    if (positions := setting(settings, "n_positions", int)) < 1:
        raise InterchangeError(f"config.json: decoder.n_positions={positions}: a table of positions has one row at least")
    start = setting(theirs, "decoder_start_token_id", int, setting(settings, "bos_token_id", int, 50_256))
    return {"decoder.start_id": start} | {path: value for row in _DECODER for path, value in row.read(settings).items()}


def _write_decoder(c: MultimodalConfig) -> dict[str, Any]:
    return {"decoder": {key: value for row in _DECODER for key, value in row.write(c).items()}}


_CAPTIONER = ModelType(
    config=MultimodalConfig,
    name="ViT and GPT-2",
    architectures=("VisionEncoderDecoderModel",),
    null_is_default=True,
    fields={"towers.audio": None, "towers.seam": "plain"} | gpt2.FIELDS,
    rows=(
        constant("is_encoder_decoder", True),
        also("decoder_start_token_id", "decoder.start_id"),
        Row(_read_vision, _write_vision),
        Row(_read_decoder, _write_decoder),
    ),
)


class _HuggingFace(Interchange[MultimodalConfig]):
    def entries(self, c: MultimodalConfig) -> list[Entry]:
        """Returns the entries of all tensors that we write for such a model: without the pooler, which it does not use."""
        vision = c.towers.vision
        assert vision is not None
        m, width = c.model_dim, vision.model_dim
        tower = VIT.readable_entries(vision)
        return [
            *(_placed(e, f"encoder.{e.theirs.removeprefix('vit.')}", "vision_tower.") for e in tower),
            *(dense("enc_to_dec_proj", "vision_seam.weight", (width, m), bias="vision_seam.bias") if width != m else []),
            table(_TABLE, "embedding.table", (c.vocab, m)),
            table("decoder.transformer.wpe.weight", "positions", (c.positions.rows, m)),
            *(_placed(e, f"decoder.{e.theirs}", "") for e in gpt2.gpt2_layers(c, "decoder.dense", cross=True)),
            *norm("decoder.transformer.ln_f", "decoder_norm", m),
        ]

    def tied_tensors(self, c: MultimodalConfig) -> dict[str, str]:
        return {_OUTPUT: _TABLE}

    def canonical_name(self, c: MultimodalConfig, theirs: str) -> str | None:
        side, _, name = theirs.partition(".")
        if side == "encoder" and c.towers.vision is not None:
            known = VIT.canonical_name(c.towers.vision, name)
            return f"encoder.{known.removeprefix('vit.')}" if known and not known.startswith("vit.pooler.") else None
        if side == "decoder":
            known = gpt2.canonical_name(name)
            return known and f"decoder.{known}"
        return theirs


def _placed(entry: Entry, theirs: str, at: str) -> Entry:
    """Returns the entry of a part's tensor in the whole model's files: their name, and where our parameters are."""
    parts = tuple(Part(f"{at}{part.name}", part.shape, part.inputs) for part in entry.parts)
    return dataclasses.replace(entry, theirs=theirs, parts=parts)


INTERCHANGE = _HuggingFace({"vision-encoder-decoder": _CAPTIONER})
