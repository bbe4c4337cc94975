"""The settings of dense Transformer layers, and of language models made of them. No JAX here: configs are plain data."""

import dataclasses
from typing import Any, ClassVar, Literal

from models.parts.attention.config import (
    Alibi,
    AnyAttention,
    Disentangled,
    Latent,
    Learned,
    NormKind,
    Positions,
    RelativeBuckets,
    Rotary,
    Sinusoidal,
)
from models.parts.moe.config import MoeConfig
from models.parts.numbers import check_epsilon, check_finite, check_literals

Order = Literal["pre", "post", "parallel", "parallel_two", "sandwich", "reordered"]
Activation = Literal["relu", "gelu", "gelu_tanh", "gelu_sigmoid", "silu"]


def check_dropout(rate: float) -> None:
    """Raises ValueError for a rate that `layers.dropout`, which rounds to a 256th, would make 1 or, unless it is 0, 0."""
    if not 0 <= rate < 1:
        raise ValueError(f"dropout={rate}: must be in [0, 1)")
    if rate and round(rate * 256) in (0, 256):
        fits = "0 and 1/256 = 0.00390625" if rate < 0.5 else "255/256 = 0.99609375"
        raise ValueError(f"dropout={rate}: is rounded to a multiple of 1/256; nearest that can be had: {fits}")


