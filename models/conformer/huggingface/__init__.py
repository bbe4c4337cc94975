"""Wav2Vec2, HuBERT, WavLM, Wav2Vec2-Conformer and Wav2Vec2-BERT in Hugging Face's files: their tensors. No JAX.

A folder without outputs, and one of pre-training, whose quantizer is not ours, is a tower, without an objective. A Conformer's
folder has a convolution of positions that its model never uses (`pos_conv_embed`): it is not read, and not written.
settings.py has the settings, layers.py the tensors of layers.
"""

import re
from typing import Any

from models.conformer.config import (
    WAVE,
    ConformerConfig,
    ConformerLayer,
    ConvolutionalPositions,
    HubertWaveform,
    StackedMel,
    Waveform,
)
from models.conformer.huggingface.layers import conformer_layers, transformer_layers
from models.conformer.huggingface.settings import MODEL_TYPES
from models.interchange import Entry, Interchange
from models.interchange.settings import Settings, only, setting
from models.interchange.tensors import convolution, dense, norm, without_prefix

_HEADS = ("lm_head.", "quantizer.", "project_q.", "project_hid.")


def _kind(c: ConformerConfig) -> str:
    """Returns the model_type as which a model is written."""
    if isinstance(c.layer, ConformerLayer):
        return "wav2vec2-bert" if isinstance(c.front, StackedMel) else "wav2vec2-conformer"
    if isinstance(c.front, HubertWaveform):
        return "hubert"
    return "wavlm" if c.buckets else "wav2vec2"


def _prefix(c: ConformerConfig) -> str:
    return f"{_kind(c).replace('-', '_')}."


def _front(c: ConformerConfig, at: str) -> list[Entry]:
    """Returns the entries of what makes positions of sound."""
    m, projection = c.model_dim, f"{at}feature_projection"
    if not isinstance(c.front, Waveform):
        assert isinstance(c.front, StackedMel)
        n, mapped, normed = c.front.stride * c.front.bands, [], True
    else:
        n, mapped, normed = c.front.channels, [], c.front.norms_projection
        for i, (size, _) in enumerate(WAVE):
            layer, inputs = f"{at}feature_extractor.conv_layers.{i}", n if i else 1
            biases = f"front.bias{i}" if c.front.bias else ""
            mapped += convolution(f"{layer}.conv", f"front.filter{i}", (size, inputs, n), bias=biases)
            if c.front.norm == "layer" or i == 0:
                mapped += norm(f"{layer}.layer_norm", f"front.norm{i}", n)
    mapped += norm(f"{projection}.layer_norm", "front.norm", n) if normed else []
    return mapped + dense(f"{projection}.projection", "front.weight", (n, m), bias="front.bias")


class _HuggingFace(Interchange[ConformerConfig]):
    def model_type_of(self, c: ConformerConfig) -> str:
        return _kind(c)

    def data_fields(self, c: ConformerConfig, preprocessor: Settings) -> dict[str, Any]:
        """Returns whether a waveform of 16 kHz has mean 0 and variance 1; frames must be Kaldi's, two of them a position."""
        only(preprocessor, sampling_rate=(16_000,))
        if isinstance(c.front, StackedMel):
            bands = c.front.bands
            extractor = ("SeamlessM4TFeatureExtractor",)
            only(preprocessor, feature_extractor_type=extractor, feature_size=(bands,), num_mel_bins=(bands,), stride=(2,))
            return {}
        only(preprocessor, feature_extractor_type=("Wav2Vec2FeatureExtractor",), feature_size=(1,))
        return {"front": "waveform" if setting(preprocessor, "do_normalize", bool, True) else "samples"}

    def entries(self, c: ConformerConfig) -> list[Entry]:
        return self.readable_entries(c) if c.vocab else without_prefix(self.readable_entries(c), _prefix(c))

    def readable_entries(self, c: ConformerConfig) -> list[Entry]:
        m, at = c.model_dim, _prefix(c)
        mapped, stack = _front(c, at), f"{at}encoder."
        if isinstance(c.layer, ConformerLayer):
            mapped += conformer_layers(c, c.layer, stack)
        else:
            mapped += transformer_layers(c, c.positions or ConvolutionalPositions(), stack)
        if not isinstance(c.front, StackedMel):
            mapped += norm(f"{stack}layer_norm", "final_norm" if c.final_norm else "first_norm", m)
        return mapped + (dense("lm_head", "head.weight", (m, c.vocab), bias="head.bias") if c.vocab else [])

    def canonical_name(self, c: ConformerConfig, theirs: str) -> str | None:
        unused = "pos_conv_embed" if isinstance(c.layer, ConformerLayer) else "masked_spec_embed"
        if unused in theirs or theirs.endswith(("num_batches_tracked", "masked_spec_embed", "embed_positions.inv_freq")):
            return None
        for old, new in (("weight_g", "parametrizations.weight.original0"), ("weight_v", "parametrizations.weight.original1")):
            theirs = re.sub(rf"pos_conv_embed\.conv\.{old}$", f"pos_conv_embed.conv.{new}", theirs)
        return theirs if theirs.startswith((_prefix(c), *_HEADS)) else f"{_prefix(c)}{theirs}"

    def is_head_tensor(self, theirs: str) -> bool:
        return theirs.startswith(_HEADS)


INTERCHANGE = _HuggingFace(MODEL_TYPES)
