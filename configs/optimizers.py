"""Schedules of the learning rate, and optimizers: frozen dataclasses, plain data."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class InverseSqrt:
    """scale / sqrt(max(step, flat)): flat first, then decaying; with `warmup`, a linear ramp before."""

    scale: float = 1.0
    flat: int = 10_000
    warmup: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cosine:
    """Linear warm-up to `peak`, then a cosine to `peak * floor` at `steps`."""

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """Linear warm-up to `peak`, then a line to `peak * floor` at `steps` (BERT, A.2)."""

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exponential:
    """Linear warm-up to `peak`, then an exponential to `peak * floor` at `steps`, which it keeps."""

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant:
    """The same learning rate at every step."""

    value: float


Schedule = InverseSqrt | Cosine | Linear | Exponential | Constant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor:
    """Adafactor (Shazeer and Stern 2018). Defaults: GShard A.2 with Lingvo's XLAShardingAdafactor for what it leaves out.

    Attributes:
      decay_exponent: the second moment's decay at step t is 1 - t^-exponent, at most `max_decay`.
      clip: updates are scaled down to this RMS, per tensor.
      parameter_scale: multiply updates by the RMS of the tensor (at least 1e-3).
      min_factored: matrices with both sides at least this long have factored second moments.
    """

    schedule: Schedule = InverseSqrt()
    decay_exponent: float = 0.8
    max_decay: float = 0.99
    clip: float = 1.0
    parameter_scale: bool = True
    min_factored: int = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay (on matrices only)."""

    schedule: Schedule
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lamb:
    """LAMB (You et al. 2020): Adam's update scaled to each tensor's norm, weight decay on matrices only."""

    schedule: Schedule
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd:
    """Stochastic gradient descent with momentum."""

    schedule: Schedule
    momentum: float = 0.0


Optimizer = Adafactor | AdamW | Lamb | Sgd
