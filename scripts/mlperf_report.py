"""Summarises the MLPerf logs in a folder: verdicts of MLPerf's checker, time to target, throughput, score.

    python -m scripts.mlperf_report logs/bert
    python -m scripts.mlperf_report logs/bert --plot attempts.png
    python -m scripts.mlperf_report logs/bert --json
    python -m scripts.mlperf_report us                 # laid out as a submission: checked as one

Reads DIR/result_*.txt as `scripts.train --mlperf DIR` writes them, or those in DIR/results/SYSTEM/BENCHMARK of a submission,
which MLPerf's package checker then judges too: seeds, convergence (RCP), numbers of runs and DIR/systems/SYSTEM.json. The score
is MLPerf's: the mean time to target without the fastest and the slowest attempt. An attempt that did not reach the target
counts as the slowest; with two of them, or with fewer than three attempts, there is no score. For runs that measure speed
alone, the median throughput is printed. The exit code is 1 if the checker refuses a log or the submission.
"""

import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.errors import UserError, nearest
from scripts import cli
from trainers.measure import mlperf_benchmarks, mlperf_package, mlperf_rules
from trainers.measure.mlperf_benchmarks import RULESETS
from trainers.measure.mlperf_package import Checked
from trainers.measure.mlperf_rules import Event
from trainers.text_table import text_table


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The contents of a log.

    Attributes:
      number: N of result_N.txt.
      setup: the settings that attempts must share to be compared: benchmark, division, experiment, platform.
      status: "success", "aborted", or "" where the log breaks off.
      complaints: the checker's complaints; none if it passes.
      seconds: from the start of the run to its stop; None where either is missing.
      throughput: rows a second, mean over the steps that were measured; None where none was.
      scores: (minutes since the start, rows seen, score) of each evaluation.
      rates: (minutes since the start, rows a second) of each measurement.
    """

    number: int
    setup: dict[str, Any]
    status: str
    complaints: list[str]
    seconds: float | None
    throughput: float | None
    scores: list[tuple[float, int, float]]
    rates: list[tuple[float, float]]

    @property
    def time_to_target(self) -> float:
        """Returns seconds; infinite where the target was not met, or the log is refused."""
        met = self.status == "success" and not self.complaints
        return self.seconds if met and self.seconds is not None else math.inf


SETUP = ("submission_benchmark", "submission_division", "experiment", "submission_platform", "global_batch_size")


def attempts(folder: Path, ruleset: str = "") -> list[Attempt]:
    """Returns the attempts in a folder by number; raises UserError where there are none, or a line is damaged.

    Args:
      ruleset: the one that all are to follow; "" takes the one that each names.
    """
    logs = {int(m[1]): path for path in folder.glob("result_*.txt") if (m := re.fullmatch(r"result_(\d+)", path.stem))}
    if not logs:
        raise UserError(f"no MLPerf logs in {folder}: expected result_0.txt and so on, as scripts.train --mlperf writes them")
    return [_attempt(n, logs[n], ruleset) for n in sorted(logs)]


def _attempt(number: int, path: Path, ruleset: str) -> Attempt:
    events = mlperf_rules.read(path)
    times = {e.key: e.time for e in reversed(events)}  # of each key's first event
    started = times.get("run_start", math.nan)

    def minutes(event: Event) -> float:
        return (event.time - started) / 60

    stats = [e for e in events if e.key == "tracked_stats"]
    return Attempt(
        number,
        {key: mlperf_rules.value(events, key) for key in (*SETUP, "quality_target")},
        mlperf_rules.status(events),
        mlperf_rules.complaints(path, ruleset),
        times["run_stop"] - started if times.keys() >= {"run_start", "run_stop"} else None,
        _mean_rate(stats),
        [(minutes(e), e.metadata["samples_count"], e.value) for e in events if e.key == "eval_accuracy"],
        [(minutes(e), e.value["throughput"]) for e in stats],
    )


def _mean_rate(stats: Sequence[Event]) -> float | None:
    """Returns rows per second over all measured steps together."""
    done = [0, *(e.metadata["samples_count"] for e in stats)]
    rows = [b - a for a, b in itertools.pairwise(done)]
    seconds = sum(r / e.value["throughput"] for r, e in zip(rows, stats, strict=True))
    return done[-1] / seconds if seconds else None


def score(results: Sequence[Attempt]) -> float | None:
    """Returns MLPerf's score in seconds, or None where there is none."""
    times = sorted(a.time_to_target for a in results)
    kept = times[1:-1]
    alike = all(a.setup == results[0].setup for a in results)
    return statistics.fmean(kept) if alike and kept and math.isfinite(kept[-1]) else None


