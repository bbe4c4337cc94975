"""A folder of runs as a submission: checked by MLPerf's own package checker, which looks at logs, seeds, convergence and systems.

ORGANISATION/results/SYSTEM/BENCHMARK/result_0.txt ...      as many as the benchmark's rules ask for
ORGANISATION/systems/SYSTEM.json                            trainers/measure/mlperf_system.py writes a first version
"""

import contextlib
import dataclasses
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from models.errors import UserError
from trainers.measure import mlperf_rules

# What the convergence checker says of runs that reach the target too soon: which reference point it has found.
_TOO_SOON = ("RCP found", "RCP Interpolation")


@dataclasses.dataclass(frozen=True)
class Checked:
    """The checkers' words about a submission.

    Attributes:
      ruleset: the one that its logs follow.
      reasons: why it is refused, a line each; none if it passes.
      notes: what else the checker of convergence says, a line for each benchmark that passes.
    """

    ruleset: str
    reasons: list[str]
    notes: list[str]


def is_submission(folder: Path) -> bool:
    """Returns whether a folder is laid out as an organisation's submission."""
    return (folder / "results").is_dir() and (folder / "systems").is_dir()


def runs(folder: Path) -> list[Path]:
    """Returns the folders of a submission that hold logs, one for each benchmark of each system; raises UserError without any."""
    folders = sorted({path.parent for path in folder.glob("results/*/*/result_*.txt")})
    if not folders:
        raise UserError(f"{folder}: no logs in results/SYSTEM/BENCHMARK/, where a submission has result_0.txt and so on")
    return folders


def check(folder: Path, asked: str = "") -> Checked:
    """Returns what MLPerf's package checker says of a submission, whose folder stays as it is.

    Args:
      asked: the ruleset to check by; "" is the one that the logs follow.
    """
    from mlperf_logging.benchmark_meta import get_allowed_benchmarks  # a command's --help must not wait for the checkers

    parts = runs(folder)
    follows = {log: mlperf_rules.followed(mlperf_rules.read(log)) for part in parts for log in sorted(part.glob("result_*.txt"))}
    ruleset = asked or next(iter(follows.values()))
    if others := [f"{log.relative_to(folder)} follows {name}" for log, name in follows.items() if name != ruleset]:
        return Checked(ruleset, [f"{others[0]}, and the submission is checked by ruleset {ruleset}"], [])
    if ruleset not in mlperf_rules.RULESETS:
        return Checked(ruleset, [f"ruleset {ruleset} is none of {', '.join(mlperf_rules.RULESETS)}"], [])
    reasons = [f"{log.relative_to(folder)}: {line}" for log in follows for line in mlperf_rules.complaints(log, ruleset)]
    known = get_allowed_benchmarks("training", ruleset)
    reasons += [
        f"{part.relative_to(folder)}: {part.name} is no benchmark of {ruleset}" for part in parts if part.name not in known
    ]
    systems = {part.parent.name: folder / "systems" / f"{part.parent.name}.json" for part in parts}
    if missing := [path.relative_to(folder) for path in systems.values() if not path.is_file()]:
        return Checked(ruleset, [*reasons, *(f"{path} is missing, the system's description" for path in missing)], [])
    accepted, said = _official(folder, ruleset)
    reasons += [line for level, line in said if level >= logging.ERROR]
    if not accepted and not reasons:
        reasons.append(f"{folder}: MLPerf's package checker refuses it, and gives no reason")
    return Checked(ruleset, reasons, [line for level, line in said if level < logging.ERROR and line.startswith("RCP")])


def _official(folder: Path, ruleset: str) -> tuple[bool, list[tuple[int, str]]]:
    """Returns whether the package checker accepts a copy of a folder, since it writes there, and the lines that it logs."""
    from mlperf_logging.package_checker import package_checker

    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / folder.resolve().name
        for part in ("results", "systems"):
            shutil.copytree(folder / part, copy / part)
        with _captured() as lines:
            systems = package_checker.check_systems(str(copy), "training", ruleset)
            results = package_checker.check_training_result_files(
                str(copy), "training", ruleset, True, False, False, False, False
            )
        said = [(level, _plain(line.replace(f"{copy}/", ""))) for level, text in lines for line in text.strip().splitlines()]
    return systems and results, said


def _plain(line: str) -> str:
    """Returns a line of the checker, with what is meant where it names a reference point alone."""
    verdict, _, point = line.strip().partition(": ")
    if verdict == "RCP Test Failed" and point in _TOO_SOON:
        return f"{line.strip()}: the target is reached in fewer samples than the reference's runs allow"
    return line.strip()


@contextlib.contextmanager
def _captured() -> Iterator[Sequence[tuple[int, str]]]:
    """Yields what is logged inside, as (level, text), in place of printing it: the checkers use the root logger."""
    lines: list[tuple[int, str]] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append((record.levelno, record.getMessage()))

    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = [Keeper()]
    root.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield lines
    finally:
        root.handlers[:] = before
        root.setLevel(level)
