"""What an experiment is: frozen, keyword-only dataclasses, plain data without JAX or TensorFlow.

A misspelt field is an error here, in the file (TypeError) and on the command line (with the nearest name).
"""

import dataclasses
from typing import Literal

from models.bert.config import BertConfig
from models.gpt.config import GptConfig
from models.gshard_m4.config import GShardM4Config
from models.sharding.layout import Layout

Model = GShardM4Config | BertConfig | GptConfig

# --- data --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Array:
    """An int32 array of a row: its shape, and the logical name of each dimension (None is never cut)."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]


def _positions(length: int, *names: str) -> dict[str, Array]:
    return {name: Array((length,), ("length",)) for name in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationData:
    """Packed rows of translated pairs.

    Attributes:
      cache: name of the prepared cache (a key of data.prepare.PREPARED); "" is random tokens in full rows, for
        throughput and tests: no data files, no TensorFlow.
      batch_size: rows of a global batch.
      source_length, target_length: tokens of a row; must be those of the cache.
      temperature: languages are drawn in proportion to n^(1/T), n a language's pairs (GShard, section 3.1: T = 5).
      seed: of the order in which rows come.
    """

    cache: str = ""
    batch_size: int
    source_length: int = 128
    target_length: int = 128
    temperature: float = 5.0
    seed: int = 0

    def stored(self) -> dict[str, Array]:
        """A row as the cache stores it, in that order."""
        lengths = {"inputs": self.source_length, "targets": self.target_length}
        return {k: v for side, n in lengths.items() for k, v in _positions(n, *_parts(side)).items()}

    def arrays(self) -> dict[str, Array]:
        """A row as the model gets it."""
        return self.stored()

    def tiny(self) -> "TranslationData":
        """Random tokens in a batch that runs in seconds."""
        return TranslationData(batch_size=16, source_length=16, target_length=16)


def _parts(name: str) -> tuple[str, str, str]:
    return name, f"{name}_segments", f"{name}_positions"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextData:
    """Packed rows of running text, for causal language models.

    Attributes:
      cache: name of the prepared cache; "" is random tokens, see TranslationData.
      batch_size: rows of a global batch.
      length: tokens of a row; must be the cache's.
      temperature: sources of text are drawn in proportion to n^(1/T), n a source's examples; 1 takes them as they are.
      seed: of the order in which rows come.
    """

    cache: str = ""
    batch_size: int
    length: int
    temperature: float = 1.0
    seed: int = 0

    def stored(self) -> dict[str, Array]:
        """A row as the cache stores it, in that order."""
        return _positions(self.length, "tokens", "segments", "positions")

    def arrays(self) -> dict[str, Array]:
        """A row as the model gets it."""
        return self.stored()

    def tiny(self) -> "TextData":
        """Random tokens in a batch that runs in seconds."""
        return dataclasses.replace(self, cache="", batch_size=16, length=16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedTextData(TextData):
    """The same rows with tokens masked anew every time they come (RoBERTa's dynamic masking; BERT, section 3.1).

    Attributes:
      rate: share of tokens to predict; of those 80 % are masked, 10 % random, 10 % left.
      whole_word: masks all pieces of a word or none.
      pairs: most sentence pairs of a row in a cache made for next-sentence prediction; 0 for plain text.
    """

    rate: float = 0.15
    whole_word: bool = False
    pairs: int = 0

    @property
    def predictions(self) -> int:
        """Most tokens to predict in a row."""
        return max(1, int(self.rate * self.length))

    def stored(self) -> dict[str, Array]:
        if not self.pairs:
            return super().stored()
        pairs = Array((self.pairs,), (None,))
        return super().stored() | _positions(self.length, "types") | {"pair_slots": pairs, "pair_targets": pairs}

    def arrays(self) -> dict[str, Array]:
        slots = Array((self.predictions,), (None,))
        return self.stored() | {"slots": slots, "targets": slots}

    def tiny(self) -> "MaskedTextData":
        return dataclasses.replace(self, cache="", batch_size=16, length=16, pairs=min(self.pairs, 2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledData:
    """Packed rows of labelled examples, to fine-tune an encoder.

    Attributes:
      cache: name of the prepared cache; "" is random tokens and labels, see TranslationData.
      batch_size: rows of a global batch; a row holds several examples.
      length: tokens of a row; must be the cache's.
      slots: most labels of a row; must be the cache's.
      spans: a label is the start and end of an answer, not a class.
      masked: share of a training row's tokens that give way to [MASK], others every time: noise against learning by heart.
      seed: of the order in which rows come.
    """

    cache: str = ""
    batch_size: int
    length: int = 128
    slots: int
    spans: bool = False
    masked: float = 0.0
    seed: int = 0

    def stored(self) -> dict[str, Array]:
        """A row as the cache stores it, in that order."""
        slots, wide = Array((self.slots,), (None,)), Array((self.slots, 2), (None, None))
        texts = _positions(self.length, "tokens", "segments", "positions", "types")
        return texts | {"slots": slots, "targets": wide if self.spans else slots}

    def arrays(self) -> dict[str, Array]:
        """A row as the model gets it."""
        return self.stored()

    def tiny(self) -> "LabelledData":
        """Random tokens and labels in a batch that runs in seconds."""
        return dataclasses.replace(self, cache="", batch_size=16, length=16, slots=2)


Data = TranslationData | TextData | MaskedTextData | LabelledData

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adaptation (Hu et al. 2021, arXiv 2106.09685): W + alpha / rank * A B, with W frozen. Exports are merged.

    Attributes:
      rank: columns of A and rows of B; 0 trains the matrices themselves.
      alpha: scale of the update.
      targets: matrices that are adapted, by the last part of their names; all others but the component "head" are frozen.
    """

    rank: int = 0
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q", "v")


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
      init_from: weights that a new run starts from: a release, a Hugging Face folder, a GGUF file, or the name of released
        weights that scripts.prepare_data fetches. The model's component "head" may be missing there: it starts fresh.
      freeze: parameters that stay as they are, by dotted prefix ("embedding", "encoder.attention").
      freeze_layers: the lowest layers of every stack stay as they are.
      head_rate: learning rate of the component "head", which fine-tuning starts fresh, relative to all others.
      lora: trains low-rank updates in place of the matrices they change.
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
    freeze: tuple[str, ...] = ()
    freeze_layers: int = 0
    head_rate: float = 1.0
    lora: Lora = Lora()
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
class HeldOut:
    """The model's own loss and metrics on held-out text, encoded with the vocabulary that lies beside the weights.

    Attributes:
      split: which held-out examples of the cache: "validation" or "test".
      limit: at most so many examples; 0 takes all.
      batch_size: packed rows read together.
    """

    split: str = "validation"
    limit: int = 0
    batch_size: int = 16


Eval = Translate | HeldOut


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One complete experiment: everything that decides its result."""

    name: str
    model: Model
    layout: Layout
    data: Data
    optimizer: Optimizer
    train: Train
    eval: Eval