# Settings that change what a Transformer computes, but none of its shapes (models.family.Family.semantic_fields).
MEANING_OF_BLOCKS = (
    *(f"norm.{name}" for name in ("order", "kind", "eps", "branch_scale")),
    "feed_forward.activation",
    *(f"positions.{name}" for name in ("class", "base", "dims", "scaling", "max_distance")),
    *(f"attention.{name}" for name in ("pattern", "logit_cap", "scale_dim", "qk_norm.kind")),
)
MEANING_OF_LM = (*MEANING_OF_BLOCKS, "positions.first", "output.cap", "output.divisor", "embedding_scale")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormConfig:
    """The norms of a stack, and where they stand.

    Attributes:
      kind: "rms" (scale alone; what Lingvo calls layer norm), "rms_plus_one" (the same with 1 + scale, Gemma) or "layer".
      bias: adds a bias.
      eps: is added to the variance.
      order: "pre" x + f(norm(x)), with a norm at the end of the stack; "post" norm(x + f(x)), the original Transformer's and
        BERT's; "parallel" x + attention(norm(x)) + ffn(norm(x)) (PaLM, section 2); "parallel_two" the same with a norm for
        each (GPT-NeoX, arXiv 2204.06745, section 2.1); "sandwich" x + norm(f(norm(x))) (Gemma 2, arXiv 2408.00118, section 2);
        "reordered" x + norm(f(x)) (OLMo 2, arXiv 2501.00656, section 3.3.2). All but "post" have a norm at the end.
      branch_scale: factor of what is added to x (Granite: residual_multiplier).
      embedding: the embeddings have a norm too (BLOOM, arXiv 2211.05100, section 3.2.2); of a decoder alone.
      layer_scale: what a learned factor of each dimension of a sub-layer's output is at first, before the output is added (CaiT,
        arXiv 2103.17239, section 2: 0.1 to 1e-6, by depth; DINOv2: 1e-5 or 1); 0 has none.
    """

    kind: NormKind = "rms"
    bias: bool = False
    eps: float = 1e-6
    order: Order = "pre"
    branch_scale: float = 1.0
    embedding: bool = False
    layer_scale: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self)
        check_literals(self)
        check_finite(self)
        check_epsilon(self.eps, "eps")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense:
    """A feed-forward network: act(x wi) wo.

    Attributes:
      hidden_dim: its hidden size.
      activation: the function `act`.
      gated: act(x wg) * (x wi) instead of act(x wi) (Shazeer 2020).
      bias: of all projections.
      dropout: on the hidden layer (T5).
    """

    hidden_dim: int
    activation: Activation = "relu"
    gated: bool = False
    bias: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_literals(self)
        check_dropout(self.dropout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """A Transformer layer (models/parts/transformer.py). Fields, not subclasses, tell the published ones apart.

    Attributes:
      model_dim: size of the residual stream.
      attention: its form.
      positions: None has none.
      feed_forward: of dense layers; a mixture's experts differ from it where they say so.
      dropout: on sub-layer outputs and attention probabilities, and in a whole model on embeddings.
      init_scale: variance of the initial matrices of layers and routers, times their inputs (Switch Transformer: 0.1).
    """

    model_dim: int
    attention: AnyAttention
    positions: Positions
    feed_forward: Dense
    norm: NormConfig = NormConfig()
    dropout: float = 0.0
    init_scale: float = 1.0

    norms_embeddings: ClassVar[bool] = False  # whether norm.embedding may be set

    def __post_init__(self) -> None:
        check_finite(self)
        if self.norm.embedding and not self.norms_embeddings:
            raise ValueError("norm.embedding=True: only a decoder without a source has such a norm; nearest is False")
        if not self.init_scale > 0:
            raise ValueError(f"init_scale={self.init_scale}: must be positive; Switch Transformer's is 0.1")
        check_dropout(self.dropout)
        if isinstance(self.positions, Rotary):
            self.positions.check(self.attention.rotary_dim)
        elif any(layer.base or not layer.rotary for layer in self.attention.pattern):
            raise ValueError("attention.pattern: bases of layers, and layers without rotary positions, need positions=Rotary")
        elif isinstance(self.attention, Latent):
            raise ValueError(f"positions={type(self.positions).__name__}: latent attention has none such; nearest is Rotary")

    def refuse_pattern(self) -> None:
        """Raises ValueError for layers that differ and stretched positions, of a model that has neither."""
        if self.attention.pattern:
            raise ValueError(f"attention.pattern={self.attention.pattern}: there are no such layers here; nearest is ()")
        if isinstance(self.positions, Rotary) and (self.positions.scaling or self.positions.dims):
            raise ValueError(f"positions={self.positions}: rates are not stretched here; nearest is Rotary of all dimensions")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """The output logits of a language model.

    Attributes:
      tied: logits use the embedding table; otherwise a matrix of their own.
      bias: of each token.
      cap: c tanh(x / c) on logits; 0 does nothing.
      divisor: logits are divided by it before they are capped (Granite: logits_scaling).
      label_smoothing: mass moved from the label to all other classes.
      mtp: weight of the loss of a decoder's second prediction head, which predicts in training the token after the next one
        (multi-token prediction of depth 1, DeepSeek-V3, arXiv 2412.19437, section 2.2: .3, and .1 for its last 4.8e12 tokens); 0
        has none.
    """

    tied: bool = True
    bias: bool = False
    cap: float = 0.0
    label_smoothing: float = 0.0
    mtp: float = 0.0
    divisor: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self)
        if self.divisor == 0:
            raise ValueError("divisor=0.0: logits cannot be divided by it; 1 changes nothing")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LmConfig(BlockConfig):
    """A stack of Transformer layers over token embeddings.

    Attributes:
      vocab: ids of the token embedding, and classes of the output logits.
      layers: depth of the stack.
      embedding_scale: factor of the embeddings (Gemma: sqrt(M)).
    """

    positions: Learned | Rotary | RelativeBuckets | Disentangled | Sinusoidal | Alibi | None
    vocab: int
    layers: int
    embedding_scale: float = 1.0
    output: Output = Output()

    vocabularies: ClassVar[dict[str, str]] = {"vocabulary": "vocab"}  # a cache's manifest key -> our field
    sized_by_data: ClassVar[dict[str, str]] = {"positions": "positions.rows"}  # a size of the data's -> our field

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.positions, RelativeBuckets) and self.positions.shared:
            raise ValueError("positions.shared=True: only encoder-decoders share a table; nearest is False")

    @property
    def embedding_dim(self) -> int:
        """Dimensions of the vectors of tokens, of which tied logits are made."""
        return self.model_dim

    @property
    def max_positions(self) -> int:
        """Rows of the learned table of positions; 0 with other positions, whose length is not bounded."""
        return self.positions.rows if isinstance(self.positions, Learned) else 0

    def shrunk(self) -> dict[str, Any]:
        """Returns field values small enough for a test and divisible by the meshes of eight devices; the variant stays."""
        positions, attention = self.positions, self.attention.shrunk()
        if isinstance(positions, Learned):
            positions = dataclasses.replace(positions, rows=min(positions.rows, 64) + positions.first)
        elif isinstance(positions, Rotary):
            positions = positions.shrunk(attention.rotary_dim)
        return dict(
            vocab=64,
            layers=4,
            model_dim=16,
            attention=attention,
            positions=positions,
            feed_forward=dataclasses.replace(self.feed_forward, hidden_dim=32),
            dropout=0.1,
            embedding_scale=4.0 if self.embedding_scale != 1 else 1.0,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackConfig(BlockConfig):
    """Layers of which some may be mixtures of experts (models/parts/layer_group.py).

    Attributes:
      layers: depth.
      moe: the mixture of experts of every n-th layer; None makes all layers dense.
    """

    layers: int
    moe: MoeConfig | None = None

    stacks: ClassVar[int] = 1  # of which each has its share of the layers

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = self.multiple
        if self.repeated % whole or self.repeated < 1:
            made = ["half encoder, half decoder"] * (self.stacks == 2)
            if self.moe:
                n = self.moe.every
                made.append(f"{ {1: 'every', 2: 'every second', 3: 'every third'}.get(n, f'every {n}th') } an MoE layer")
            before, times = self.layers - self.repeated, max(self.repeated // whole, 0)
            raise ValueError(
                f"layers={self.layers}: must be {f'{before} and ' if before else ''}a multiple of {whole} "
                f"({', '.join(made) or 'at least one'}); nearest are {before + max(times, 1) * whole} and "
                f"{before + (times + 1) * whole}"
            )

    @property
    def leading(self) -> int:
        """Dense layers before the stack of equal groups."""
        return self.moe.leading if self.moe else 0

    @property
    def repeated(self) -> int:
        """Layers of the stacks of equal groups."""
        return self.layers - self.leading

    @property
    def multiple(self) -> int:
        """The number that divides the number of layers."""
        return self.stacks * len(self.layer_group)

    @property
    def layer_group(self) -> tuple[str, ...]:
        """The layers of a layer group: dense ones and a mixture after or before them, or in a dense model one layer."""
        if self.moe is None:
            return ("dense",)
        dense = ["dense" if i == 0 else f"dense_{i}" for i in range(self.moe.every - 1)]
        return ("sparse", *dense) if self.moe.first else (*dense, "sparse")

    @property
    def layer_groups(self) -> int:
        """The number of layer groups of a stack."""
        return self.repeated // (self.stacks * len(self.layer_group))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The differences of a decoder from the encoder beside it.

    Attributes:
      layers: those of the model that are the decoder's; 0 means half.
      start_id: the token before the first of a target.
      source_dropout: on the encoder's output (T5).
    """

    layers: int = 0
    start_id: int = 0
    source_dropout: float = 0.0

    def __post_init__(self) -> None:
        check_dropout(self.source_dropout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """The loss of a decoder's tokens.

    Attributes:
      label_smoothing: mass moved from the label to all other classes.
      z_weight: of log(sum of exp logits)^2 of the output logits (T5X: 1e-4); 0 computes none.
    """

    label_smoothing: float = 0.0
    z_weight: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self)
        if self.z_weight < 0:
            raise ValueError(f"z_weight={self.z_weight}: must be positive, or 0 for none; T5X's is 1e-4")


WithoutTable = Rotary | RelativeBuckets | Sinusoidal | None  # positions of stacks that have no learned table of them


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(StackConfig):
    """An encoder, and a decoder that attends to its output (models/parts/encoder_decoder.py).

    Attributes:
      layers: of encoder and decoder together.
    """

    decoder: DecoderConfig = DecoderConfig()
    loss: TokenLoss = TokenLoss()

    stacks: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if self.moe:
            self.moe.refuse_leading()
        super().__post_init__()
        if self.decoder.layers and (self.decoder.layers % len(self.layer_group) or self.decoder.layers >= self.layers):
            raise ValueError(
                f"decoder.layers={self.decoder.layers}: must be a multiple of {len(self.layer_group)} below "
                f"layers={self.layers}; nearest is {self.layers // 2}"
            )
        if isinstance(self.attention, Latent):
            raise ValueError("attention=Latent: a decoder that attends to a source has none such; nearest is GroupedQuery")
        if self.norm.order not in ("pre", "post"):
            raise ValueError(
                f"norm.order={self.norm.order!r}: a decoder that attends to a source has no such order; nearest is 'pre'"
            )
        self.refuse_pattern()

    @property
    def source_dim(self) -> int:
        """Width of the vectors that the decoder attends to."""
        return self.model_dim

    @property
    def multiple(self) -> int:
        """The number that divides the number of layers: both stacks have as many groups unless the decoder has its own number."""
        return len(self.layer_group) if self.decoder.layers else super().multiple

    @property
    def decoder_groups(self) -> int:
        """The number of layer groups of the decoder."""
        return self.decoder.layers // len(self.layer_group) or self.layer_groups

    @property
    def encoder_groups(self) -> int:
        """The number of layer groups of the encoder."""
        return self.layers // len(self.layer_group) - self.decoder_groups

    def shrunk(self) -> dict[str, Any]:
        """Returns field values small enough for a test and divisible by the meshes of eight devices; the variant stays."""
        return dict(
            layers=max(4, 2 * len(self.layer_group)),
            decoder=dataclasses.replace(self.decoder, layers=0),
            model_dim=16,
            attention=dataclasses.replace(self.attention, heads=4, head_dim=8),
            feed_forward=dataclasses.replace(self.feed_forward, hidden_dim=32),
            moe=self.moe and self.moe.shrunk(32),
            dropout=0.1,
        )
