"""The Experiment and its training settings: frozen, keyword-only dataclasses, plain data without JAX or TensorFlow.

A misspelt field is an error here, in the file (TypeError) and on the command line (with the nearest name).
"""

import dataclasses
import re
from typing import Any, Literal

from configs.optimizers import Optimizer, for_steps
from data.config import DataConfig, EvalConfig, HeldOut
from data.paths import is_address
from models.errors import UserError
from models.execution import Execution
from models.families import ModelConfig
from models.parts.transformer_config import check_dropout
from models.sharding.layout import Layout

FRESH = ("head",)
"""Components that may start fresh by default."""

# --- running -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adaptation (Hu et al. 2021, arXiv 2106.09685): W + alpha / rank * A B, with W frozen. Exports are merged.

    Attributes:
      rank: columns of A and rows of B; 0 trains the matrices themselves.
      alpha: scale of the update.
      targets: matrices that are adapted, by the last part of their names, by the names of their modules in `transformers`
        ("q_proj", "mlp.down_proj"), or "all-linear", all projections of the layers; all others are frozen, except in the
        components of `Finetuning.fresh`.
      base: how all projections of the layers are stored, which are frozen: "" as they are, "nf4" in 4 bits or "int8" in 8, with
        a scale for each 64 (QLoRA, arXiv 2305.14314).
      dropout: in training, on what each A reads; W reads all of it.
    """

    rank: int = 0
    alpha: float = 16.0
    targets: tuple[str, ...] = ("q", "v")
    base: Literal["", "nf4", "int8"] = ""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.base and not self.rank:
            raise ValueError(f"base={self.base!r}: a quantised base is frozen, and there is nothing to train without a rank")
        check_dropout(self.dropout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finetuning:
    """The weights that a run starts from, and the part of them that it trains.

    Attributes:
      init_from: weights that a new run starts from: a release, a run, a Hugging Face folder, a GGUF file, or the name of released
        weights that scripts.prepare_data fetches; "" starts fresh. "COMPONENT=WEIGHTS" is for one component; several are
        joined by ";": "vision_tower=DIR;decoder=DIR".
      fresh: components, or parameters, that these weights may lack, which then start fresh, or may have in addition.
      freeze: parameters that are not trained, by dotted prefix ("embedding", "encoder.attention").
      freeze_layers: how many of the lowest layers of every stack are not trained.
      head_rate: learning rate of the components of `fresh`, relative to all others.
      lora: trains low-rank updates in place of the matrices they change.
    """

    init_from: str = ""
    fresh: tuple[str, ...] = FRESH
    freeze: tuple[str, ...] = ()
    freeze_layers: int = 0
    head_rate: float = 1.0
    lora: Lora = Lora()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation:
    """A teacher, whose predictions are targets beside the data's own (Hinton et al. 2015, arXiv 1503.02531).

    Attributes:
      teacher: trained weights, as `Finetuning.init_from` names them: of any model with the outputs of this one, on the same
        vocabulary. Its newest checkpoint is computed by the run's layout, in evaluation, and is not trained; "" is none.
      weight: share of a target's mass that the teacher distributes; the data's own class has the rest. A quarter is Switch
        Transformer's (arXiv 2101.03961, section 4.2).
    """

    teacher: str = ""
    weight: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise ValueError(f"weight={self.weight:g} must be above 0 and at most 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalTier:
    """Settings of a second tier of checkpoints, which each host keeps for itself (trainers/checkpoints/local.py).

    Attributes:
      every: interval in steps; 0 makes none.
      folder: a folder of each host's own, of the same path on all: on its disk, or in its memory, as /dev/shm/NAME. It takes up
        to five times the bytes of the state that the host's devices hold.
    """

    every: int = 0
    folder: str = ""

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ValueError(f"every={self.every} must be at least 0")
        if self.every and not self.folder:
            raise ValueError(f"every={self.every} needs a `folder` on each host, such as /dev/shm/shardzoo")
        if is_address(self.folder):
            raise ValueError(f"folder={self.folder!r} must be a path on each host")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpointing:
    """Settings of the checkpoints that a run makes: when, where, and which of them stay.

    Attributes:
      every: interval in steps; 0 means only at the end.
      keep: how many of the newest checkpoints are kept, besides those of `keep_every`.
      keep_every: every checkpoint at a multiple of this step is kept; 0 keeps no others.
      best: the evaluation metric whose best checkpoint is kept as well; "" keeps none. Its direction is known
        (trainers/evaluation/directions.py); an evaluation that is not finite is never the best.
      folder: the folder of the checkpoints: a path, or gs://BUCKET/RUN; "" is one in the run's folder.
      max_failures: how many saves in a row may fail, or be left out because the one before is not written, before the run ends.
      local: checkpoints on each host between these.
    """

    every: int = 1000
    keep: int = 3
    keep_every: int = 0
    best: str = ""
    folder: str = ""
    max_failures: int = 3
    local: LocalTier = LocalTier()

    def __post_init__(self) -> None:
        # Orbax writes arrays to no other addresses.
        if is_address(self.folder) and not re.match(r"gs://[a-z0-9][\w.-]*[a-z0-9]/[^/]", self.folder):
            raise UserError(
                f"train.checkpoint.folder={self.folder!r}: checkpoints are written to a path or to gs://BUCKET/FOLDER, and to no "
                "other address"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Faults:
    """How a run notices faults, and what it does about them.

    Attributes:
      max_nonfinite: how many steps with a non-finite loss or gradient a start of the run skips before it gives up.
      spike: a logged loss above this multiple of the median of the last 20 logged ones rewinds the run to the newest checkpoint
        before it, and the batches from there on are skipped (PaLM, arXiv 2204.02311, section 5.1); 0 never does.
      spike_skip: how many batches are skipped then, at least.
      check_every: interval in steps at which a step is computed twice and replicas are compared, bit for bit
        (trainers/monitoring/corruption.py); takes the memory of a second state. 0 never does.
      stall_seconds: heartbeat timeout: how long a process may be silent, or let the others wait, before they end
        (trainers/monitoring/stalls.py).
    """

    max_nonfinite: int = 20
    spike: float = 0.0
    spike_skip: int = 200
    check_every: int = 0
    stall_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.stall_seconds <= 0:
            raise ValueError(f"stall_seconds={self.stall_seconds:g} must be above 0")
        if self.spike and self.spike <= 1:
            raise ValueError(f"spike={self.spike:g} must be above 1, or 0 to leave spikes alone")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """The training loop.

    Attributes:
      steps: optimizer steps of the whole run.
      seed: seed of the initial weights, dropout and routing.
      microbatches: equal parts into which a batch is cut; their gradients are accumulated.
      clip_norm: global norm to which gradients are clipped; 0 leaves them.
      log_every, eval_every: intervals in steps; 0 evaluates only at the end.
      eval_from: the first step at which an evaluation is due; the last step is always evaluated.
      benchmark: name of the benchmark whose rules the run follows (trainers/measure/mlperf_benchmarks.py); "" is that of the
        kind of data.
      workers: processes that read and augment data ahead of time, on each host; 0 does it in a thread of the trainer's own.
      master_dtype: dtype of the stored weights; float64 is for exactness tests.
    """

    steps: int
    seed: int = 0
    microbatches: int = 1
    clip_norm: float = 0.0
    log_every: int = 10
    eval_every: int = 0
    eval_from: int = 0
    benchmark: str = ""
    workers: int = 0
    master_dtype: Literal["float32", "float64"] = "float32"
    checkpoint: Checkpointing = Checkpointing()
    faults: Faults = Faults()
    finetune: Finetuning = Finetuning()
    distillation: Distillation = Distillation()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One complete experiment: everything that decides its result, and in `execution` how it is computed.

    Attributes:
      name: its module and function, as `configs.registry.load` fills it in.
      model: the family, and its configuration.
      data: the kind of data.
      optimizer: turns gradients into updates.
      eval: how the model is scored on held-out examples.
    """

    name: str = ""
    model: ModelConfig
    layout: Layout
    data: DataConfig
    optimizer: Optimizer
    train: Train
    eval: EvalConfig = dataclasses.field(default_factory=HeldOut)
    execution: Execution = Execution()

    def with_steps(self, steps: int) -> "Experiment":
        """Returns the experiment with another number of steps, which a schedule follows if it ends with the run."""
        return dataclasses.replace(
            self, optimizer=for_steps(self.optimizer, self.train.steps, steps), train=dataclasses.replace(self.train, steps=steps)
        )

    def with_finetune(self, **changes: Any) -> "Experiment":
        """Returns the experiment with fields of `train.finetune` changed."""
        finetune = dataclasses.replace(self.train.finetune, **changes)
        return dataclasses.replace(self, train=dataclasses.replace(self.train, finetune=finetune))
