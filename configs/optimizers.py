"""Schedules of the learning rate, and optimizers: frozen dataclasses, plain data."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class InverseSqrt:
    """scale / sqrt(max(step, flat)): flat first, then decaying; with `warmup`, a linear ramp before."""

    scale: float = 1.0
    flat: int = 10_000
    warmup: int = 0

    def __post_init__(self) -> None:
        _check_rate("scale", self.scale)
        for field in ("flat", "warmup"):
            _check_count(field, getattr(self, field), least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cosine:
    """Linear warm-up to `peak`, then a cosine to `peak * floor` at `steps`."""

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_decay(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """Linear warm-up to `peak`, then a line to `peak * floor` at `steps` (BERT, A.2)."""

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_decay(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exponential:
    """Linear warm-up to `peak`, then an exponential to `peak * floor` at `steps`, which it keeps."""

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.1

    def __post_init__(self) -> None:
        _check_decay(self)
        if self.floor == 0:
            raise ValueError("floor=0.0: an exponential never reaches 0; take a small share of the peak, such as 0.01")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant:
    """The same learning rate at every step."""

    value: float

    def __post_init__(self) -> None:
        _check_rate("value", self.value)


Schedule = InverseSqrt | Cosine | Linear | Exponential | Constant


def _check_rate(field: str, value: float) -> None:
    """Raises ValueError unless a learning rate, or a factor of it, is a positive number."""
    if not 0 < value < math.inf:
        raise ValueError(f"{field}={value}: must be a number above 0")


def _check_count(field: str, value: int, least: int) -> None:
    """Raises ValueError where a number of steps is below `least`."""
    if value < least:
        raise ValueError(f"{field}={value}: must be {least} or more; nearest is {least}")


def _check_decay(schedule: Cosine | Linear | Exponential) -> None:
    """Raises ValueError unless a schedule rises to a positive peak, and then has steps left to decay in.

    Optax raises an exception of its own for a cosine without such steps, and stays at the peak for the others.
    """
    _check_rate("peak", schedule.peak)
    _check_count("steps", schedule.steps, least=1)
    _check_count("warmup", schedule.warmup, least=0)
    if schedule.warmup >= schedule.steps:
        raise ValueError(
            f"warmup={schedule.warmup}: must be below steps={schedule.steps}; nearest is {schedule.steps - 1}"
        )
    if not 0 <= schedule.floor <= 1:
        nearest = min(1.0, max(0.0, schedule.floor))
        raise ValueError(f"floor={schedule.floor}: must be in [0, 1], a share of the peak; nearest is {nearest}")


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
