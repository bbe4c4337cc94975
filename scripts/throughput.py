"""Measures how fast an experiment trains: step time, tokens/s, MFU, HFU, and where the time goes.

    python -m scripts.throughput gpt.bench_42m
    python -m scripts.throughput gpt.quickstart --synthetic --layout fully_sharded:2x4 --steps 50 --json
    python -m scripts.throughput bert.bench_42m --profile profiles/bert    # a trace for xprof and TensorBoard, and a table
    python -m scripts.throughput gpt.bench_42m --compare bert.bench_42m    # by turns
    python -m scripts.throughput gpt.quickstart --synthetic --layout zero1:2x4 --compare fully_sharded:2x4

The step is the trainer's own, on the experiment's data or, with --synthetic, on random data, from fresh parameters. Nothing is
logged, scored or saved. Programs are compiled anew, never taken from a cache. docs/THROUGHPUT.md defines each number.
"""

import argparse
import dataclasses
import os

from configs import files, registry
from configs.experiment import Experiment
from configs.registry import ConfigError
from models.errors import nearest
from models.families import family_of
from scripts import cli


def other(args: argparse.Namespace, overrides: list[str], e: Experiment) -> Experiment:
    """Returns the experiment that --compare names: the first under another layout, on the same mesh if no sizes are given, or
    another experiment with the same options and overrides.

    Raises:
      ConfigError: it is neither a layout of the experiment's family nor an experiment.
    """
    table, names = family_of(e.model).layouts, registry.names()
    name = args.compare.partition(":")[0]
    if name in table:
        return dataclasses.replace(e, layout=cli.named_layout(e, args.compare))
    if name not in names and not files.is_file(args.compare):
        raise ConfigError(f"--compare {args.compare!r}: no such layout or experiment{nearest(name, [*table, *names])}")
    return cli.chosen(argparse.Namespace(**vars(args) | {"experiment": args.compare}), overrides)


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_experiment(parser)
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="how many steps are measured, after a warm-up")
    parser.add_argument("--compare", metavar="OTHER", help="another layout of the family, or another experiment")
    parser.add_argument(
        "--profile", type=cli.folder, metavar="DIR", help="trace some more steps and write the trace to this folder"
    )
    parser.add_argument("--mlperf", type=cli.folder, metavar="DIR", help="write a log in MLPerf's form there (docs/MLPERF.md)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--distributed", action="store_true", help="join the other processes of the run, as in scripts.train")
    args, overrides = parser.parse_known_args()
    if args.steps < 1:
        raise ConfigError(f"--steps {args.steps}: at least 1 must be counted")
    for option in ("profile", "mlperf"):
        if getattr(args, option) and args.compare:
            raise ConfigError(f"--{option} is for one experiment, --compare runs two: choose one of them")
    e = cli.chosen(args, overrides)
    b = other(args, overrides, e) if args.compare else None
    if args.profile:
        args.profile.mkdir(parents=True, exist_ok=True)  # before minutes are spent
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    widest = max([x.layout for x in (e, b) if x], key=lambda layout: layout.devices)
    cli.use_devices_of_all(widest, detect=args.distributed)

    import jax

    from trainers.measure import mlperf_log, throughput

    log = mlperf_log.Request(folder=args.mlperf) if args.mlperf else None
    measured = throughput.compare(e, b, args.steps) if b else throughput.measure(e, args.steps, args.profile, log)
    if jax.process_index() == 0:
        cli.print_json(measured) if args.json else print(throughput.as_text(measured))
    return 0


if __name__ == "__main__":
    cli.run(main)
