"""What MLPerf asks of a run: which benchmark it is, the settings that its log names, and the verdict of MLPerf's own checker.

BERT and GPT-3 follow the rules of MLPerf Training 4.1, the last round that had both. What MLPerf has no benchmark for, GShard M4
and runs that measure speed alone, follows rules in the same form in configs/mlperf/.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

import configs
from configs import optimizers
from configs.experiment import Experiment
from configs.registry import ConfigError
from models.errors import UserError
from models.families import family_of

RULESET = "4.1.0"
TOKEN = ":::MLLOG "
OWN_RULES = Path(configs.__path__[0]).resolve() / "mlperf"


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What a run is measured by.

    Attributes:
      name: as the log calls it.
      metric: the evaluation's scalar that is scored; "" where nothing is.
      target: the score to reach, in the metric's own scale; None where nothing is scored, or where each run names its own.
      at_most: the score has to fall to the target, not to rise to it.
      highest: the largest target that a run may name.
    """

    name: str
    metric: str = ""
    target: float | None = None
    at_most: bool = False
    highest: float = 0.0

    def met(self, score: float) -> bool:
        if self.target is None:
            return False
        return score <= self.target if self.at_most else score >= self.target

    @property
    def own(self) -> bool:
        """Whether its rules are in configs/mlperf/, not MLPerf's."""
        return (OWN_RULES / f"{self.name}.yaml").exists()


BERT = Benchmark("bert", "eval/accuracy", 0.72)  # masked words told right
GPT3 = Benchmark("gpt3", "eval/cross_entropy", 2.69, at_most=True)  # nats a token, which MLPerf calls log perplexity
TRANSLATION = Benchmark("gshard_m4", "eval/bleu", highest=100.0)
THROUGHPUT = Benchmark("throughput")
BENCHMARKS = {benchmark.name: benchmark for benchmark in (BERT, GPT3, TRANSLATION, THROUGHPUT)}


def benchmark(e: Experiment, target: float | None = None) -> Benchmark:
    """Returns the benchmark that an experiment's kind of data names; on synthetic data, which has nothing to score, throughput.

    Args:
      target: the score to reach where the benchmark has none of its own: BLEU, 0 to 100, of translations.

    Raises:
      ConfigError: a target is missing, or one too much.
    """
    found = BENCHMARKS[e.data.benchmark] if e.data.cache else THROUGHPUT
    if found.metric and found.target is None:
        if target is None or not 0 < target <= found.highest:
            metric = found.metric.removeprefix("eval/").upper()
            raise ConfigError(
                f"--mlperf-target={target}: {found.name} needs the {metric} to reach, above 0 and at most {found.highest:g}"
            )
        return dataclasses.replace(found, target=target)
    if target is not None:
        fixed = "has no target" if found.target is None else f"has MLPerf's target {found.target}"
        raise ConfigError(f"--mlperf-target={target}: benchmark {found.name} {fixed}; leave the option out")
    return found


def settings(e: Experiment, of: Benchmark) -> dict[str, Any]:
    """Hyper-parameters and parallelism of an experiment under MLPerf's names; what it does not have is left out."""
    data, train, layout = e.data, e.train, e.layout
    accumulated = train.microbatches * max((p.microbatches for _, p in layout.pipelines), default=1)
    found: dict[str, Any] = {
        "seed": train.seed,
        "global_batch_size": data.batch_size,
        "micro_batch_size": data.batch_size // (_ways(e, "batch") * accumulated),
        "gradient_accumulation_steps": accumulated,
        "max_steps": train.steps,
        "lowest_numerical_precision_in_linear": e.execution.dtype,
        "tensor_parallelism": _ways(e, "act_mlp"),
        "context_parallelism": _ways(e, "length"),
        "expert_parallelism": _ways(e, "act_expert"),
        "pipeline_parallelism": max((_ways(e, "layers", path) for path, _ in layout.pipelines), default=1),
    }
    if lengths := [array.shape[0] for array in data.features().values() if array.axes[:1] == ("length",)]:
        found["max_sequence_length"] = max(lengths)
    found |= _optimizer(e.optimizer, of) | _schedule(e.optimizer.schedule, of)
    if train.clip_norm:
        found["opt_gradient_clip_norm"] = train.clip_norm
    found |= family_of(e.model).hyperparameters(e.model)
    if of.own and of.target is not None:  # MLPerf's targets are in its rules
        found["quality_target"] = of.target
    return found


def _ways(e: Experiment, name: str, component: str | None = None) -> int:
    """Into how many pieces an axis is cut: in this component, or in the one that cuts it most."""
    places = ["", *(path for path, _ in e.layout.components)] if component is None else [component]
    return max(e.layout.num_shards(e.layout.resolve(place).get(name, ())) for place in places)


