"""The sizes of Conformers, and of wav2vec 2.0's Transformers. No JAX: configs are read by tools that never touch an array."""

import dataclasses
from typing import Any, ClassVar, Literal

from models.parts.attention.config import GatedBuckets, GroupedQuery
from models.parts.numbers import check_epsilon, check_finite, nearest_divisor
from models.parts.transformer_config import BlockConfig, Dense, NormConfig, check_dropout

# wav2vec 2.0 (arXiv 2006.11477, section 4.2): taps and strides of its convolutions, together 400 samples, 320 apart.
WAVE = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mel:
    """Two 2-D convolutions of stride 2 over log-mel frames.

    Attributes:
      bands: of a frame.
      channels: of each convolution.
    """

    stride: ClassVar[int] = 4  # frames of a position

    bands: int = 80
    channels: int = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackedMel:
    """A norm and a linear map over pairs of log-mel frames (Wav2Vec2-BERT).

    Attributes:
      bands: of a frame.
    """

    stride: ClassVar[int] = 2  # frames of a position

    bands: int = 80


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waveform:
    """The seven convolutions of wav2vec 2.0 over samples.

    Attributes:
      channels: of each convolution.
      norm: a "layer" norm of each convolution, or a "group" norm, over time, of the first.
      bias: biases of the convolutions.
    """

    stride: ClassVar[int] = 320  # samples of a position

    channels: int = 512
    norm: Literal["layer", "group"] = "layer"
    bias: bool = True

    @property
    def norms_projection(self) -> bool:
        """Whether a layer norm stands before the linear map to the model's width."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubertWaveform(Waveform):
    """HuBERT's front (arXiv 2106.07447, section 3), which is wav2vec 2.0's; distilled models leave out its last norm.

    Attributes:
      projection_norm: a layer norm before the linear map to the model's width.
    """

    projection_norm: bool = True

    @property
    def norms_projection(self) -> bool:
        return self.projection_norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchNorm:
    """A norm over the whole batch, with running statistics for evaluation.

    Attributes:
      decay: the share of them that each step keeps.
    """

    decay: float = 0.99

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay={self.decay}: must be in [0, 1); usual are 0.9 and 0.99")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupNorm:
    """A norm of each position in groups of channels.

    Attributes:
      groups: of channels; 1 is a layer norm.
    """

    groups: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearKeys:
    """A learned vector for each distance of a key, with which a query is multiplied as with the key (Shaw et al., arXiv
    1803.02155, section 3.2); all heads have the same vectors.

    Attributes:
      left: from this distance back on, keys share a vector.
      right: the same ahead.
    """

    left: int = 64
    right: int = 8

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be 0 or more")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConformerLayer:
    """A Conformer's layer.

    Attributes:
      kernel: taps of the depthwise convolution.
      norm: after the convolution.
      bias: biases of the convolution module.
      positions: "relative" (Transformer-XL's sinusoids and two biases), "rotary" (queries and keys are turned), "rotary_input"
        (what they are made of is turned, head by head: the released rotary models), or "none", as the scaled models (2010.10504).
      near: vectors of distances; None has none.
      causal: the convolution hears what came before alone.
    """

    kernel: int = 5
    norm: BatchNorm | GroupNorm = GroupNorm()
    bias: bool = False
    positions: Literal["relative", "rotary", "rotary_input", "none"] = "none"
    near: NearKeys | None = None
    causal: bool = False

    def __post_init__(self) -> None:
        if self.near and self.positions != "none":
            raise ValueError(f"positions={self.positions!r}: keys have vectors of distances (near) already; nearest is 'none'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerLayer:
    """wav2vec 2.0's layer (section 4.2).

    Attributes:
      order: "pre" has norms before sub-layers (the large models), "post" after them (the base).
      positions: biases of attention, of one table for all layers (WavLM); None has none.
    """

    order: Literal["pre", "post"]
    positions: GatedBuckets | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionalPositions:
    """wav2vec 2.0's positions: a grouped convolution of what is heard, added before the stack.

    Attributes:
      taps: of the convolution.
      groups: of its channels.
    """

    taps: int = 128
    groups: int = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ctc:
    """Connectionist temporal classification (Graves et al. 2006).

    Attributes:
      vocab: ids, of which 0 is the blank.
    """

    vocab: int

    def __post_init__(self) -> None:
        if self.vocab < 1:
            raise ValueError(f"vocab={self.vocab}: {type(self).__name__} writes text; it needs its ids")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transducer(Ctc):
    """A transducer (Graves 2012): an LSTM over the tokens so far, and a layer where both sides meet.

    Attributes:
      predictor_layers: of the LSTM.
      predictor_dim: their hidden size.
      joint_dim: hidden size of the layer where both sides meet.
    """

    predictor_layers: int = 1
    predictor_dim: int = 640
    joint_dim: int = 640


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantizer:
    """A product quantizer.

    Attributes:
      codebooks: of each of which an entry is chosen.
      codes: entries of each.
      gumbel: (start, factor a step, least) of the temperature.
      diversity_weight: of the loss that makes all codes be used.
    """

    codebooks: int = 1
    codes: int = 320
    gumbel: tuple[float, float, float] = (2.0, 0.999995, 0.5)
    diversity_weight: float = 0.1

    def __post_init__(self) -> None:
        check_finite(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrastive:
    """Pre-training without texts: a hidden position is told from others of its utterance.

    Attributes:
      quantizer: makes the targets; None compares with a linear map of what the front hears (the scaled recipe).
      code_dim: size of the vectors that are compared.
      negatives: other positions of an utterance.
      temperature: divides cosines.
      contrast_weight: of the contrastive loss; 0 leaves it out, for which the codebook collapses.
    """

    quantizer: Quantizer | None = None
    code_dim: int = 256
    negatives: int = 100
    temperature: float = 0.1
    contrast_weight: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self)
        if self.quantizer and self.code_dim % self.quantizer.codebooks:
            raise ValueError(f"codebooks={self.quantizer.codebooks}: must divide code_dim={self.code_dim}; nearest is 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wav2Vec(Contrastive):
    """wav2vec 2.0 (arXiv 2006.11477): the loss is the contrastive one."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class W2vBert(Contrastive):
    """w2v-BERT (arXiv 2108.06209).

    Attributes:
      contrastive_layers: of a stack before the other, which the contrastive loss is of.
      masked_weight: of the masked prediction of codes, at the end.
    """

    quantizer: Quantizer = Quantizer()  # pyright: ignore[reportIncompatibleVariableOverride]
    contrastive_layers: int
    masked_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantizer.codebooks != 1:
            raise ValueError(f"codebooks={self.quantizer.codebooks}: W2vBert predicts codes of one; nearest is 1")
        if self.contrastive_layers < 1:
            raise ValueError(f"contrastive_layers={self.contrastive_layers}: W2vBert has a contrastive stack; nearest is 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConformerConfig:
    """A Conformer (arXiv 2005.08100) that hears log-mel frames or a waveform. configs/conformer.py has the published rows.

    Attributes:
      layers: of the stack that ends in the loss.
      model_dim: size of the residual stream.
      hidden_dim: inside the feed-forward layers.
      heads: of attention.
      layer: what a layer is made of.
      positions: what is added before the stack.
      final_norm: a layer norm behind the stack (the released models).
      front: what makes positions of sound.
      utterances: the most that share a row.
      dropout: in training, on the outputs of modules, inside feed-forward layers and on attention probabilities.
      norm_eps: is added to the variance in norms.
      objective: what the stack is trained for; None is a tower of a larger model.
    """

    family: ClassVar[str] = "conformer"
    vocabularies: ClassVar[dict[str, str]] = {"vocabulary": "vocab"}
    sized_by_data: ClassVar[dict[str, str]] = {"vocabulary": "objective.vocab", "utterances": "utterances"}

    layers: int
    model_dim: int
    hidden_dim: int
    heads: int
    layer: ConformerLayer | TransformerLayer = ConformerLayer()
    positions: ConvolutionalPositions | None = None
    final_norm: bool = False
    front: Mel | StackedMel | Waveform | HubertWaveform = Mel()
    utterances: int = 1
    dropout: float = 0.1
    norm_eps: float = 1e-5
    objective: Ctc | Transducer | Wav2Vec | W2vBert | None = None

    def __post_init__(self) -> None:
        check_finite(self)
        check_epsilon(self.norm_eps)
        check_dropout(self.dropout)
        if self.model_dim % self.heads:
            best = nearest_divisor(self.model_dim, self.heads)
            raise ValueError(f"heads={self.heads}: must divide model_dim={self.model_dim}; nearest is {best}")
        norm = self.layer.norm if isinstance(self.layer, ConformerLayer) else None
        groups = {"layer.norm": norm.groups if isinstance(norm, GroupNorm) else 1}
        groups["positions"] = self.positions.groups if self.positions else 1
        for name, n in groups.items():
            if self.model_dim % n:
                raise ValueError(f"{name}.groups={n}: must divide model_dim={self.model_dim}; nearest is 1")

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.model_dim // self.heads

    @property
    def contrastive_layers(self) -> int:
        """Layers of the stack before the one that ends in the loss."""
        return self.objective.contrastive_layers if isinstance(self.objective, W2vBert) else 0

    @property
    def vocab(self) -> int:
        """Ids of the outputs; 0 where no text is written."""
        return self.objective.vocab if isinstance(self.objective, Ctc) else 0

    @property
    def transformer(self) -> BlockConfig:
        """The layers' settings as those of a Transformer."""
        order = self.layer.order if isinstance(self.layer, TransformerLayer) else "pre"
        return BlockConfig(
            model_dim=self.model_dim,
            attention=GroupedQuery(heads=self.heads, head_dim=self.head_dim, biases="qkvo"),
            positions=self.buckets,
            feed_forward=Dense(hidden_dim=self.hidden_dim, activation="gelu", bias=True, dropout=self.dropout),
            norm=NormConfig(kind="layer", bias=True, eps=self.norm_eps, order=order),
            dropout=self.dropout,
        )

    @property
    def buckets(self) -> GatedBuckets | None:
        """The biases of relative positions that all layers share; None where there are none."""
        return self.layer.positions if isinstance(self.layer, TransformerLayer) else None

    @property
    def frame_width(self) -> int:
        """The numbers of a frame."""
        return self.front.bands if isinstance(self.front, Mel | StackedMel) else 1

    @property
    def most_frames(self) -> int:
        """Nothing bounds a sound."""
        return 0

    @property
    def most_utterances(self) -> int:
        """The most utterances of a row."""
        return self.utterances

    def tiny(self) -> "ConformerConfig":
        """Returns the same model, small enough for a test and divisible by every mesh of eight devices."""
        layer, front = self.layer, self.front
        if not isinstance(front, StackedMel):
            front = dataclasses.replace(front, channels=8)
        if not isinstance(front, Waveform):
            front = dataclasses.replace(front, bands=min(front.bands, 16))
        if isinstance(layer, ConformerLayer):
            norm = GroupNorm(groups=min(layer.norm.groups, 4)) if isinstance(layer.norm, GroupNorm) else layer.norm
            near = layer.near and NearKeys(left=5, right=2)
            layer = dataclasses.replace(layer, kernel=min(layer.kernel, 5), norm=norm, near=near)
        elif layer.positions is not None:
            layer = dataclasses.replace(layer, positions=GatedBuckets(buckets=8, max_distance=16))
        return dataclasses.replace(
            self,
            layers=4,
            model_dim=32,
            hidden_dim=64,
            heads=4,
            layer=layer,
            positions=self.positions and ConvolutionalPositions(taps=8, groups=4),
            front=front,
            objective=_tiny(self.objective),
            utterances=1,
        )

    @staticmethod
    def modernized(stored: dict[str, Any]) -> dict[str, Any]:
        """Returns stored values of a configuration, of before its fields were several classes', in their present places."""
        return _modernized(stored) if isinstance(stored.get("objective"), str) else stored


def _tiny(objective: Ctc | Transducer | Wav2Vec | W2vBert | None) -> Any:
    """Returns a small objective of the same kind."""
    if isinstance(objective, Contrastive):
        quantizer = objective.quantizer and dataclasses.replace(objective.quantizer, codes=8)
        small: dict[str, Any] = dict(code_dim=16, quantizer=quantizer, negatives=4)
        if isinstance(objective, W2vBert):
            small["contrastive_layers"] = min(objective.contrastive_layers, 2)
        return dataclasses.replace(objective, **small)
    sizes = dict(predictor_dim=16, joint_dim=16) if isinstance(objective, Transducer) else {}
    return objective and dataclasses.replace(objective, vocab=min(objective.vocab, 16), **sizes)


def _modernized(old: dict[str, Any]) -> dict[str, Any]:
    def part(kind: type, **names: str) -> dict[str, Any]:
        """Returns the values of a class's fields, some of which had other names."""
        fields = {field.name: names.get(field.name, field.name) for field in dataclasses.fields(kind)}
        return {"class": kind.__name__} | {new: old[name] for new, name in fields.items() if name in old}

    convolves = old.get("positions") == "convolution"
    if old.get("block", "conformer") == "conformer":
        norm = str(old.get("conv_norm", "layer"))
        groups = {"layer": 1, "group": old.get("groups", 8)}.get(norm, norm)
        layer = part(ConformerLayer, bias="conv_bias") | ({"positions": "none"} if convolves else {})
        layer["norm"] = part(BatchNorm) if norm == "batch" else {"class": "GroupNorm", "groups": groups}
    else:
        layer = {"class": "TransformerLayer", "order": str(old["block"]).removeprefix("transformer_")}
    if old.get("front") == "waveform":
        front = part(Waveform, channels="front_channels", norm="front_norm", bias="front_bias")
    else:
        front = part(Mel, bands="mels", channels="front_channels")
    kinds = {"ctc": Ctc, "transducer": Transducer, "wav2vec": Wav2Vec, "w2v_bert": W2vBert}
    objective = None
    if old["objective"] != "none":
        kind = kinds.get(old["objective"])
        objective = part(kind, temperature="contrast_temperature") if kind else {"class": old["objective"]}
    if objective and old["objective"] in ("wav2vec", "w2v_bert"):
        objective["quantizer"] = part(Quantizer) if old.get("codebooks") else None
    positions = part(ConvolutionalPositions, taps="place_taps", groups="place_groups") if convolves else None
    return part(ConformerConfig) | dict(layer=layer, front=front, objective=objective, positions=positions)


CONFIG = ConformerConfig
