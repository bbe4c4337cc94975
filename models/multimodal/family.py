"""Models of pictures and sounds as a family: what the trainer, the planner and the commands need to know of it."""

from collections.abc import Sequence
from typing import Any

from models.conformer.config import ConformerConfig
from models.family import deterministic_encoder_decoder, encoder_decoder
from models.multimodal.config import MultimodalConfig
from models.multimodal.layouts import LAYOUTS
from models.multimodal.model import Multimodal
from models.parts.attention.config import Learned
from models.parts.nested import changed
from models.parts.transformer_config import MEANING_OF_BLOCKS
from models.vit.family import deterministic as deterministic_vit
from models.whisper.config import WhisperConfig


def deterministic(c: MultimodalConfig, lengths: Sequence[int]) -> MultimodalConfig:
    """Returns the configuration with nothing random; see Family.deterministic."""
    towers: dict[str, Any] = {}
    if c.towers.vision:
        towers["towers.vision"] = deterministic_vit(c.towers.vision, lengths)
    if c.towers.audio:
        towers["towers.audio.dropout"] = 0.0
    most = c.positions.rows if isinstance(c.positions, Learned) else max(lengths)
    texts = [n for n in lengths if n <= most]  # rows of text, not of frames
    return changed(deterministic_encoder_decoder(c, texts or lengths), towers)


def convention(c: MultimodalConfig) -> str:
    """Returns what a count of parameters includes."""
    audio = {ConformerConfig: "a Conformer", WhisperConfig: "Whisper's encoder"}.get(type(c.towers.audio), "")
    towers = " and ".join(filter(None, ("a ViT without classes" if c.towers.vision else "", audio)))
    return f"{towers}, the maps to the decoder's width, and the decoder with its one table"


FAMILY = encoder_decoder(
    Multimodal,
    LAYOUTS,
    default_experiment=lambda c: "multimodal.quickstart",
    deterministic=deterministic,
    convention=convention,
    semantic_fields=(*MEANING_OF_BLOCKS, "positions.first", "inputs.scaled"),
    searched=lambda c: LAYOUTS,
)
