"""MLPerf's rules for a run: its benchmark, the settings that its log names, and the verdict of MLPerf's own checker.

BERT and GPT-3 follow the rules of MLPerf Training 4.1, the last round that had both. GShard M4 and runs that measure speed alone,
for which MLPerf has no benchmark, follow rules in the same form in configs/mlperf/.
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
    """A benchmark that a run is measured by.

    Attributes:
      name: its name in the log.
      metric: the evaluation's scalar that is scored; "" without a score.
      target: the score to reach, in the metric's own scale; None without a score, or where each run names its own target.
      at_most: whether the score has to fall to the target, not rise to it.
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


BERT = Benchmark("bert", "eval/accuracy", 0.72)  # of masked words
GPT3 = Benchmark("gpt3", "eval/cross_entropy", 2.69, at_most=True)  # nats a token, which MLPerf calls log perplexity
TRANSLATION = Benchmark("gshard_m4", "eval/bleu", highest=100.0)
THROUGHPUT = Benchmark("throughput")
BENCHMARKS = {benchmark.name: benchmark for benchmark in (BERT, GPT3, TRANSLATION, THROUGHPUT)}


def benchmark(e: Experiment, target: float | None = None) -> Benchmark:
    """Returns the benchmark that an experiment's kind of data names; on synthetic data, which has nothing to score, throughput.

    Args:
      target: the score to reach where the benchmark has none of its own: BLEU, 0 to 100, of translations.

    Raises:
      ConfigError: a target is missing, or given where the benchmark takes none.
    """
    result = BENCHMARKS[e.data.benchmark] if e.data.cache else THROUGHPUT
    if result.metric and result.target is None:
        if target is None or not 0 < target <= result.highest:
            metric = result.metric.removeprefix("eval/").upper()
            raise ConfigError(
                f"--mlperf-target={target}: {result.name} needs the {metric} to reach, above 0 and at most {result.highest:g}"
            )
        return dataclasses.replace(result, target=target)
    if target is not None:
        fixed = "has no target" if result.target is None else f"has MLPerf's target {result.target}"
        raise ConfigError(f"--mlperf-target={target}: benchmark {result.name} {fixed}; leave the option out")
    return result


def settings(e: Experiment, benchmark: Benchmark) -> dict[str, Any]:
    """Returns hyper-parameters and parallelism of an experiment under MLPerf's names, without those that it does not have."""
    data, train, layout = e.data, e.train, e.layout
    accumulated = train.microbatches * max((pipeline.microbatches for _, pipeline in layout.pipelines), default=1)
    precision = e.execution.dtype if e.execution.quantization == "none" else e.execution.quantization
    values: dict[str, Any] = {
        "seed": train.seed,
        "global_batch_size": data.batch_size,
        "micro_batch_size": data.batch_size // (_num_shards(e, "batch") * accumulated),
        "gradient_accumulation_steps": accumulated,
        "max_steps": train.steps,
        "lowest_numerical_precision_in_linear": precision,
        "tensor_parallelism": _num_shards(e, "act_mlp"),
        "context_parallelism": _num_shards(e, "length"),
        "expert_parallelism": _num_shards(e, "act_expert"),
        "pipeline_parallelism": max((_num_shards(e, "layers", path) for path, _ in layout.pipelines), default=1),
    }
    if lengths := [array.shape[0] for array in data.features().values() if array.axes[:1] == ("length",)]:
        values["max_sequence_length"] = max(lengths)
    values |= _optimizer(e.optimizer, benchmark) | _schedule(e.optimizer.schedule, benchmark)
    if train.clip_norm:
        values["opt_gradient_clip_norm"] = train.clip_norm
    values |= family_of(e.model).hyperparameters(e.model)
    if benchmark.own and benchmark.target is not None:  # MLPerf's targets are in its rules
        values["quality_target"] = benchmark.target
    return values


def _num_shards(e: Experiment, name: str, component: str | None = None) -> int:
    """Returns the number of shards of an axis: in this component, or in the one that cuts it most."""
    places = ["", *(path for path, _ in e.layout.components)] if component is None else [component]
    return max(e.layout.num_shards(e.layout.resolve(place).get(name, ())) for place in places)


