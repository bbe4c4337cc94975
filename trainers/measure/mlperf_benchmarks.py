"""The benchmarks that runs are measured by: a row of a table for each, with the rulesets that have it.

An experiment names its benchmark by `train.benchmark`; one that names none has that of its kind of data (data.config.DataConfig).
Sources: "checker" is compliance_checker/training_RULESET/ of the package mlperf-logging, "rules" is training_rules.adoc of
github.com/mlcommons/training_policies (round 6.0).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import configs

RULESETS = ("4.1.0", "5.1.0", "6.0.0", "6.1.0")
OWN_RULES = Path(configs.__path__[0]).resolve() / "mlperf"

Values = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A hyper-parameter that the closed division fixes.

    Attributes:
      key: its key in a log.
      value: its value, or a function that makes it of the log's other values.
      source: where that stands: the name of a file of "checker", or "rules".
    """

    key: str
    value: Any
    source: str

    def of(self, values: Values) -> Any:
        """Returns the value that it must have beside the other values of a log."""
        return self.value(values) if callable(self.value) else self.value


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark that a run is measured by.

    Attributes:
      name: its name in the log.
      metric: the evaluation's scalar that is scored; "" without a score.
      target: the score to reach, in the metric's own scale; None without a score, or where each run names its own target.
      at_most: whether the score has to fall to the target, not rise to it.
      highest: the largest target that a run may name.
      rulesets: the rulesets that have it, the newest last.
      runs: attempts of a submission; 0 if there are none.
      every: training rows between evaluations, rounded up to whole batches (closed division); 0 leaves it open.
      skipped: evaluations that are left out at the start, of (rows of a batch, ruleset).
      fixed: what the closed division fixes beside this.
      opt_name: what it calls AdamW, if not "adamw".
      decay_after_warmup: whether a schedule's decay is counted from the end of its warm-up.
      logs_warmup_range: whether a log also names the first step of the warm-up and their number (BERT's reference).
    """

    name: str
    metric: str = ""
    target: float | None = None
    at_most: bool = False
    highest: float = 0.0
    rulesets: tuple[str, ...] = RULESETS[:1]
    runs: int = 0
    every: int = 0
    skipped: Callable[[int, str], int] = lambda batch, ruleset: 0
    fixed: tuple[Fixed, ...] = ()
    opt_name: str = "adamw"
    decay_after_warmup: bool = False
    logs_warmup_range: bool = False

    def met(self, score: float) -> bool:
        if self.target is None:
            return False
        return score <= self.target if self.at_most else score >= self.target

    @property
    def own(self) -> bool:
        """Whether its rules are in configs/mlperf/, not MLPerf's."""
        return (OWN_RULES / f"{self.name}.yaml").exists()

    def evaluations(self, batch: int, ruleset: str) -> tuple[int, int]:
        """Returns (the interval of evaluations, the first one), in steps, for batches of so many rows."""
        steps = max(1, -(-self.every // batch))
        return steps, steps * (1 + self.skipped(batch, ruleset))


def _same(**values: Any) -> Callable[[str], tuple[Fixed, ...]]:
    """Returns a function that makes fixed values of the name of their source."""
    return lambda source: tuple(Fixed(key, value, source) for key, value in values.items())


def _from_scratch(name: str) -> tuple[Fixed, ...]:
    """Returns what Llama 3.1 8B and gpt-oss 20B fix."""
    checked = _same(
        max_sequence_length=8192,
        opt_name="adamw",
        opt_adamw_beta_1=0.9,
        opt_adamw_beta_2=0.95,
        opt_adamw_epsilon=1e-5,
        opt_adamw_weight_decay=0.1,
        opt_gradient_clip_norm=1.0,
        opt_learning_rate_decay_schedule="cosine with linear warmup",
        opt_learning_rate_decay_steps=lambda v: 1_200_000 - v["opt_learning_rate_warmup_steps"],
        max_steps=1_200_000,
        eval_samples=1024,
    )
    return (*checked(f"closed_{name}.yaml"), Fixed("opt_end_learning_rate", lambda v: 0.1 * v["opt_base_learning_rate"], "rules"))


_DEEPSEEK = _same(
    max_sequence_length=4096,
    opt_name="adamw",
    opt_base_learning_rate=lambda v: round(2.4e-5 * math.sqrt(v["global_batch_size"] / 16_384), 9),
    opt_learning_rate_warmup_steps=4,
    opt_learning_rate_decay_steps=12_000 - 4,
    opt_learning_rate_decay_schedule="cosine with linear warmup",
    opt_adamw_beta_1=0.9,
    opt_adamw_beta_2=0.95,
    opt_adamw_epsilon=1e-8,
    opt_adamw_weight_decay=0.1,
    opt_gradient_clip_norm=1.0,
    moe_aux_loss_coeff=0.01,
    eval_samples=1024,
)("closed_deepseekv3_671b.yaml")

# The rules print rows of 8196 tokens; the reference, and all its convergence points, have 8192.
_LORA = (
    Fixed("lora_rank", 16, "closed_llama2_70b_lora.yaml"),
    *_same(lora_alpha=32, opt_name="adamw", opt_adamw_weight_decay=1e-4, opt_gradient_clip_norm=0.3, max_sequence_length=8192)(
        "rules"
    ),
)


def _deepseek_skipped(batch: int, ruleset: str) -> int:
    """Returns how many evaluations are left out: 6.0 wants one after every step, 6.1's checker the first at a certain step."""
    return 0 if ruleset == "6.0.0" else math.floor(42 + 24_576 / batch) - 1


BERT = Benchmark("bert", "eval/accuracy", 0.72, runs=10, logs_warmup_range=True)  # of masked words
GPT3 = Benchmark("gpt3", "eval/cross_entropy", 2.69, at_most=True, runs=3, opt_name="adam")  # nats a token: log perplexity
TRANSLATION = Benchmark("gshard_m4", "eval/bleu", highest=100.0)
THROUGHPUT = Benchmark("throughput")
LLAMA31_8B = Benchmark(
    "llama31_8b",
    "eval/cross_entropy",
    3.3,
    at_most=True,
    rulesets=("5.1.0", "6.0.0", "6.1.0"),
    runs=10,
    every=12_288,
    fixed=_from_scratch("llama31_8b"),
    decay_after_warmup=True,
)
GPT_OSS_20B = dataclasses.replace(
    LLAMA31_8B, name="gpt_oss_20b", target=3.34, rulesets=("6.0.0", "6.1.0"), fixed=_from_scratch("gpt_oss_20b")
)
DEEPSEEK_V3 = Benchmark(
    "deepseekv3_671b",
    "eval/cross_entropy",
    3.6,
    at_most=True,
    rulesets=("6.0.0", "6.1.0"),
    runs=3,
    every=1,
    skipped=_deepseek_skipped,
    fixed=_DEEPSEEK,
    decay_after_warmup=True,
)
LLAMA2_LORA = Benchmark(
    "llama2_70b_lora",
    "eval/cross_entropy",
    0.925,
    at_most=True,
    rulesets=RULESETS,
    runs=10,
    every=384,
    skipped=lambda batch, ruleset: math.floor(0.125 * batch + 2),
    fixed=_LORA,
)
BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (BERT, GPT3, TRANSLATION, THROUGHPUT, LLAMA31_8B, GPT_OSS_20B, DEEPSEEK_V3, LLAMA2_LORA)
}


def broken(benchmark: Benchmark, ruleset: str, values: Values, evaluations: tuple[int, int]) -> dict[str, str]:
    """Returns what a run lacks of what the closed division fixes: by key, a line that ends with its source.

    Args:
      values: the log's values by key.
      evaluations: the run's interval of evaluations and its first one, in steps.
    """
    lines = {}
    for fixed in benchmark.fixed:
        if not _equal(values.get(fixed.key), wanted := fixed.of(values)):
            lines[fixed.key] = f"{fixed.key} is {values.get(fixed.key)}, must be {wanted} ({fixed.source})"
    if benchmark.every:
        for field, is_, wanted in zip(
            ("eval_every", "eval_from"), evaluations, benchmark.evaluations(values["global_batch_size"], ruleset), strict=True
        ):
            if is_ != wanted:
                first = "the interval of evaluations" if field == "eval_every" else "the first evaluation"
                lines[field] = f"{first} is {is_} steps, must be {wanted} (rules); --train.{field.replace('_', '-')} {wanted}"
    return lines


def _equal(value: Any, wanted: Any) -> bool:
    numbers = isinstance(value, int | float) and isinstance(wanted, int | float)
    return math.isclose(value, wanted, rel_tol=1e-4) if numbers else value == wanted