def _optimizer(o: optimizers.Optimizer, of: Benchmark) -> dict[str, Any]:
    name = type(o).__name__.lower()
    if isinstance(o, optimizers.AdamW | optimizers.Lamb):
        if of is GPT3:  # whose Adam, as MLPerf calls it, decouples weight decay
            name = "adam"
        decay = {"adam": "opt_weight_decay", "adamw": "opt_adamw_weight_decay", "lamb": "opt_lamb_weight_decay_rate"}
        values = {f"opt_{name}_beta_1": o.b1, f"opt_{name}_beta_2": o.b2, f"opt_{name}_epsilon": o.eps}
        return {"opt_name": name} | values | {decay[name]: o.weight_decay}
    fields = (f.name for f in dataclasses.fields(o) if f.name != "schedule")
    return {"opt_name": name} | {f"opt_{name}_{field}": getattr(o, field) for field in fields}


def _schedule(s: optimizers.Schedule, of: Benchmark) -> dict[str, Any]:
    if isinstance(s, optimizers.Constant):
        return {"opt_base_learning_rate": s.value, "opt_learning_rate_decay_schedule": "constant"}
    shape = {"InverseSqrt": "inverse square root"}.get(type(s).__name__, type(s).__name__.lower())
    found: dict[str, Any] = {
        "opt_learning_rate_decay_schedule": shape + (" with linear warmup" if s.warmup else ""),
        "opt_learning_rate_warmup_steps": s.warmup,
    }
    if of is BERT:  # whose reference names these besides: the warm-up begins with the first step
        found |= {"num_warmup_steps": s.warmup, "start_warmup_step": 0}
    if isinstance(s, optimizers.InverseSqrt):
        return found | {"opt_base_learning_rate": s.scale / max(s.flat, s.warmup, 1) ** 0.5}
    return found | {
        "opt_base_learning_rate": s.peak,
        "opt_end_learning_rate": s.peak * s.floor,
        "opt_learning_rate_decay_steps": s.steps,
        "opt_learning_rate_training_steps": s.steps,
    }


# --- reading and checking ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Event:
    """A line of a log; `time` in seconds since 1970."""

    key: str
    value: Any
    metadata: dict[str, Any]
    time: float


def read(path: Path) -> list[Event]:
    """The events of a log, in order; text that is none of MLPerf's is passed over.

    Raises:
      UserError: a line is damaged.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        _, token, text = line.partition(TOKEN)
        if token:
            try:
                event = json.loads(text)
                found.append(Event(event["key"], event["value"], event["metadata"] or {}, event["time_ms"] / 1000))
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path}: line {number} is no {TOKEN.strip()} line of MLPerf: {text[:60]!r}") from None
    return found


def value(events: list[Event], key: str) -> Any:
    """The value of a key's first event, None where there is none."""
    return next((event.value for event in events if event.key == key), None)


def status(events: list[Event]) -> str:
    """How an attempt ended: "success", "aborted", or "" if its log breaks off."""
    return next((event.metadata.get("status", "") for event in events if event.key == "run_stop"), "")


# What the rules of BERT and GPT-3 say of every run that does not reach the target, also of one that calls itself aborted.
_TARGET_MISSED = ("Failed checks for eval_accuracy", "Required AT_LEAST_ONE occurrence of 'eval_accuracy'")


def verdict(path: Path) -> list[str]:
    """All that MLPerf's checker says against a log, a line each; warnings count as errors.

    The rules are MLPerf's, or ours, by the log's own benchmark.

    Raises:
      UserError: a line of the log is damaged.
    """
    own = Benchmark(str(value(read(path), "submission_benchmark"))).own
    checker = mlp_compliance.make_checker("training", RULESET, quiet=False, werror=True)
    lines, damaged = mlp_parser.parse_file(str(path), ruleset=RULESET)
    config = str(OWN_RULES / "common.yaml") if own else f"training_{RULESET}/common.yaml"
    try:
        checker.check_loglines(lines, config)
    finally:
        mlp_compliance.enqueued_configs.clear()  # the checker's own list, which an error would leave to the next log
    unread = [f"line {line!r}: {error}" for line, error in damaged]
    return [*unread, *map(_one_line, [*checker.overwritable.values(), *checker.not_overwritable])]


def complaints(path: Path) -> list[str]:
    """Returns the verdict on a log, without what is no fault of an aborted run; empty if the log passes.

    MLPerf's rules know no aborted runs: a log that says it is one, and so claims no result, may miss the target.
    """
    missed = _TARGET_MISSED if status(read(path)) == "aborted" else ()
    return [text for text in verdict(path) if not text.startswith(missed)]


def _one_line(text: str) -> str:
    """A complaint without the context that the checker prints below it."""
    failed = re.search(
        r"^CHECK for '(.*?)'.*?^failed test: *(.*?)$.*\"value\": (.*?)\s*\}\Z", text, re.DOTALL | re.MULTILINE
    )
    return f"{failed[1]} is {failed[3]}, must be: {failed[2].strip()}" if failed else text.splitlines()[0]
