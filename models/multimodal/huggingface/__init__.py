"""`vision-encoder-decoder` in Hugging Face's files: a ViT, and a decoder (decoders.py) that attends to what it sees. No JAX."""

import dataclasses
from typing import Any

from models.gpt.huggingface import gpt2
from models.interchange import Entry, Interchange, InterchangeError, Part
from models.interchange.rows import ModelType, Row, also, constant
from models.interchange.settings import Fields, Settings, only, setting
from models.interchange.tensors import dense
from models.multimodal.config import MultimodalConfig
from models.multimodal.huggingface.decoders import BODIES, DECODERS, TIED, kind_of
from models.parts.nested import changed
from models.vit.huggingface import INTERCHANGE as VIT


def _side(theirs: Settings, side: str, *kinds: str) -> dict[str, Any]:
    """Returns the settings of one of the two models, which must be of one of these model_types."""
    settings = setting(theirs, side, dict)
    if (given := settings.get("model_type")) not in kinds:
        known = " or ".join(map(repr, kinds))
        raise InterchangeError(f"config.json: {side}.model_type={given!r} is not supported, only {known}")
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


def _check_decoder(theirs: Settings, settings: Settings) -> None:
    """Raises InterchangeError for a decoder that does not attend to the picture, or to vectors of another width."""
    if settings["model_type"] == "gpt2":
        only(settings, cross_attention_hidden_size=())
        setting(settings, "tie_word_embeddings", bool, True)
        if (positions := setting(settings, "n_positions", int)) < 1:
            raise InterchangeError(f"config.json: decoder.n_positions={positions}: a table of positions has one row at least")
    else:
        width = setting(theirs["encoder"], "hidden_size", int, 768)
        only(settings, cross_attention_hidden_size=(width,))
    # TrOCR's classes attend to a picture as decoders.
    needs = "add_cross_attention" if settings["model_type"] == "gpt2" else "is_decoder"
    if not setting(settings, needs, bool, False):
        raise InterchangeError(f"config.json: decoder.{needs} is false: the text would not depend on the picture")


def _read_decoder(theirs: Settings) -> Fields:
    settings = _side(theirs, "decoder", *DECODERS)
    kind = DECODERS[settings["model_type"]]
    _check_decoder(theirs, settings)
    first = setting(settings, "bos_token_id", int, 50_256 if settings["model_type"] == "gpt2" else 0)
    fields: Fields = {"decoder.start_id": setting(theirs, "decoder_start_token_id", int, first)}
    fields |= kind.initial | {path: value for path, value in kind.fields.items() if not callable(value)}
    for row in kind.rows:
        fields |= row.read(settings)
    return fields


def _write_decoder(c: MultimodalConfig) -> dict[str, Any]:
    kind = DECODERS[kind_of(c)]
    return {"decoder": {"model_type": kind_of(c), "architectures": list(kind.architectures)} | kind.write(c)}


_CAPTIONER = ModelType(
    config=MultimodalConfig,
    name="picture's decoder",
    architectures=("VisionEncoderDecoderModel",),
    null_is_default=True,
    fields={"towers.audio": None},
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
        projected = width != m and c.towers.seam == "plain"
        tower = VIT.readable_entries(vision)
        return [
            *(_placed(e, f"encoder.{e.theirs.removeprefix('vit.')}", "vision_tower.") for e in tower),
            *(dense("enc_to_dec_proj", "vision_seam.weight", (width, m), bias="vision_seam.bias") if projected else []),
            *(_placed(e, f"decoder.{e.theirs}", "") for e in BODIES[kind_of(c)](c)),
        ]

    def tied_tensors(self, c: MultimodalConfig) -> dict[str, str]:
        table_, output = TIED[kind_of(c)]
        return {f"decoder.{output}": f"decoder.{table_}"}

    def canonical_name(self, c: MultimodalConfig, theirs: str) -> str | None:
        side, _, name = theirs.partition(".")
        if side == "encoder" and c.towers.vision is not None:
            known = VIT.canonical_name(c.towers.vision, name)
            return f"encoder.{known.removeprefix('vit.')}" if known and not known.startswith("vit.pooler.") else None
        if side == "decoder":
            known = gpt2.GPT2.canonical_name(name) if kind_of(c) == "gpt2" else name
            return known and f"decoder.{known}"
        return theirs


def _placed(entry: Entry, theirs: str, at: str) -> Entry:
    """Returns the entry of a part's tensor in the whole model's files: their name, and where our parameters are."""
    parts = tuple(Part(f"{at}{part.name}", part.shape, part.inputs) for part in entry.parts)
    return dataclasses.replace(entry, theirs=theirs, parts=parts)


INTERCHANGE = _HuggingFace({"vision-encoder-decoder": _CAPTIONER})
