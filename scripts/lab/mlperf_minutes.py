"""Predicts the minutes of an MLPerf benchmark's run: samples of the reference convergence points times the seconds of a step.

    python -m scripts.plan mlperf.llama31_8b --topology v5p:2x2x4 --json > plan.json
    python -m scripts.lab.mlperf_minutes mlperf.llama31_8b --plan plan.json
    python -m scripts.lab.mlperf_minutes mlperf.llama31_8b --data.batch-size 64 --seconds 1.9 --error 0.05

A plan's step is modelled, as long as its calibration expects, and so are the minutes. They are those of training; `--evaluation
S` adds S seconds for each evaluation. The interval goes from the fewest rows of the reference's runs and a step as short as its
error allows to the most and the longest.
"""

import argparse
import dataclasses
import math
from typing import Any

from configs.experiment import Experiment
from configs.registry import ConfigError
from data import untrusted
from scripts import cli
from trainers.measure import mlperf_minutes, mlperf_rules
from trainers.measure.mlperf_benchmarks import BENCHMARKS


def main(arguments: list[str] | None = None) -> int:
    parser = cli.parser(__doc__)
    cli.add_experiment(parser)
    parser.add_argument("--plan", type=cli.folder, metavar="FILE", help="the JSON of scripts.plan, with the step and its error")
    parser.add_argument("--seconds", type=float, help="the seconds of a step, in place of a plan; by default the plan's")
    parser.add_argument("--error", type=float, default=0.0, help="the relative error of these seconds, 0 to 1")
    parser.add_argument("--evaluation", type=float, default=0.0, metavar="S", help="seconds of an evaluation")
    parser.add_argument(
        "--mlperf-ruleset", default="", metavar="N.N.N", help="the rules; by default the newest with the benchmark"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args, overrides = parser.parse_known_args(arguments)
    e = cli.chosen(args, overrides)
    if e.train.benchmark not in BENCHMARKS:
        raise ConfigError(f"{e.name} names no benchmark of MLPerf (train.benchmark={e.train.benchmark!r})")
    benchmark = BENCHMARKS[e.train.benchmark]
    ruleset = mlperf_rules.ruleset(benchmark, args.mlperf_ruleset)
    seconds, error, source = _step(args, e)
    point = mlperf_minutes.at(benchmark, ruleset, e.data.batch_size)
    result = mlperf_minutes.predict(benchmark, ruleset, point, seconds, error=error, evaluation=args.evaluation)
    if args.json:
        cli.print_json(
            {"experiment": e.name, "ruleset": ruleset, "batch": point.batch, "step_s": seconds, "error": error, "of": source}
            | dataclasses.asdict(result)
        )
        return 0
    print(
        f"{e.name}, MLPerf {ruleset}, batch {point.batch}: {result.expected:.1f} minutes "
        f"({result.low:.1f} to {result.high:.1f}),\n"
        f"{result.steps:,.0f} steps of {seconds:.3g} s +- {error:.0%} ({source}) and {result.evaluations:.0f} evaluations of "
        f"{args.evaluation:g} s"
    )
    return 0


def _step(args: argparse.Namespace, e: Experiment) -> tuple[float, float, str]:
    """Returns (seconds of a step, their relative error, where they come from).

    Raises:
      ConfigError: there is no step, or the plan is of another experiment or batch, or a check of its price has failed.
    """
    if (args.plan is None) == (args.seconds is None):
        raise ConfigError("name the seconds of a step: --plan FILE or --seconds S, one of them")
    if args.plan is None:
        if not 0 < args.seconds < math.inf or not 0 <= args.error < 1:
            raise ConfigError(f"--seconds {args.seconds:g} --error {args.error:g}: must be above 0, and from 0 to below 1")
        return args.seconds, args.error, "as given"
    if args.error:
        raise ConfigError(f"--error {args.error:g}: is of --seconds; a plan has its own")
    plan: Any = untrusted.read_json(args.plan, ConfigError)
    needed = {"experiment", "batch_size", "problems", "modelled_step_s", "modelled_mfu", "expected_mfu", "error_pct", "topology"}
    if needed - plan.keys() or plan["experiment"] != e.name:
        raise ConfigError(f"--plan {args.plan}: no plan of {e.name}, as scripts.plan --json prints it")
    if plan["batch_size"] != e.data.batch_size:
        raise ConfigError(f"--plan {args.plan}: is of {plan['batch_size']} rows, not of data.batch_size={e.data.batch_size}")
    if plan["problems"]:
        raise ConfigError(f"--plan {args.plan}: {plan['problems'][0]}")
    seconds = plan["modelled_step_s"] * plan["modelled_mfu"] / plan["expected_mfu"]
    return seconds, plan["error_pct"] / 100, f"modelled on {plan['topology']}"


if __name__ == "__main__":
    cli.run(main)
