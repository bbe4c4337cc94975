"""The sizes of Conformers, and of wav2vec 2.0's Transformers. No JAX: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar, Literal

from models.parts.numbers import check_epsilon, check_finite
from models.parts.transformer_config import check_dropout

Objective = Literal["ctc", "transducer", "wav2vec", "w2v_bert", "none"]
# wav2vec 2.0 (arXiv 2006.11477, section 4.2): taps and strides of its convolutions, together 400 samples, 320 apart.
WAVE = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
STRIDE = {"mel": 4, "waveform": 320}  # frames, or samples, of a position


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConformerConfig:
    """A Conformer (arXiv 2005.08100) that hears log-mel frames or a waveform. configs/conformer.py has the published rows.

    Attributes:
      block: a layer of the stack: a "conformer"'s, or a "transformer"'s with its norm before or behind a sub-layer, which
        wav2vec 2.0 has ("transformer_pre" in its large models, "transformer_post" in its base; arXiv 2006.11477, section 4.2).
      layers: of the stack that ends in the loss.
      contrastive_layers: of the stack before it, which the contrastive loss is of (w2v-BERT, arXiv 2108.06209); 0 has none.
      hidden_dim: inside the feed-forward layers.
      kernel: taps of the depthwise convolution.
      conv_norm: after it: "batch" norm over the whole batch, "group" norm of each position, or "layer" norm.
      groups: of "group".
      positions: "relative" (Transformer-XL's sinusoids and two biases), "rotary" (queries and keys are turned), "rotary_input"
        (what they are made of is turned, head by head: the released rotary models), "convolution" (of `place_taps`, added
        before the stack: wav2vec 2.0), or "none", as the scaled models (2010.10504).
      place_taps, place_groups: of that convolution.
      final_norm: a layer norm behind the stack (the released models).
      conv_bias: biases of the convolution module.
      front: "mel" has two 2-D convolutions of stride 2, "waveform" the seven convolutions of wav2vec 2.0.
      mels: bands of a frame.
      front_channels: of the 2-D convolutions; of the waveform's.
      front_norm: of the waveform's convolutions: a "layer" norm of each, or a "group" norm, over time, of the first.
      front_bias: biases of the waveform's convolutions.
      utterances: the most that share a row.
      objective: "ctc" (Graves et al. 2006), "transducer" (Graves 2012); without texts "wav2vec" (2006.11477) or "w2v_bert";
        "none" is a tower of a larger model.
      vocab: ids of CTC's and the transducer's outputs; 0 is the blank.
      predictor_layers, predictor_dim: of the transducer's LSTM.
      joint_dim: of the layer where its two sides meet.
      code_dim: size of the vectors that the contrastive loss compares.
      codebooks: of the product quantizer; 0 compares with a linear map of what the front hears (the scaled recipe).
      codes: entries of each.
      negatives: other positions of an utterance that a prediction is told from.
      contrast_temperature: divides cosines.
      gumbel: (start, factor a step, least) of the quantizer's temperature.
      diversity_weight: of the loss that makes all codes be used.
      contrast_weight: of the contrastive loss; 0 leaves it out, for which the codebook collapses.
      masked_weight: of w2v-BERT's masked prediction.
    """

    family: ClassVar[str] = "conformer"
    vocabularies: ClassVar[dict[str, str]] = {"vocabulary": "vocab"}

    block: Literal["conformer", "transformer_pre", "transformer_post"] = "conformer"
    layers: int
    model_dim: int
    hidden_dim: int
    heads: int
    kernel: int = 5
    contrastive_layers: int = 0
    conv_norm: Literal["batch", "group", "layer"] = "layer"
    groups: int = 8
    positions: Literal["relative", "rotary", "rotary_input", "convolution", "none"] = "none"
    place_taps: int = 128
    place_groups: int = 16
    final_norm: bool = False
    conv_bias: bool = False
    front: Literal["mel", "waveform"] = "mel"
    mels: int = 80
    front_channels: int = 32
    front_norm: Literal["layer", "group"] = "layer"
    front_bias: bool = True
    utterances: int = 1
    dropout: float = 0.1
    norm_eps: float = 1e-5
    objective: Objective = "ctc"
    vocab: int = 0
    predictor_layers: int = 1
    predictor_dim: int = 640
    joint_dim: int = 640
    code_dim: int = 256
    codebooks: int = 0
    codes: int = 320
    negatives: int = 100
    contrast_temperature: float = 0.1
    gumbel: tuple[float, float, float] = (2.0, 0.999995, 0.5)
    diversity_weight: float = 0.1
    contrast_weight: float = 1.0
    masked_weight: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self)
        check_epsilon(self.norm_eps)
        check_dropout(self.dropout)
        if self.model_dim % self.heads:
            fits = [n for n in range(1, self.model_dim + 1) if self.model_dim % n == 0]
            best = min(fits, key=lambda n: abs(n - self.heads))
            raise ValueError(f"heads={self.heads}: must divide model_dim={self.model_dim}; nearest is {best}")
        if self.conv_norm == "group" and self.model_dim % self.groups:
            raise ValueError(f"groups={self.groups}: must divide model_dim={self.model_dim}; nearest is 1")
        if self.positions == "convolution" and self.model_dim % self.place_groups:
            raise ValueError(f"place_groups={self.place_groups}: must divide model_dim={self.model_dim}; nearest is 1")
        if self.block != "conformer" and self.positions not in ("convolution", "none"):
            raise ValueError(
                f"positions={self.positions!r}: of block='conformer' alone; of {self.block!r} nearest is 'convolution'"
            )
        if (self.objective == "w2v_bert") != bool(self.contrastive_layers):
            need = "needs contrastive_layers" if self.objective == "w2v_bert" else "has none"
            raise ValueError(f"contrastive_layers={self.contrastive_layers}: objective={self.objective!r} {need}")
        if self.objective == "w2v_bert" and self.codebooks != 1:
            raise ValueError(f"codebooks={self.codebooks}: objective='w2v_bert' predicts codes of one; nearest is 1")
        silent = self.pretrains or self.objective == "none"
        if silent == bool(self.vocab):
            need = "writes nothing; nearest is 0" if silent else "writes text; it needs its ids"
            raise ValueError(f"vocab={self.vocab}: objective={self.objective!r} {need}")
        if self.codebooks and self.code_dim % self.codebooks:
            raise ValueError(f"codebooks={self.codebooks}: must divide code_dim={self.code_dim}; nearest is 1")

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.model_dim // self.heads

    @property
    def pretrains(self) -> bool:
        """Whether the objective needs no texts."""
        return self.objective in ("wav2vec", "w2v_bert")

    @property
    def stride(self) -> int:
        """Frames, or samples, of a position."""
        return STRIDE[self.front]

    @property
    def frame_width(self) -> int:
        """The numbers of a frame."""
        return self.mels if self.front == "mel" else 1

    @property
    def most_frames(self) -> int:
        """Nothing bounds a sound."""
        return 0

    @property
    def most_utterances(self) -> int:
        """The most utterances of a row."""
        return self.utterances

    def tiny(self) -> "ConformerConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        return dataclasses.replace(
            self,
            layers=4,
            contrastive_layers=min(self.contrastive_layers, 2),
            model_dim=32,
            hidden_dim=64,
            heads=4,
            kernel=min(self.kernel, 5),
            groups=4,
            place_taps=8,
            place_groups=4,
            mels=min(self.mels, 16),
            front_channels=8,
            vocab=min(self.vocab, 16),
            predictor_dim=16,
            joint_dim=16,
            code_dim=16,
            codes=8,
            negatives=4,
            utterances=1,
        )


CONFIG = ConformerConfig
