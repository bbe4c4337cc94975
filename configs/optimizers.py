"""Schedules of the learning rate, and optimizers: frozen dataclasses, plain data."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class InverseSqrt:
    """scale / sqrt(max(step, flat)): flat first, then decaying; with `warmup`, a linear ramp before.

    Attributes:
      scale: numerator of the learning rate.
      flat: the step from which on it decays.
      warmup: steps of the ramp.
    """

    scale: float = 1.0
    flat: int = 10_000
    warmup: int = 0

    def __post_init__(self) -> None:
        _check_rate("scale", self.scale)
        for field in ("flat", "warmup"):
            _check_count(field, getattr(self, field), least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Decay:
    """Linear warm-up to `peak`, then a descent to `peak * floor` at `steps`.

    Attributes:
      peak: the largest learning rate.
      steps: the step at which the descent ends.
      warmup: steps of the warm-up.
      floor: the last learning rate, as a share of the peak.

    Raises:
      ValueError: the peak is not positive, no steps are left to decay in (where optax raises an exception of its own for a
        cosine, and stays at the peak for the others), or the floor is no share of the peak.
    """

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check_rate("peak", self.peak)
        _check_count("steps", self.steps, least=1)
        _check_count("warmup", self.warmup, least=0)
        if self.warmup >= self.steps:
            raise ValueError(f"warmup={self.warmup}: must be below steps={self.steps}; nearest is {self.steps - 1}")
        if not 0 <= self.floor <= 1:
            nearest = min(1.0, max(0.0, self.floor))
            raise ValueError(f"floor={self.floor}: must be in [0, 1], a share of the peak; nearest is {nearest}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cosine(_Decay):
    """Linear warm-up to `peak`, then a cosine to `peak * floor` at `steps`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(_Decay):
    """Linear warm-up to `peak`, then a line to `peak * floor` at `steps` (BERT, A.2)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exponential(_Decay):
    """Linear warm-up to `peak`, then an exponential to `peak * floor` at `steps`, which it keeps."""

    floor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.floor == 0:
            raise ValueError("floor=0.0: an exponential never reaches 0; take a small share of the peak, such as 0.01")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant:
    """The same learning rate at every step.

    Attributes:
      value: the learning rate.
    """

    value: float

    def __post_init__(self) -> None:
        _check_rate("value", self.value)


Schedule = InverseSqrt | Cosine | Linear | Exponential | Constant


def following(schedule: Schedule, before: int, after: int) -> Schedule:
    """Returns a schedule that ends with a run of `before` steps, made to end with one of `after`; any other as it is.

    The warm-up keeps its number of steps where the run is longer than it, else its share of them.
    """
    if not isinstance(schedule, _Decay) or schedule.steps != before or after < 1:
        return schedule
    warmup = schedule.warmup if schedule.warmup < after else schedule.warmup * after // before
    return dataclasses.replace(schedule, steps=after, warmup=warmup)


def _check_rate(field: str, value: float) -> None:
    """Raises ValueError unless a learning rate, or a factor of it, is a positive number."""
    if not 0 < value < math.inf:
        raise ValueError(f"{field}={value}: must be a number above 0")


def _check_count(field: str, value: int, least: int) -> None:
    """Raises ValueError where a number of steps is below `least`."""
    if value < least:
        raise ValueError(f"{field}={value}: must be {least} or more; nearest is {least}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adafactor:
    """Adafactor (Shazeer and Stern 2018). Defaults: GShard A.2 with Lingvo's XLAShardingAdafactor where the paper is silent.

    Attributes:
      schedule: the learning rate of each step.
      decay_exponent: the second moment's decay at step t is 1 - t^-exponent, at most `max_decay`.
      max_decay: the largest decay of the second moment.
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
    """Adam with decoupled weight decay (on matrices only).

    Attributes:
      schedule: the learning rate of each step.
      b1, b2: decay of the first and of the second moment.
      eps: is added to the square root of the second moment.
      weight_decay: share of a matrix that a step takes away, times the learning rate.
    """

    schedule: Schedule
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0


def gpt3_adamw(*, peak: float, steps: int, warmup: int, eps: float = 1e-8) -> AdamW:
    """GPT-3's optimizer (arXiv 2005.14165, appendix B), which later decoders share: cosine to 10 %, weight decay 0.1."""
    schedule = Cosine(peak=peak, steps=steps, warmup=warmup, floor=0.1)
    return AdamW(schedule=schedule, b2=0.95, eps=eps, weight_decay=0.1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lamb:
    """LAMB (You et al. 2020): Adam's update scaled to each tensor's norm, weight decay on matrices only.

    Attributes:
      schedule: the learning rate of each step.
      b1, b2: decay of the first and of the second moment.
      eps: is added to the square root of the second moment.
      weight_decay: share of a matrix that is added to its update.
    """

    schedule: Schedule
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd:
    """Stochastic gradient descent with momentum.

    Attributes:
      schedule: the learning rate of each step.
      momentum: decay of the sum of gradients; 0 has none.
    """

    schedule: Schedule
    momentum: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaGrad:
    """AdaGrad (Duchi et al. 2011): a gradient over the root of the sum of its squares so far.

    Attributes:
      schedule: the learning rate of each step.
      eps: is added to the root.
      initial: the sums before the first step.
      by_row: whether a matrix has one sum for each row, of the mean of its squares, as FBGEMM's row-wise AdaGrad; a row is the
        last dimension, such as a vector of an embedding table.
    """

    schedule: Schedule
    eps: float = 1e-8
    initial: float = 0.0
    by_row: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class LazyAdam:
    """Adam of the rows alone that a batch reads, for embedding tables, as PyTorch's SparseAdam.

    It is another optimizer than Adam: moments of rows that a batch does not read neither decay nor move them.

    Attributes:
      schedule: the learning rate of each step.
      b1, b2: decay of the first and of the second moment, by the steps that read the row.
      eps: is added to the square root of the second moment.
    """

    schedule: Schedule
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8


Rule = Adafactor | AdamW | Lamb | Sgd | AdaGrad | LazyAdam


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfComponent:
    """The optimizer of a component.

    Attributes:
      path: the component, and those below it, such as "tables".
      rule: its optimizer, with a schedule of its own.
    """

    path: str
    rule: Rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByComponent:
    """Different optimizers for some components.

    Attributes:
      others: of all that `components` does not name; its learning rate is the one that is reported.
      components: those with optimizers of their own; a longer path wins over a shorter one.
    """

    others: Rule
    components: tuple[OfComponent, ...]

    @property
    def schedule(self) -> Schedule:
        """The learning rate of `others`."""
        return self.others.schedule


Optimizer = Rule | ByComponent


def for_steps(optimizer: Optimizer, before: int, after: int) -> Optimizer:
    """Returns an optimizer whose schedules follow a run of another number of steps, as `following` says."""
    if not isinstance(optimizer, ByComponent):
        return dataclasses.replace(optimizer, schedule=following(optimizer.schedule, before, after))

    def followed(rule: Rule) -> Rule:
        return dataclasses.replace(rule, schedule=following(rule.schedule, before, after))

    parts = tuple(dataclasses.replace(part, rule=followed(part.rule)) for part in optimizer.components)
    return ByComponent(others=followed(optimizer.others), components=parts)
