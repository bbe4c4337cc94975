"""MLPerf's rules for a run: its benchmark, the settings that its log names, and the verdict of MLPerf's own checker.

A log names the ruleset that it follows, one of those of its benchmark (trainers/measure/mlperf_benchmarks.py). GShard M4 and runs
that measure speed alone, for which MLPerf has no benchmark, follow rules in the same form in configs/mlperf/.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from configs import optimizers
from configs.experiment import Experiment
from configs.registry import ConfigError
from models.errors import UserError, nearest
from models.families import family_of
from trainers.measure.mlperf_benchmarks import BENCHMARKS, OWN_RULES, RULESETS, THROUGHPUT, Benchmark

TOKEN = ":::MLLOG "
# MLPerf's names of dtypes, where they are others.
_PRECISIONS = {"float32": "fp32", "float64": "fp64", "nf4": "uint4"}


def benchmark(e: Experiment, target: float | None = None) -> Benchmark:
    """Returns the benchmark that an experiment names, or else its kind of data; on synthetic data, which has nothing to score,
    throughput.

    Args:
      target: the score to reach where the benchmark has none of its own: BLEU, 0 to 100, of translations.

    Raises:
      ConfigError: a target is missing, or given where the benchmark takes none.
    """
    name = e.train.benchmark or e.data.benchmark
    if name not in BENCHMARKS:
        raise ConfigError(f"train.benchmark={name!r}: no such benchmark{nearest(name, BENCHMARKS)}")
    result = BENCHMARKS[name] if e.data.cache else THROUGHPUT
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


def ruleset(benchmark: Benchmark, asked: str = "") -> str:
    """Returns the ruleset that a log follows, by default the newest that has its benchmark; raises ConfigError if none has it."""
    if asked and asked not in benchmark.rulesets:
        choice = ", ".join(benchmark.rulesets)
        raise ConfigError(
            f"--mlperf-ruleset {asked!r}: {benchmark.name} is a benchmark of {choice}{nearest(asked, benchmark.rulesets)}"
        )
    return asked or benchmark.rulesets[-1]


def first_evaluation(e: Experiment) -> tuple[int, int]:
    """Returns the interval of a run's evaluations and the first of them, in steps."""
    every = e.train.eval_every or e.train.steps
    return every, min(e.train.steps, every * max(1, -(-e.train.eval_from // every)))


def settings(e: Experiment, benchmark: Benchmark) -> dict[str, Any]:
    """Returns hyper-parameters and parallelism of an experiment under MLPerf's names, without those that it does not have."""
    data, train, layout = e.data, e.train, e.layout
    accumulated = train.microbatches * max((pipeline.microbatches for _, pipeline in layout.pipelines), default=1)
    dtype, quantization, base = e.execution.dtype, e.execution.quantization, e.train.finetune.lora.base
    values: dict[str, Any] = {
        "seed": train.seed,
        "global_batch_size": data.batch_size,
        "micro_batch_size": data.batch_size // (_num_shards(e, "batch") * accumulated),
        "gradient_accumulation_steps": accumulated,
        "max_steps": train.steps,
        # Weights in a few bits are dequantised before they are multiplied, and may travel as they are stored.
        "lowest_numerical_precision_in_linear": _precision(dtype if quantization == "none" else quantization),
        "lowest_numerical_precision_in_attn": _precision(dtype),
        "lowest_numerical_precision_in_comm": _precision(base or dtype),
        "tensor_parallelism": _num_shards(e, "act_mlp"),
        "context_parallelism": _num_shards(e, "length"),
        "expert_parallelism": _num_shards(e, "act_expert"),
        "pipeline_parallelism": max((_num_shards(e, "layers", path) for path, _ in layout.pipelines), default=1),
    }
    if lengths := [array.shape[0] for array in data.features().values() if array.axes[:1] == ("length",)]:
        values["max_sequence_length"] = max(lengths)
    values |= _optimizer(e.optimizer, benchmark) | _schedule(e.optimizer.schedule, benchmark)
    if (lora := train.finetune.lora).rank:
        values |= {"lora_rank": lora.rank, "lora_alpha": lora.alpha}
    if train.clip_norm:
        values["opt_gradient_clip_norm"] = train.clip_norm
    values |= family_of(e.model).hyperparameters(e.model)
    if benchmark.own and benchmark.target is not None:  # MLPerf's targets are in its rules
        values["quality_target"] = benchmark.target
    return values


def _precision(name: str) -> str:
    return _PRECISIONS.get(name, name)


def _num_shards(e: Experiment, name: str, component: str | None = None) -> int:
    """Returns the number of shards of an axis: in this component, or in the one that cuts it most."""
    places = ["", *(path for path, _ in e.layout.components)] if component is None else [component]
    return max(e.layout.num_shards(e.layout.resolve(place).get(name, ())) for place in places)


def _optimizer(o: optimizers.Optimizer, benchmark: Benchmark) -> dict[str, Any]:
    if isinstance(o, optimizers.ByComponent):
        return _optimizer(o.others, benchmark)
    name = type(o).__name__.lower()
    if isinstance(o, optimizers.AdamW | optimizers.Lamb):
        if name == "adamw":
            name = benchmark.opt_name  # GPT-3's Adam, as MLPerf calls it, decouples weight decay
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
    if benchmark.logs_warmup_range:  # the warm-up begins with the first step
        values |= {"num_warmup_steps": s.warmup, "start_warmup_step": 0}
    if isinstance(s, optimizers.InverseSqrt):
        return values | {"opt_base_learning_rate": s.scale / max(s.flat, s.warmup, 1) ** 0.5}
    return values | {
        "opt_base_learning_rate": s.peak,
        "opt_end_learning_rate": s.peak * s.floor,
        "opt_learning_rate_decay_steps": s.steps - (s.warmup if benchmark.decay_after_warmup else 0),
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


# Complaints of MLPerf's rules about every run that does not reach the target, even if its status is "aborted".
_TARGET_MISSED = ("Failed checks for eval_accuracy", "Required AT_LEAST_ONE occurrence of 'eval_accuracy'")


def followed(events: list[Event]) -> str:
    """Returns the ruleset that a log follows; logs from before they named one follow the first."""
    return str(value(events, "ruleset") or RULESETS[0])


def verdict(path: Path, asked: str = "") -> list[str]:
    """Returns all complaints of MLPerf's checker about a log, a line each; warnings count as errors.

    The benchmark that the log names decides between MLPerf's rules and those of configs/mlperf/.

    Args:
      asked: the ruleset that the log is to follow; "" is the one that it names.

    Raises:
      UserError: a line of the log is damaged.
    """
    from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser  # a command's --help must not wait for them

    events = read(path)
    own, follows = Benchmark(str(value(events, "submission_benchmark"))).own, followed(events)
    if follows not in RULESETS or asked not in ("", follows):
        return [f"the log follows ruleset {follows}, and is to be checked by {asked or ', '.join(RULESETS)}"]
    checker = mlp_compliance.make_checker("training", follows, quiet=False, werror=True)
    lines, damaged = mlp_parser.parse_file(str(path), ruleset=follows)
    config = str(OWN_RULES / "common.yaml") if own else f"training_{follows}/common.yaml"
    try:
        checker.check_loglines(lines, config)
    finally:
        mlp_compliance.enqueued_configs.clear()  # the checker's own list, which an error would leave for the next log
    unread = [f"line {line!r}: {error}" for line, error in damaged]
    return [*unread, *map(_one_line, [*checker.overwritable.values(), *checker.not_overwritable])]


def complaints(path: Path, asked: str = "") -> list[str]:
    """Returns the verdict on a log, without complaints that do not apply to an aborted run; empty if the log passes.

    MLPerf's rules know no aborted runs: a log with this status claims no result, so it may miss the target.
    """
    missed = _TARGET_MISSED if status(read(path)) == "aborted" else ()
    return [text for text in verdict(path, asked) if not text.startswith(missed)]


def _one_line(text: str) -> str:
    """Returns a complaint without the context that the checker prints below it."""
    failed = re.search(r"^CHECK for '(.*?)'.*?^failed test: *(.*?)$.*\"value\": (.*?)\s*\}\Z", text, re.DOTALL | re.MULTILINE)
    return f"{failed[1]} is {failed[3]}, must be: {failed[2].strip()}" if failed else text.splitlines()[0]
