"""What an experiment is: frozen, keyword-only dataclasses, plain data without JAX or TensorFlow.

A misspelt field is an error here, in the file (TypeError) and on the command line (with the nearest name).
"""

import dataclasses
from typing import Literal

from models.common.layout import Layout
from models.gshard_m4.config import GShardM4Config

# --- data --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationData:
    """Packed rows of translated pairs from a cache that scripts/prepare_data.py writes.

    Attributes:
      cache: name of the prepared cache (a key of data.prepare.PREPARED).
      batch_size: rows of a global batch.
      source_length, target_length: tokens of a row; must be those of the cache.
      temperature: languages are drawn in proportion to n^(1/T), n a language's pairs (GShard, section 3.1: T = 5).
      seed: of the order in which rows come.
    """

    cache: str
    batch_size: int
    source_length: int = 128
    target_length: int = 128
    temperature: float = 5.0
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticTranslation:
    """Random token ids in full rows: throughput and tests, without data files and without TensorFlow."""

    batch_size: int
    source_length: int = 128
    target_length: int = 128
    seed: int = 0


Data = TranslationData | SyntheticTranslation

# --- optimization ------------------------------------------------------------------------------------------------


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
class Constant:
    """The same learning rate at every step."""

    value: float


Schedule = InverseSqrt | Cosine | Constant


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

# --- running -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """The training loop.

    Attributes:
      steps: optimizer steps of the whole run.
      seed: of the initial weights, dropout and routing.
      microbatches: equal parts into which a batch is cut; their gradients are accumulated.
      clip_norm: global norm to which gradients are clipped; 0 leaves them.
      log_every, save_every, eval_every: in steps; 0 means only at the end.
      keep: how many of the newest checkpoints stay, besides those of `keep_every`.
      keep_every: every checkpoint at a multiple of this stays; 0 keeps none for ever.
      best: the evaluation metric by which one more checkpoint, the best, stays; "" keeps none.
      max_nonfinite: how many steps with a non-finite loss or gradient are skipped before the run gives up.
      init_from: a release folder whose weights a new run starts from.
      master_dtype: of the stored weights; float64 is for exactness tests.
    """

    steps: int
    seed: int = 0
    microbatches: int = 1
    clip_norm: float = 0.0
    log_every: int = 10
    save_every: int = 1000
    eval_every: int = 0
    keep: int = 3
    keep_every: int = 0
    best: str = ""
    max_nonfinite: int = 20
    init_from: str = ""
    master_dtype: Literal["float32", "float64"] = "float32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Translate:
    """Translation by beam search, and its scores.

    Attributes:
      split: which held-out sentences of the cache: "validation" or "test" (some caches have more).
      per_language: at most so many sentences of each language; 0 takes all.
      beams: hypotheses of a sentence (Lingvo's comment: 4).
      length_penalty: alpha of ((5 + length) / 6)^alpha, which divides the log-probability (Lingvo: 0.8).
      max_length: longest translation in tokens, end of sentence included.
      batch_size: sentences decoded together.
    """

    split: str = "validation"
    per_language: int = 0
    beams: int = 4
    length_penalty: float = 0.8
    max_length: int = 64
    batch_size: int = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One complete experiment: everything that decides its result."""

    name: str
    model: GShardM4Config
    layout: Layout
    data: Data
    optimizer: Optimizer
    train: Train
    eval: Translate = Translate()
