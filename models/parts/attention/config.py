"""The settings of attention and of positions. No JAX here: configs are plain data."""

import dataclasses
import math
from typing import ClassVar, Literal

from models.parts.numbers import check_base, check_epsilon, check_finite, check_least, check_literals, nearest_divisor

NormKind = Literal["rms", "rms_plus_one", "layer"]
Biases = Literal["", "o", "qv", "qkv", "qvo", "qkvo"]


class _Scaling:
    """A way to stretch the rates of rotary positions."""

    def __post_init__(self) -> None:
        check_finite(self)
        if not (factor := getattr(self, "factor", 1)) > 0:
            raise ValueError(f"factor={factor}: must be positive; 1 changes nothing")
        if (original := getattr(self, "original", 1)) < 1:
            raise ValueError(f"original={original}: must be the length of the first training, 1 or more")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interpolation(_Scaling):
    """Rates / factor (Chen et al., arXiv 2306.15595).

    Attributes:
      factor: how many times the longest text of the first training is read.
    """

    factor: float

    def rate(self, j: int, dims: int, base: float) -> float:
        """Returns the rate of the j-th pair of dimensions."""
        return base ** -(2 * j / dims) / self.factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3(_Scaling):
    """Slow rates / factor, fast ones as they are, and a ramp between (Llama 3.1).

    Attributes:
      factor: divides the slow rates.
      original: the longest text of the first training, in positions.
      low, high: turns within `original` up to which a rate is slow, and from which on it is fast.
    """

    factor: float
    original: int
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high:
            raise ValueError(f"low={self.low}: must be less than high={self.high}; Llama 3.1 has 1 and 4")

    def rate(self, j: int, dims: int, base: float) -> float:
        """Returns the rate of the j-th pair of dimensions."""
        rate = base ** -(2 * j / dims)
        turns = self.original * rate / (2 * math.pi)
        share = min(max((turns - self.low) / (self.high - self.low), 0.0), 1.0)
        return rate * ((1 - share) / self.factor + share)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Yarn(_Scaling):
    """Slow rates / factor, fast ones as they are, and a ramp between by dimension (Peng et al., arXiv 2309.00071, section 3.2).

    Attributes:
      factor: divides the slow rates.
      original: the longest text of the first training, in positions.
      beta_fast, beta_slow: turns within `original` of the ramp's ends.
      whole: the ramp's ends are rounded to dimensions, down and up.
      amplitude: factor of cosines and sines, hence twice in a logit (section 3.4).
    """

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole: bool = True
    amplitude: float = 1.0

    def rate(self, j: int, dims: int, base: float) -> float:
        """Returns the rate of the j-th pair of dimensions."""

        def dimension(turns: float) -> float:
            return dims * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))

        first, last = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        share = min(max((j - first) / (last - first or 1e-3), 0.0), 1.0)
        return base ** -(2 * j / dims) * (1 - share + share / self.factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongRope(_Scaling):
    """Each rate by a factor of its own (Ding et al., arXiv 2402.13753).

    Attributes:
      factor: divides the slow rates.
      original: the longest text of the first training, in positions.
      short, long: factors of rows of up to `original` positions, and of longer ones, dims / 2 each.
      amplitude: factor of cosines and sines, hence twice in a logit.
    """

    original: int
    short: tuple[float, ...]
    long: tuple[float, ...]
    amplitude: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.short or len(self.short) != len(self.long):
            raise ValueError(
                f"short and long have {len(self.short)} and {len(self.long)} factors: must have equally many, one for each rate"
            )

    def rate(self, j: int, dims: int, base: float, *, long: bool = False) -> float:
        """Returns the rate of the j-th pair of dimensions."""
        return base ** -(2 * j / dims) / (self.long if long else self.short)[j]


Scaling = Interpolation | Llama3 | Yarn | LongRope


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions (Su et al. 2021, halves rotated as in LLaMA), with rates base^(-2j / D) for j < D / 2.

    Attributes:
      base: of the rates.
      dims: the leading dimensions of a head that are turned; 0 means all of them.
      scaling: how rates are stretched for texts longer than those of training.
    """

    base: float = 10_000.0
    dims: int = 0
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        check_finite(self)
        check_base(self.base, "base")

    def check(self, head_dim: int) -> None:
        """Raises ValueError for what cannot turn heads of this size."""
        turned = self.dims or head_dim
        if turned % 2 or turned > head_dim:
            fits = min(turned, head_dim) // 2 * 2
            raise ValueError(f"positions.dims={turned}: must be even, at most head_dim={head_dim}; nearest is {fits}")
        if isinstance(self.scaling, LongRope) and len(self.scaling.short) != turned // 2:
            raise ValueError(
                f"positions.scaling.short has {len(self.scaling.short)} factors: must have one for each of {turned // 2} rates"
            )

    def shrunk(self, head_dim: int) -> "Rotary":
        """Returns the same for heads of another size, in rows of a few dozen positions."""
        dims, scaling = head_dim // 4 * 2 if self.dims else 0, self.scaling
        if isinstance(scaling, LongRope):
            short, long = (factors[: (dims or head_dim) // 2] for factors in (scaling.short, scaling.long))
            scaling = dataclasses.replace(scaling, short=short, long=long)
        if scaling is not None and not isinstance(scaling, Interpolation):
            scaling = dataclasses.replace(scaling, original=min(scaling.original, 16))
        return dataclasses.replace(self, dims=dims, scaling=scaling)

    @property
    def amplitude(self) -> float:
        """The factor of cosines and sines."""
        return getattr(self.scaling, "amplitude", 1.0)

    def rates(self, head_dim: int, *, long: bool = False) -> list[float]:
        """Returns the angle by which each pair of dimensions turns at every position, in radians.

        Args:
          long: whether rows are longer than those of the first training.
        """
        dims = self.dims or head_dim
        pairs = range(dims // 2)
        if isinstance(self.scaling, LongRope):
            return [self.scaling.rate(j, dims, self.base, long=long) for j in pairs]
        if self.scaling is not None:
            return [self.scaling.rate(j, dims, self.base) for j in pairs]
        return [self.base ** -(2 * j / dims) for j in pairs]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """A learned table of positions, added to the embeddings.

    Attributes:
      rows: of the table: the longest row of a batch.
      first: the row that an example's first token has; RoBERTa leaves out the rows up to the id of its padding, 1.
    """

    rows: int
    first: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows={self.rows}: must be at least the longest row")
        if not 0 <= self.first < self.rows:
            raise ValueError(f"first={self.first}: must be below rows={self.rows}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnedPatches:
    """A learned vector for each patch of a picture, added to the embeddings."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeBuckets:
    """A learned bias of each head for each bucket of relative positions (T5, arXiv 1910.10683, section 2.1).

    Attributes:
      buckets: number of buckets.
      max_distance: from this distance on all positions are in the last bucket.
      shared: one table for all layers of a stack, as T5 has it; only in encoder-decoders.
    """

    buckets: int = 32
    max_distance: int = 128
    shared: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedBuckets(RelativeBuckets):
    """A bias of relative positions that each query scales for each head, by a gate of its own vector (WavLM, arXiv 2110.13900,
    section 3.1)."""

    buckets: int = 320
    max_distance: int = 800
    shared: bool = True

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.buckets % 4:
            best = max(4, round(self.buckets / 4) * 4)
            raise ValueError(f"buckets={self.buckets}: must be a multiple of 4; nearest is {best}")
        if self.max_distance <= (exact := self.buckets // 4):
            raise ValueError(f"max_distance={self.max_distance}: must be above the {exact} distances with a bucket of their own")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnedAndBuckets(Learned):
    """A learned table of positions and, besides, one of `RelativeBuckets` that all layers share (MPNet, arXiv 2004.09297).

    Attributes:
      buckets: number of buckets.
      max_distance: from this distance on all positions are in the last bucket.
    """

    buckets: int = 32
    max_distance: int = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disentangled:
    """A learned vector for each bucket of relative positions, which all layers share and of which each makes a key and a query by
    its own projections: a logit is the sum of three products, of query and key, of query and the pair's key, and of key and the
    pair's query (DeBERTa, arXiv 2006.03654, section 3.1; buckets and shared projections are those of its later releases).

    Attributes:
      buckets: of distances to either side of a query; the table has twice as many rows.
      max_distance: distances up to half of `buckets` have one of their own, those up to this one logarithmic ones.
    """

    buckets: int = 256
    max_distance: int = 512

    products: ClassVar[int] = 3  # in a logit, which is divided by its square root besides

    def __post_init__(self) -> None:
        if self.buckets < 2:
            raise ValueError(f"buckets={self.buckets}: must be 2 or more")
        if self.max_distance < (least := self.buckets // 2 + 2):
            raise ValueError(f"max_distance={self.max_distance}: must be {least} or more, behind buckets of one distance")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativePatches:
    """A learned bias of each head for each offset of two patches in rows and columns, and three for a class token before them:
    from it, to it, and its own (BEiT, arXiv 2106.08254, section 2.3). Each layer has a table of its own.

    Attributes:
      rows, columns: of patches.
    """

    rows: int
    columns: int

    @property
    def buckets(self) -> int:
        """Biases of a head."""
        return (2 * self.rows - 1) * (2 * self.columns - 1) + 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sinusoidal:
    """Sines and cosines of positions, added to the embeddings (Vaswani et al. 2017, section 3.5)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alibi:
    """A slope of each head times the distance of a key, added to attention logits (ALiBi, Press et al., arXiv 2108.12409)."""

    @staticmethod
    def slopes(heads: int) -> tuple[float, ...]:
        """Returns the slope of each head: 2^(-8 / n), 2^(-16 / n) and so on for n heads, where n is a power of 2; heads beyond
        the largest power have every other slope of twice as many."""
        whole = 2 ** (heads.bit_length() - 1)
        more = [2 ** (-4 * i / whole) for i in range(1, 2 * (heads - whole), 2)]
        return (*(2 ** (-8 * i / whole) for i in range(1, whole + 1)), *more)


Positions = Learned | LearnedPatches | Rotary | RelativeBuckets | Disentangled | RelativePatches | Sinusoidal | Alibi | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerVariant:
    """In what a layer's attention differs from that of others in its stack.

    Attributes:
      window: how many positions a query sees, its own included; in attention to both sides, as many on either. 0 is all.
      rotary: whether queries and keys are turned, in a model of rotary positions (Yang et al., arXiv 2501.18795: not in all).
      base: of the rates; 0 means the model's.
      scaled: whether rates are stretched as the model's are.
    """

    window: int = 0
    rotary: bool = True
    base: float = 0.0
    scaled: bool = True

    def __post_init__(self) -> None:
        if self.base:
            check_base(self.base, "base")
        if self.window < 0:
            raise ValueError(f"window={self.window}: must be at least 1, or 0 for all positions")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QkNorm:
    """Norms, scale alone, of queries and keys before rotary positions (ViT-22B, arXiv 2302.05442, section 2).

    Attributes:
      kind: as of the layer's other norms.
      over: what they are taken of: each "head", or "all" heads of queries, and of keys, together (OLMo 2).
    """

    kind: NormKind = "layer"
    over: Literal["head", "all"] = "head"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedQuery:
    """Attention over heads, of which several may share keys and values (models/parts/attention/module.py).

    Attributes:
      heads: of queries.
      head_dim: dimensions of a head; heads * head_dim need not be the model's.
      kv_heads: heads of keys and values, each shared by heads / kv_heads queries; 0 means as many as `heads`, 1 is multi-query
        attention (Shazeer 2019), anything between is grouped (Ainslie et al. 2023).
      biases: which of the projections of queries, keys, values and outputs have biases. Softmax does not see a key's, and
        Whisper has none; Qwen 2 has none of outputs.
      qk_norm: of queries and keys.
      scale_dim: logits are divided by its square root; 0 means head_dim (Gemma: query_pre_attn_scalar). 1 leaves logits as they
        are, and draws the initial matrix of queries smaller instead (T5).
      per_dim_scale: a learned scale per dimension of the queries besides 1/sqrt(D) (Lingvo).
      logit_cap: c tanh(x / c) on attention logits; 0 does nothing.
      sinks: a learned logit of each head beside those of keys, which takes probability and gives nothing (gpt-oss).
      pattern: how the layers of a stack differ, repeated cyclically over depth; empty if all are equal.
    """

    heads: int
    head_dim: int
    kv_heads: int = 0
    biases: Biases = ""
    qk_norm: QkNorm | None = None
    scale_dim: float = 0.0
    per_dim_scale: bool = False
    logit_cap: float = 0.0
    sinks: bool = False
    pattern: tuple[LayerVariant, ...] = ()

    def __post_init__(self) -> None:
        check_finite(self)
        check_literals(self)
        if self.heads % self.groups:
            best = nearest_divisor(self.heads, self.kv_heads)
            raise ValueError(f"kv_heads={self.kv_heads}: must divide heads={self.heads}; nearest is {best}")

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that positions may turn."""
        return self.head_dim

    def shrunk(self) -> "GroupedQuery":
        """Returns sizes small enough for a test; the variant stays."""
        kv_heads = {0: 0, 1: 1}.get(self.kv_heads, 2)
        return dataclasses.replace(self, heads=4, head_dim=8, kv_heads=kv_heads, pattern=shrunk_pattern(self.pattern))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latent:
    """Attention whose keys and values are made of one latent a position (DeepSeek-V2 and 3; models/parts/attention/latent.py).

    Attributes:
      heads: of queries.
      rank: numbers of the latent, from which keys and values are made.
      query_rank: the same of queries; 0 makes them of the layer's input.
      rotary_dim: dimensions of queries and keys that rotary positions turn, whose key all heads share.
      head_dim: dimensions of a head's queries and keys that are not turned.
      value_dim: of a head's values.
      interleaved: neighbouring dimensions are turned together, not those half a head apart.
      norm_eps: is added to the variance in the norms of latents, whatever the other norms have.
      scale_dim: logits are divided by its square root; 0 means head_dim + rotary_dim.
      pattern: how the layers of a stack differ, repeated cyclically over depth; empty if all are equal.
    """

    heads: int
    rank: int
    query_rank: int = 0
    rotary_dim: int
    head_dim: int = 128
    value_dim: int = 128
    interleaved: bool = True
    norm_eps: float = 1e-6
    scale_dim: float = 0.0
    pattern: tuple[LayerVariant, ...] = ()

    def __post_init__(self) -> None:
        check_finite(self)
        check_least(self, 1, "rank", "head_dim", "value_dim")
        check_least(self, 0, "query_rank")
        check_epsilon(self.norm_eps)

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.heads

    def shrunk(self) -> "Latent":
        """Returns sizes small enough for a test, all unlike."""
        sizes = dict(heads=4, rank=12, query_rank=self.query_rank and 20, rotary_dim=8, head_dim=6, value_dim=10)
        return dataclasses.replace(self, **sizes, pattern=shrunk_pattern(self.pattern))


AnyAttention = GroupedQuery | Latent


def shrunk_pattern(pattern: tuple[LayerVariant, ...]) -> tuple[LayerVariant, ...]:
    """Returns the different layers of a pattern, with windows for rows of a few dozen positions."""
    return tuple(dict.fromkeys(dataclasses.replace(layer, window=min(layer.window, 5)) for layer in pattern))
