"""Measures how cost grows: step time over batch, length and experts, compile time over layers, host time a step over devices.

    python -m scripts.lab.scaling                                     # all five curves: some ten minutes on two cores
    python -m scripts.lab.scaling --curves experts,devices --json
    python -m scripts.lab.scaling --plot docs/scaling.png

Models are small and tokens random; on a CPU, devices are simulated. Points of a curve are measured by turns, figures are medians,
and ratios are to the first point. A line below each table compares the measurement with the goal. Programs are compiled anew.
"""

import os
from pathlib import Path
from typing import Any

from configs.registry import ConfigError
from scripts import cli

COLORS = ("#2f6f9f", "#5aa469", "#d98032")
COLUMNS = 3  # plots side by side


def plot(report: dict[str, Any], path: Path) -> None:
    """Draws the curves of a report side by side, each with its goal, in the format of the file's suffix."""
    from matplotlib.figure import Figure

    from trainers.measure.growth import CURVES

    wide = min(COLUMNS, len(report["curves"]))
    high = -(-len(report["curves"]) // wide)
    figure = Figure(figsize=(3.6 * wide, 3 * high), dpi=130, layout="constrained")
    cells = list(figure.subplots(high, wide, squeeze=False).flat)
    for axes, (name, entry) in zip(cells, report["curves"].items(), strict=False):
        curve, points = CURVES[name], entry["points"]
        x = [point["size"] for point in points]
        unit = _unit(curve.y)
        drawn = [key for key in curve.columns if _unit(key) == unit]
        for key, color in zip(drawn, COLORS, strict=False):
            label = curve.columns[key].rpartition(", ")[0]
            axes.plot(x, [point[key] for point in points], marker="o", ms=4, color=color, label=label)
        axes.plot(x, [point["goal"] for point in points], color="#999", lw=1, ls="--", label="goal: at most")
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [str(n) for n in x])
        axes.minorticks_off()
        axes.set(title=name, xlabel=curve.x, ylabel=unit, ylim=(0, None))
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in cells[len(report["curves"]) :]:
        axes.axis("off")
    cli.save_picture(figure, path)


def _unit(key: str) -> str:
    """Returns the last part of a column's name, its unit."""
    return key.rpartition("_")[2]


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument(
        "--curves", metavar="NAMES", help="any of batch, length, experts, layers, devices, comma-separated; all by default"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each point is measured")
    parser.add_argument("--plot", type=cli.folder, metavar="FILE", help="draw the curves, for example to docs/scaling.png")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if args.rounds < 1:
        raise ConfigError(f"--rounds {args.rounds}: at least 1 must be measured")
    if args.plot:
        cli.check_picture(args.plot)  # before minutes are spent
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    cli.use_devices(cli.SIMULATED)

    from trainers.measure import growth

    names = list(growth.CURVES) if args.curves is None else cli.names("--curves", args.curves, growth.CURVES)

    def say(text: str) -> None:
        if not args.json:
            print(text, flush=True)

    report = growth.report([growth.CURVES[name] for name in names], args.rounds, say)
    if args.plot:
        plot(report, args.plot)
    if args.json:
        cli.print_json(report)
    return 0


if __name__ == "__main__":
    cli.run(main)
