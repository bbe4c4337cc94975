"""The settings of dense Transformer layers, and of language models made of them. No JAX here: configs are plain data."""

import dataclasses
from typing import Any, ClassVar, Literal

from models.parts.attention.config import Latent, LayerVariant, Rotary
from models.parts.moe.config import MoeConfig
from models.parts.numbers import check_base, check_epsilon, check_finite

Positions = Literal["learned", "rotary", "relative", "relative_shared", "sinusoidal", "none"]
Norm = Literal["rms", "rms_plus_one", "layer"]
Order = Literal["pre", "post", "parallel", "sandwich", "reordered"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


def check_dropout(rate: float) -> None:
    """Raises ValueError for a rate that `layers.dropout`, which rounds to a 256th, would make 1 or, unless it is 0, 0."""
    if not 0 <= rate < 1:
        raise ValueError(f"dropout={rate}: must be in [0, 1)")
    if rate and round(rate * 256) in (0, 256):
        fits = "0 and 1/256 = 0.00390625" if rate < 0.5 else "255/256 = 0.99609375"
        raise ValueError(f"dropout={rate}: is rounded to a multiple of 1/256; nearest that can be had: {fits}")


# Settings that change what a Transformer computes, but none of its shapes (models.family.Family.semantic_fields).
MEANING_OF_BLOCKS = (
    "order",
    "norm",
    "norm_eps",
    "activation",
    "positions",
    "rotary_base",
    "rotary",
    "kinds",
    "max_distance",
    "logit_cap",
    "attention_scale",
    "attention_scalar",
    "qk_norm_kind",
)
MEANING_OF_LM = (*MEANING_OF_BLOCKS, "softmax_cap", "embedding_scale")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """A Transformer layer (models/parts/transformer.py). Fields, not subclasses, tell the published ones apart.

    Attributes:
      latent: multi-head latent attention, whose rotated part has `head_dim`; None is attention as usual.
      kv_heads: heads of keys and values, each shared by heads / kv_heads queries; 0 is as many as `heads`, 1 is
        multi-query attention (Shazeer 2019), anything between is grouped (Ainslie et al. 2023).
      positions: "learned" (a table that is added to the embeddings), "rotary" (Su et al. 2021, halves rotated as in LLaMA),
        "relative" (T5's buckets, one bias per head and bucket, in every layer), "relative_shared" (the same table in all layers
        of a stack, as T5 has it; only in encoder-decoders), "sinusoidal" (Vaswani et al. 2017, section 3.5,
        added to the embeddings) or "none".
      rotary: how rotary positions are stretched, and how many dimensions they turn; None is not at all, and all.
      kinds: what layers differ in, the first's first; behind the last the pattern begins again. () has all alike.
      norm: "rms" (scale alone; what Lingvo calls layer norm), "rms_plus_one" (the same with 1 + scale, Gemma) or "layer";
        `norm_bias` adds a bias.
      order: "pre" x + f(norm(x)), with a norm at the end of the stack; "post" norm(x + f(x)), the original
        Transformer's and BERT's; "parallel" x + attention(norm(x)) + ffn(norm(x)) (PaLM, section 2); "sandwich"
        x + norm(f(norm(x))) (Gemma 2, arXiv 2408.00118, section 2); "reordered" x + norm(f(x)) (OLMo 2, arXiv 2501.00656,
        section 3.3.2). All but "post" have a norm at the end.
      gated: act(x wg) * (x wi) instead of act(x wi) in the feed-forward layer (Shazeer 2020).
      attention_bias, ffn_bias: biases of all projections of the sub-layer.
      output_bias: of the projection of attention's output: the "same" as the other three's, or "yes" or "no" by itself.
      key_bias: of the projection of keys, where attention has biases; softmax does not see it, and Whisper has none.
      qk_norm: norms, scale alone, of queries and keys before rotary positions (ViT-22B, arXiv 2302.05442, section 2).
      qk_norm_kind: their kind.
      qk_norm_over: what they are taken of: each "head", or "all" heads of queries, and of keys, together (OLMo 2).
      sinks: a learned logit of each head beside those of keys, which takes probability and gives nothing (gpt-oss).
      attention_scale: divides attention logits by sqrt(D); T5 does not, and draws its queries' matrix smaller instead.
      attention_scalar: stands for D in that square root (Gemma: query_pre_attn_scalar); 0 is D.
      init_scale: variance of the initial matrices of layers and routers, times their inputs (Switch Transformer: 0.1).
      per_dim_scale: a learned scale per dimension of the queries in place of 1/sqrt(D) alone (Lingvo).
      logit_cap: c tanh(x / c) on attention logits; 0 does nothing.
      dropout: on sub-layer outputs and attention probabilities, and in a whole model on embeddings.
      hidden_dropout: on the hidden layer of dense feed-forward networks (T5).
    """

    model_dim: int
    hidden_dim: int
    heads: int
    head_dim: int
    latent: Latent | None = None
    kv_heads: int = 0
    positions: Positions = "learned"
    rotary_base: float = 10_000.0
    rotary: Rotary | None = None
    kinds: tuple[LayerVariant, ...] = ()
    buckets: int = 32
    max_distance: int = 128
    norm: Norm = "rms"
    norm_bias: bool = False
    norm_eps: float = 1e-6
    order: Order = "pre"
    activation: Activation = "relu"
    gated: bool = False
    attention_bias: bool = False
    output_bias: Literal["same", "yes", "no"] = "same"
    key_bias: bool = True
    qk_norm: bool = False
    qk_norm_kind: Norm = "layer"
    qk_norm_over: Literal["head", "all"] = "head"
    sinks: bool = False
    ffn_bias: bool = False
    attention_scale: bool = True
    attention_scalar: float = 0.0
    init_scale: float = 1.0
    per_dim_scale: bool = False
    logit_cap: float = 0.0
    dropout: float = 0.0
    hidden_dropout: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self)
        check_epsilon(self.norm_eps)
        check_base(self.rotary_base)
        if self.heads % self.groups:
            fits = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
            best = min(fits, key=lambda n: abs(n - self.kv_heads))
            raise ValueError(f"kv_heads={self.kv_heads}: must divide heads={self.heads}; nearest is {best}")
        if not self.init_scale > 0:
            raise ValueError(f"init_scale={self.init_scale}: must be positive; Switch Transformer's is 0.1")
        check_dropout(self.dropout)
        check_dropout(self.hidden_dropout)
        if self.positions == "rotary":
            (self.rotary or Rotary()).check(self.head_dim)
        elif self.rotary or any(kind.base or not kind.rotary for kind in self.kinds):
            raise ValueError(f"positions={self.positions!r}: rotary, and bases of kinds, need positions='rotary'")
        if self.latent is not None:
            needs = dict(
                positions="rotary",
                kv_heads=0,
                qk_norm=False,
                attention_bias=False,
                per_dim_scale=False,
                logit_cap=0.0,
                sinks=False,
                attention_scale=True,
            )
            for name, need in needs.items():
                if getattr(self, name) != need:
                    raise ValueError(f"{name}={getattr(self, name)!r}: latent attention has none such; nearest is {need!r}")

    def refuse_kinds(self) -> None:
        """Raises ValueError for layers that differ and stretched positions, of a model that has neither."""
        if self.kinds or self.rotary:
            name = "kinds" if self.kinds else "rotary"
            raise ValueError(f"{name}={getattr(self, name)}: there are no such layers here; nearest is {name} left out")

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class LmConfig(BlockConfig):
    """A stack of Transformer layers over token embeddings.

    Attributes:
      vocab: ids of the token embedding, and classes of the output logits.
      layers: depth of the stack.
      max_positions: rows of the learned table of positions; 0 with other positions, whose length is not bounded.
      embedding_scale: factor of the embeddings (Gemma: sqrt(M)).
      tied: the output logits use the embedding table; otherwise a matrix of their own.
      softmax_bias: a bias per output token.
      softmax_cap: c tanh(x / c) on output logits; 0 does nothing.
      label_smoothing: mass moved from the label to all other classes.
    """

    vocab: int
    layers: int
    max_positions: int = 0
    embedding_scale: float = 1.0
    tied: bool = True
    softmax_bias: bool = False
    softmax_cap: float = 0.0
    label_smoothing: float = 0.0

    vocabularies: ClassVar[dict[str, str]] = {"vocabulary": "vocab"}  # a cache's manifest key -> our field

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions == "relative_shared":
            raise ValueError("positions='relative_shared': only encoder-decoders share a table; nearest is 'relative'")
        if (self.positions == "learned") != (self.max_positions > 0):
            need = "at least the longest row" if self.positions == "learned" else "0"
            raise ValueError(f"max_positions={self.max_positions}: positions={self.positions!r} need {need}")

    def shrunk(self) -> dict:
        """Returns field values small enough for a test and divisible by the meshes of eight devices; the variant stays."""
        return dict(
            vocab=64,
            layers=4,
            model_dim=16,
            hidden_dim=32,
            heads=4,
            head_dim=8,
            kv_heads={0: 0, 1: 1}.get(self.kv_heads, 2),
            max_positions=min(self.max_positions, 64),
            dropout=0.1,
            latent=self.latent and self.latent.shrunk(),
            **self._shrunk_positions(8),
        )

    def _shrunk_positions(self, head_dim: int) -> dict[str, Any]:
        """Returns windows and rotary positions for heads of this size, in rows of a few dozen positions."""
        kinds = tuple(dict.fromkeys(dataclasses.replace(kind, window=min(kind.window, 5)) for kind in self.kinds))
        scale = 4.0 if self.embedding_scale != 1 else 1.0
        return dict(kinds=kinds, rotary=self.rotary and self.rotary.shrunk(head_dim), embedding_scale=scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackConfig(BlockConfig):
    """Layers of which some may be mixtures of experts (models/parts/layer_group.py).

    Attributes:
      layers: depth.
      moe: the mixture of experts of every `sparse_every`-th layer; None makes all layers dense.
      sparse_first: of `sparse_every` layers the first is the mixture, not the last (GLaM).
    """

    layers: int
    moe: MoeConfig | None = None
    sparse_every: int = 2
    sparse_first: bool = False

    stacks: ClassVar[int] = 1  # of which each has its share of the layers

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sparse_every < 1:
            raise ValueError(f"sparse_every={self.sparse_every}: must be 1 or more")
        whole = self.multiple
        if self.repeated % whole or self.repeated < 1:
            every = {1: "every", 2: "every second", 3: "every third"}.get(self.sparse_every, f"every {self.sparse_every}th")
            made = ["half encoder, half decoder"] * (self.stacks == 2) + [f"{every} an MoE layer"] * bool(self.moe)
            before, times = self.layers - self.repeated, max(self.repeated // whole, 0)
            raise ValueError(
                f"layers={self.layers}: must be {f'{before} and ' if before else ''}a multiple of {whole} "
                f"({', '.join(made) or 'at least one'}); nearest are {before + max(times, 1) * whole} and "
                f"{before + (times + 1) * whole}"
            )

    @property
    def repeated(self) -> int:
        """Layers of the stacks of equal units: all of them."""
        return self.layers

    @property
    def multiple(self) -> int:
        """What the number of layers is a multiple of."""
        return self.stacks * len(self.layer_group)

    @property
    def layer_group(self) -> tuple[str, ...]:
        """The layers of a stack's repeated unit: dense ones and a mixture after or before them, or in a dense model one layer."""
        if self.moe is None:
            return ("dense",)
        dense = ["dense" if i == 0 else f"dense_{i}" for i in range(self.sparse_every - 1)]
        return ("sparse", *dense) if self.sparse_first else (*dense, "sparse")

    @property
    def layer_groups(self) -> int:
        """Repeated units of a stack."""
        return self.repeated // (self.stacks * len(self.layer_group))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(StackConfig):
    """An encoder, and a decoder that attends to its output (models/parts/encoder_decoder.py).

    Attributes:
      layers: of encoder and decoder together.
      decoder_layers: those of them that are the decoder's; 0 is half.
      label_smoothing: mass moved from the label to all other classes.
      z_loss: weight of log(sum of exp logits)^2 of the output logits (T5X: 1e-4); 0 computes none.
      output_dropout: on the encoder's output (T5).
      start_id: the token that stands before the first of a target.
    """

    decoder_layers: int = 0
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    output_dropout: float = 0.0
    start_id: int = 0

    stacks: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_layers and (self.decoder_layers % len(self.layer_group) or self.decoder_layers >= self.layers):
            raise ValueError(
                f"decoder_layers={self.decoder_layers}: must be a multiple of {len(self.layer_group)} below "
                f"layers={self.layers}; nearest is {self.layers // 2}"
            )
        check_dropout(self.output_dropout)
        if self.z_loss < 0:
            raise ValueError(f"z_loss={self.z_loss}: must be positive, or 0 for none; T5X's is 1e-4")
        if self.positions == "learned":
            raise ValueError("positions='learned': there is no such table here; nearest is 'sinusoidal'")
        if self.latent is not None:
            raise ValueError("latent: a decoder that attends to a source has none such; nearest is None")
        if self.order not in ("pre", "post"):
            raise ValueError(f"order={self.order!r}: a decoder that attends to a source has no such order; nearest is 'pre'")
        self.refuse_kinds()

    @property
    def multiple(self) -> int:
        """What the number of layers is a multiple of: units, as many in either stack unless the decoder has its own number."""
        return len(self.layer_group) if self.decoder_layers else super().multiple

    @property
    def decoder_groups(self) -> int:
        """Repeated units of the decoder."""
        return self.decoder_layers // len(self.layer_group) or self.layer_groups

    @property
    def encoder_groups(self) -> int:
        """Repeated units of the encoder."""
        return self.layers // len(self.layer_group) - self.decoder_groups

    def shrunk(self) -> dict[str, Any]:
        """Returns field values small enough for a test and divisible by the meshes of eight devices; the variant stays."""
        moe = self.moe and self.moe.shrunk(32)
        return dict(
            layers=max(4, 2 * len(self.layer_group)),
            decoder_layers=0,
            model_dim=16,
            hidden_dim=32,
            heads=4,
            head_dim=8,
            moe=moe,
            dropout=0.1,
        )