def table(results: Sequence[Attempt]) -> str:
    """Returns the attempts as text, and the score or the reason why there is none."""
    setup = " ".join(str(results[0].setup[key]) for key in SETUP[:4])
    rows = []
    for a in results:
        numbers = (a.seconds, 2), (a.throughput, 1), (a.scores[-1][2] if a.scores else None, 4)
        cells = ["-" if x is None else f"{x:.{digits}f}" for x, digits in numbers]
        verdict = a.complaints[0] if a.complaints else "passes" + (" as aborted" if a.status == "aborted" else "")
        more = f" (and {len(a.complaints) - 1} more)" if len(a.complaints) > 1 else ""
        rows.append([a.number, a.status or "unended", *cells, f"{verdict}{more}"])
    head = ["attempt", "status", "seconds", "rows/s", "last score", "checker"]
    return "\n".join([setup, *text_table(head, rows, {0, 2, 3, 4}), _verdict(results)])


def _verdict(results: Sequence[Attempt]) -> str:
    met = sum(math.isfinite(a.time_to_target) for a in results)
    if (seconds := score(results)) is not None:
        return f"score: {seconds:.2f} s to the target, mean of {len(results)} attempts without the fastest and the slowest"
    if other := next((a for a in results if a.setup != results[0].setup), None):
        keys = ", ".join(k for k, v in other.setup.items() if v != results[0].setup[k])
        return f"no score: attempts {results[0].number} and {other.number} differ in {keys}"
    if results[0].setup["submission_benchmark"] == mlperf_benchmarks.THROUGHPUT.name and (rates := _rates(results)):
        return f"throughput alone: {statistics.median(rates):.1f} rows/s, median of {len(rates)} attempts"
    return f"no score: {met} of {len(results)} attempts met the target; it takes three attempts, at most one of which did not"


def _rates(results: Sequence[Attempt]) -> list[float]:
    return [a.throughput for a in results if a.throughput is not None]


def plot(results: Sequence[Attempt], path: Path) -> None:
    """Draws score and throughput over time, one line for each attempt, in the format of the file's suffix."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), dpi=130, layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    for a in results:
        name = f"attempt {a.number}, {a.status or 'unended'}"
        above.plot([m for m, _, _ in a.scores], [s for *_, s in a.scores], marker="o", ms=3, label=name)
        below.plot([m for m, _ in a.rates], [r for _, r in a.rates], label=name)
    above.set(ylabel="score", title=str(results[0].setup["experiment"]))
    below.set(ylabel="rows/s", xlabel="minutes since the start", ylim=(0, None))
    above.legend(frameon=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    cli.save_picture(figure, path)


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("folder", type=cli.folder, metavar="DIR", help="the logs of a benchmark's runs")
    parser.add_argument("--plot", type=cli.folder, metavar="FILE", help="draw the curves, for example to attempts.png")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--ruleset", default="", metavar="N.N.N", help="check by this one; by default the one that logs name")
    args = parser.parse_args()
    if args.ruleset and args.ruleset not in RULESETS:
        raise UserError(f"--ruleset {args.ruleset!r}: no such ruleset{nearest(args.ruleset, RULESETS)}")
    submission = mlperf_package.is_submission(args.folder)
    folders = mlperf_package.runs(args.folder) if submission else [args.folder]
    if args.plot and len(folders) > 1:
        raise UserError(f"--plot draws one benchmark's runs; name one of {', '.join(map(str, folders))}")
    results = [attempts(folder, args.ruleset) for folder in folders]
    checked = mlperf_package.check(args.folder, args.ruleset) if submission else None
    if args.plot:
        plot(results[0], args.plot)
    if args.json:
        parts = [{"attempts": [dataclasses.asdict(a) for a in part], "score_seconds": score(part)} for part in results]
        whole = {
            "folders": dict(zip(map(str, folders), parts, strict=True)),
            "submission": checked and dataclasses.asdict(checked),
        }
        cli.print_json(whole if submission else parts[0])
    else:
        print("\n\n".join(table(part) for part in results))
        if checked:
            print("\n".join(_submission(checked)))
    return int(bool(checked and checked.reasons) or any(a.complaints for part in results for a in part))


def _submission(checked: Checked) -> list[str]:
    """Returns the lines about a submission."""
    if checked.reasons:
        return [*checked.notes, *(f"refused by MLPerf {checked.ruleset}: {line}" for line in checked.reasons)]
    return [*checked.notes, f"passes MLPerf's package checker {checked.ruleset}"]


if __name__ == "__main__":
    cli.run(main)
