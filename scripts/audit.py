"""Verifies the audit logs of runs and releases: who started, changed, released and read what, and whether somebody changed it.

    python -m scripts.audit --runs runs/mine releases/mine
    python -m scripts.audit --runs runs --head 5f0c...       # a digest that was noted before

Compares every line with the one before it (trainers/audit/log.py), the files with the digests in the lines, and the logs with
those in $SHARDZOO_AUDIT, where that is set. Exit code 1: somebody changed something. docs/GOVERNANCE.md says who should run this.
scripts.lab.audit, another command, looks up known vulnerabilities of packages.
"""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.registry import ConfigError
from models.errors import shortened
from models.sharding.layouts import ONE_DEVICE
from scripts import cli

if TYPE_CHECKING:
    from trainers.audit.checks import Checked

_SHOWN = ("experiment", "config", "restored", "step", "exit_code", "error", "why", "note", "form", "path", "folder", "changed")
"""Fields of a line that are shown, in this order."""

_LONGEST = 150  # characters of a line's description


def described(line: dict[str, Any]) -> str:
    """Returns an event's fields in short."""
    parts = [f"{name} {line[name]}" for name in _SHOWN if line.get(name) not in (None, "", [])]
    files = line["files"] if isinstance(line.get("files"), dict) else {}
    parts += [
        f"{name.removesuffix('/meta/metadata')} {str(digest)[:8] if digest else 'deleted'}" for name, digest in files.items()
    ]
    if isinstance(line.get("command"), list):
        parts.append(shlex.join(map(str, line["command"])))
    return shortened(", ".join(parts), _LONGEST)


def table(log: "Checked") -> list[str]:
    """Returns a log's lines as a table: who, when, what."""
    from trainers.text_table import text_table

    cells = ((line.get("time"), f"{line.get('user')}@{line.get('host')}", line.get("event")) for line in log.lines)
    rows = [(*(shortened(str(x)) for x in cell), described(line)) for cell, line in zip(cells, log.lines, strict=True)]
    return text_table(("when", "who", "event", "what"), rows)


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument(
        "--runs", type=cli.folder, nargs="+", required=True, metavar="DIR", help="runs and releases, or folders that hold some"
    )
    parser.add_argument(
        "--log", type=cli.folder, metavar="DIR", help="the folder of all users' logs; by default $SHARDZOO_AUDIT, if it is set"
    )
    parser.add_argument(
        "--head", nargs="+", default=(), metavar="DIGEST", help="of lines that must still be in one of the logs; by default none"
    )
    parser.add_argument("--arrays", action="store_true", help="also compare all arrays of every checkpoint with their checksums")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    cli.use_devices(ONE_DEVICE)
    from trainers.audit import checks, log

    named = os.environ.get(log.FOLDER)
    common = checks.common_logs(args.log or (Path(named).expanduser() if named else None))
    logs = [checks.check(place, common, args.arrays) for folder in args.runs for place in _places(folder)] + common
    lost = checks.missing(args.head, logs)
    problems = [(log.place, text) for log in logs for text in log.problems]
    problems += [("--head", f"no log has the line {head}: lines were cut off, or it is of another log") for head in lost]
    if args.json:
        cli.print_json(
            {
                "logs": [
                    {"place": str(log.place), "head": log.head, "problems": log.problems, "notes": log.notes, "lines": log.lines}
                    for log in logs
                ],
                "lost": lost,
            }
        )
        return int(bool(problems))
    for checked in logs:
        print(f"{checked.place}: {len(checked.lines)} lines, head {checked.head or 'none'}")
        print("\n".join(table(checked)))
        print("".join(f"note: {checked.place}: {shortened(text, 1000)}\n" for text in checked.notes))
    for place, text in problems:
        print(f"CHANGED: {place}: {shortened(text, 1000)}")
    print(f"{len(logs)} logs, {f'{len(problems)} changes' if problems else 'nothing was changed'}")
    return int(bool(problems))


def _places(folder: Path) -> list[Path]:
    """Returns the runs and releases in a folder; raises ConfigError if there are none."""
    from trainers.audit import checks

    if not (places := checks.logs_below(folder)):
        raise ConfigError(f"--runs {folder}: no run and no release is there")
    return places


if __name__ == "__main__":
    cli.run(main)
