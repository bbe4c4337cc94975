"""What a layer's attention sees, and how positions turn its queries and keys. No JAX here: configs are plain data."""

import dataclasses
import math
from typing import Literal

from models.parts.numbers import check_base, check_epsilon, check_finite

Scaling = Literal["none", "linear", "llama3", "yarn", "longrope"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotary:
    """How the rates of rotary positions, base^(-2j / D) for j < D / 2, are stretched for texts longer than those of training.

    Attributes:
      dims: the leading dimensions of a head that are turned; 0 is all of them.
      scaling: "none"; "linear", rates / factor (Chen et al., arXiv 2306.15595); "llama3", slow rates / factor, fast ones as
        they are, and a ramp between (Llama 3.1); "yarn", the same by dimension (Peng et al., arXiv 2309.00071, section 3.2);
        "longrope", each rate by a factor of its own (Ding et al., arXiv 2402.13753).
      factor: of "linear", "llama3" and "yarn".
      original: the longest text of the first training, in positions.
      low, high: of "llama3": turns within `original` up to which a rate is slow, and from which on it is fast.
      beta_fast, beta_slow: of "yarn": turns within `original` of the ramp's ends.
      whole: of "yarn": the ramp's ends are rounded to dimensions, down and up.
      amplitude: factor of cosines and sines, hence twice in a logit ("yarn", section 3.4; "longrope").
      short, long: of "longrope": factors of rows of up to `original` positions, and of longer ones, dims / 2 each.
    """

    dims: int = 0
    scaling: Scaling = "none"
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole: bool = True
    amplitude: float = 1.0
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_finite(self)
        if self.scaling in ("llama3", "yarn", "longrope") and self.original < 1:
            raise ValueError(f"original={self.original}: scaling={self.scaling!r} needs the length of the first training")
        if not self.factor > 0:
            raise ValueError(f"factor={self.factor}: must be positive; 1 changes nothing")
        if self.scaling == "llama3" and not self.low < self.high:
            raise ValueError(f"low={self.low}: must be less than high={self.high}; Llama 3.1 has 1 and 4")
        if (self.scaling == "longrope") != bool(self.short and self.long) or len(self.short) != len(self.long):
            raise ValueError(
                f"short and long have {len(self.short)} and {len(self.long)} factors: scaling={self.scaling!r} needs "
                f"{'as many of either, one for each rate' if self.scaling == 'longrope' else 'none'}"
            )

    def check(self, head_dim: int) -> None:
        """Raises ValueError for what cannot turn heads of this size."""
        turned = self.dims or head_dim
        if turned % 2 or turned > head_dim:
            fits = min(turned, head_dim) // 2 * 2
            raise ValueError(f"rotary.dims={turned}: must be even, at most head_dim={head_dim}; nearest is {fits}")
        if self.scaling == "longrope" and len(self.short) != turned // 2:
            raise ValueError(f"rotary.short has {len(self.short)} factors: must have one for each of {turned // 2} rates")

    def shrunk(self, head_dim: int) -> "Rotary":
        """Returns the same for heads of another size, in rows of a few dozen positions."""
        dims = head_dim // 4 * 2 if self.dims else 0
        short, long = (factors[: (dims or head_dim) // 2] for factors in (self.short, self.long))
        return dataclasses.replace(self, dims=dims, short=short, long=long, original=min(self.original, 16))

    def rates(self, dims: int, base: float, *, long: bool = False) -> list[float]:
        """Returns the angle by which each pair of dimensions turns at every position, in radians: dims / 2 of them."""
        exponents = [2 * j / dims for j in range(dims // 2)]
        match self.scaling:
            case "linear":
                return [base**-e / self.factor for e in exponents]
            case "llama3":
                return [self._llama3(base**-e) for e in exponents]
            case "yarn":
                return [base**-e * self._yarn(j, dims, base) for j, e in enumerate(exponents)]
            case "longrope":
                factors = self.long if long else self.short
                return [base**-e / f for e, f in zip(exponents, factors, strict=True)]
            case _:
                return [base**-e for e in exponents]

    def _llama3(self, rate: float) -> float:
        turns = self.original * rate / (2 * math.pi)
        share = min(max((turns - self.low) / (self.high - self.low), 0.0), 1.0)
        return rate * ((1 - share) / self.factor + share)

    def _yarn(self, j: int, dims: int, base: float) -> float:
        def dimension(turns: float) -> float:
            return dims * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))

        first, last = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.whole:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dims - 1)
        share = min(max((j - first) / (last - first or 1e-3), 0.0), 1.0)
        return 1 - share + share / self.factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerVariant:
    """In what a layer's attention differs from that of others in its stack.

    Attributes:
      window: how many positions a query sees, its own included; in attention to both sides, as many on either. 0 is all.
      rotary: whether queries and keys are turned, in a model of rotary positions (Yang et al., arXiv 2501.18795: not in all).
      base: of the rates; 0 is the model's.
      scaled: whether rates are stretched as the model's `Rotary` says.
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
class Latent:
    """Attention whose keys and values are made of one latent a position (DeepSeek-V2 and 3; models/parts/attention/latent.py).

    The `head_dim` of the layer is then the size of the part of queries and keys that rotary positions turn, whose key all heads
    share.

    Attributes:
      rank: numbers of the latent, from which keys and values are made.
      query_rank: the same of queries; 0 makes them of the layer's input.
      head_dim: dimensions of a head's queries and keys that are not turned.
      value_dim: of a head's values.
      interleaved: neighbouring dimensions are turned together, not those half a head apart.
      norm_eps: is added to the variance in the norms of latents, whatever the other norms have.
    """

    rank: int
    query_rank: int = 0
    head_dim: int = 128
    value_dim: int = 128
    interleaved: bool = True
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        for name, least in (("rank", 1), ("query_rank", 0), ("head_dim", 1), ("value_dim", 1)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"latent.{name}={value}: must be {least} or more")
        check_epsilon(self.norm_eps, "latent.norm_eps")

    def shrunk(self) -> "Latent":
        """Returns sizes small enough for a test, all unlike."""
        return dataclasses.replace(self, rank=12, query_rank=self.query_rank and 20, head_dim=6, value_dim=10)
