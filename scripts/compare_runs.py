"""Compares runs by a metric over steps: at which share of the first run's steps each reaches the first run's last value.

    python -m scripts.compare_runs runs/t5 runs/switch --plot curves.png
    python -m scripts.compare_runs runs/a runs/b --metric eval/accuracy --json

Metrics are those of the models themselves: cross-entropy, accuracy, loss.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from configs.registry import ConfigError
from models.errors import nearest
from scripts import cli

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = list[tuple[int, float]]  # (step, value), in order


def curve(workdir: Path, metric: str) -> Curve:
    """Returns the values of a metric that a run logged; raises ConfigError with the nearest name if it logged none."""
    from trainers.monitoring import metrics

    if not (rows := metrics.read(workdir)):
        raise ConfigError(f"{workdir} is no run: it has no metrics.jsonl")
    values = [(row["step"], float(row[metric])) for row in rows if metric in row]
    if not values:
        known = sorted({name for row in rows for name in row})
        raise ConfigError(f"{workdir} has no metric {metric!r}{nearest(metric, known)}")
    return values


def first_step(values: Curve, goal: float, *, lower_is_better: bool) -> int | None:
    """Returns the first step at which a value is as good as the goal; None if none is."""
    return next((step for step, value in values if (value <= goal if lower_is_better else value >= goal)), None)


def report(curves: Mapping[str, Curve], *, lower_is_better: bool) -> list[dict[str, object]]:
    """Returns for each run its last value, and when it was as good as the first run's last: `share` is of the first's steps."""
    steps, goal = next(iter(curves.values()))[-1]
    rows = []
    for name, values in curves.items():
        reached = first_step(values, goal, lower_is_better=lower_is_better)
        share = None if reached is None else reached / steps
        rows.append({"run": name, "steps": values[-1][0], "last": values[-1][1], "reached": reached, "share": share})
    return rows


def plot(curves: Mapping[str, Curve], metric: str) -> "Figure":
    """Returns the curves as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, values in curves.items():
        axes.plot(*zip(*values, strict=True), label=name)
    axes.set_xlabel("step")
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("runs", type=cli.folder, nargs="+", metavar="DIR", help="workdirs; the first sets the goal")
    parser.add_argument("--metric", default="eval/cross_entropy", help="a name of metrics.jsonl")
    parser.add_argument("--plot", type=cli.folder, metavar="FILE", help="draw the curves")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    args = parser.parse_args(arguments)
    if args.plot:
        cli.check_picture(args.plot)
    curves = {run.name: curve(run, args.metric) for run in args.runs}

    from trainers.evaluation.directions import lower_is_better

    rows = report(curves, lower_is_better=lower_is_better(args.metric, {}))
    for row in rows:
        if args.json:
            print(json.dumps(row))
        elif row["share"] is None:
            print(f"{row['run']}: {row['last']:.4f} at step {row['steps']}; never as good as {rows[0]['last']:.4f}")
        else:
            goal = f"{rows[0]['last']:.4f} at step {row['reached']}, {row['share']:.2f} of the first run's"
            print(f"{row['run']}: {row['last']:.4f} at step {row['steps']}; {goal}")
    if args.plot:
        cli.save_picture(plot(curves, args.metric), args.plot)
    return 0


if __name__ == "__main__":
    cli.run(main)