def _optimizer(o: optimizers.Optimizer, benchmark: Benchmark) -> dict[str, Any]:
    if isinstance(o, optimizers.ByComponent):
        return _optimizer(o.others, benchmark)
    name = type(o).__name__.lower()
    if isinstance(o, optimizers.AdamW | optimizers.Lamb):
        if benchmark is GPT3:  # its Adam, as MLPerf calls it, decouples weight decay
            name = "adam"
        decay = {"adam": "opt_weight_decay", "adamw": "opt_adamw_weight_decay", "lamb": "opt_lamb_weight_decay_rate"}
        values = {f"opt_{name}_beta_1": o.b1, f"opt_{name}_beta_2": o.b2, f"opt_{name}_epsilon": o.eps}
        return {"opt_name": name} | values | {decay[name]: o.weight_decay}
    fields = (f.name for f in dataclasses.fields(o) if f.name != "schedule")
    return {"opt_name": name} | {f"opt_{name}_{field}": getattr(o, field) for field in fields}


def _schedule(s: optimizers.Schedule, benchmark: Benchmark) -> dict[str, Any]:
    if isinstance(s, optimizers.Constant):
        return {"opt_base_learning_rate": s.value, "opt_learning_rate_decay_schedule": "constant"}
    shape = {"InverseSqrt": "inverse square root"}.get(type(s).__name__, type(s).__name__.lower())
    values: dict[str, Any] = {
        "opt_learning_rate_decay_schedule": shape + (" with linear warmup" if s.warmup else ""),
        "opt_learning_rate_warmup_steps": s.warmup,
    }
    if benchmark is BERT:  # its reference names these, too: the warm-up begins with the first step
        values |= {"num_warmup_steps": s.warmup, "start_warmup_step": 0}
    if isinstance(s, optimizers.InverseSqrt):
        return values | {"opt_base_learning_rate": s.scale / max(s.flat, s.warmup, 1) ** 0.5}
    return values | {
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
    """Returns the events of a log, in order; lines that are not MLPerf's are skipped.

    Raises:
      UserError: a line is damaged.
    """
    events = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        _, token, text = line.partition(TOKEN)
        if token:
            try:
                event = json.loads(text)
                events.append(Event(event["key"], event["value"], event["metadata"] or {}, event["time_ms"] / 1000))
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path}: line {number} is no {TOKEN.strip()} line of MLPerf: {text[:60]!r}") from None
    return events


def value(events: list[Event], key: str) -> Any:
    """Returns the value of a key's first event; None without one."""
    return next((event.value for event in events if event.key == key), None)


def status(events: list[Event]) -> str:
    """Returns how an attempt ended: "success", "aborted", or "" if its log breaks off."""
    return next((event.metadata.get("status", "") for event in events if event.key == "run_stop"), "")


# Complaints of BERT's and GPT-3's rules about every run that does not reach the target, even if its status is "aborted".
_TARGET_MISSED = ("Failed checks for eval_accuracy", "Required AT_LEAST_ONE occurrence of 'eval_accuracy'")


def verdict(path: Path) -> list[str]:
    """Returns all complaints of MLPerf's checker about a log, a line each; warnings count as errors.

    The benchmark that the log names decides between MLPerf's rules and those of configs/mlperf/.

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
        mlp_compliance.enqueued_configs.clear()  # the checker's own list, which an error would leave for the next log
    unread = [f"line {line!r}: {error}" for line, error in damaged]
    return [*unread, *map(_one_line, [*checker.overwritable.values(), *checker.not_overwritable])]


def complaints(path: Path) -> list[str]:
    """Returns the verdict on a log, without complaints that do not apply to an aborted run; empty if the log passes.

    MLPerf's rules know no aborted runs: a log with this status claims no result, so it may miss the target.
    """
    missed = _TARGET_MISSED if status(read(path)) == "aborted" else ()
    return [text for text in verdict(path) if not text.startswith(missed)]


def _one_line(text: str) -> str:
    """Returns a complaint without the context that the checker prints below it."""
    failed = re.search(r"^CHECK for '(.*?)'.*?^failed test: *(.*?)$.*\"value\": (.*?)\s*\}\Z", text, re.DOTALL | re.MULTILINE)
    return f"{failed[1]} is {failed[3]}, must be: {failed[2].strip()}" if failed else text.splitlines()[0]
