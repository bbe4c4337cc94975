"""The Conformer as a family: what the trainer, the planner and the commands need to know of it."""

import dataclasses
from typing import Any

from models.conformer.config import ConformerConfig, Ctc, StackedMel, Transducer, W2vBert, Wav2Vec, Waveform
from models.conformer.layouts import LAYOUTS
from models.conformer.model import Conformer
from models.family import Family
from models.parts.activations import DENSE, POLICIES


def adapt_data(c: ConformerConfig, data: Any) -> Any:
    """Returns the data as the model hears it."""
    if isinstance(c.front, StackedMel):
        return dataclasses.replace(data, front="kaldi_normed", mels=c.front.bands)
    if isinstance(c.front, Waveform):  # which has no bands of frequency to hide
        return dataclasses.replace(data, front="waveform", augment=dataclasses.replace(data.augment, bands=0, stretches=0))
    return dataclasses.replace(data, front="kaldi" if data.hears_samples else data.front, mels=c.front.bands)


def convention(c: ConformerConfig) -> str:
    """Returns what a count of parameters includes."""
    heads = {
        Ctc: "outputs of CTC",
        Transducer: "the transducer's LSTM and joint network",
        Wav2Vec: "what pre-training predicts with",
        W2vBert: "codebook and outputs of pre-training",
    }
    body = c.layers + c.contrastive_layers
    head = heads.get(type(c.objective), "no head")
    return f"front, {body} blocks, {head}; published numbers are rounded to a hundred million, and do not say which"


FAMILY = Family(
    model=Conformer,
    layouts=LAYOUTS,
    activations=DENSE,
    policies=POLICIES,
    default_experiment=lambda c: "conformer.large",
    adapt_data=adapt_data,
    convention=convention,
    deterministic=lambda c, lengths: dataclasses.replace(c, layers=4, dropout=0.0),  # draws of codes are the same everywhere
    semantic_fields=("layer.norm", "layer.positions", "layer.near", "layer.causal", "layer.order", "positions", "norm_eps"),
    same_outputs=lambda ours, theirs: type(ours.objective) is type(theirs.objective),
)
