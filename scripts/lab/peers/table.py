"""Prints the comparisons with peers of several machines as one table in Markdown: machines, experiments, peers.

    python -m scripts.lab.peers.table                       # of all results in scripts/lab/peers/results
    python -m scripts.lab.peers.table mine.json other.json  # of files that scripts.lab.peers.compare --to has written

A cell is our rate over the peer's and, behind it, the shares of the machine's fastest product that we and the peer reach.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.errors import UserError
from scripts import cli
from scripts.lab.peers.machine import title
from trainers.text_table import markdown

RESULTS = Path(__file__).parent / "results"


def read(path: Path) -> dict[str, Any]:
    """Returns the results in a file of `scripts.lab.peers.compare --to`; raises UserError if it holds none."""
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no results of a comparison: {error}") from None
    if not isinstance(result, dict) or not {"machine", "rows"} <= result.keys():
        raise UserError(f"{path}: no results of a comparison: it has no machine and rows")
    return result


def tables(results: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the lines of two tables in Markdown: what each machine is, and how we compare with each peer on it."""
    machines = [result["machine"] for result in results]
    head = ["machine", "date", "CPUs", "load before", "fastest product, GFLOP/s", "copy, GB/s", "triad, GB/s", "versions"]
    lines = markdown(head, [_described(machine, result["rows"]) for machine, result in zip(machines, results, strict=True)])
    cells = [_cells(result["rows"]) for result in results]
    keys = list(dict.fromkeys(key for of_machine in cells for key in of_machine))
    works = list(dict.fromkeys((name, work) for name, work, _ in keys))
    wanted = sorted(keys, key=lambda key: works.index(key[:2]))
    rows = [[f"`{name}`, {work}", peer, *(of.get((name, work, peer), "") for of in cells)] for name, work, peer in wanted]
    return [*lines, "", *markdown(["experiment", "peer", *map(title, machines)], rows)]


def _described(machine: dict[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    versions = {name: product["version"] for name, product in machine["products"].items()}
    for row in rows:
        versions = {name: version for name, version in row["versions"].items() if name != "python"} | versions
    best = max(machine["products"], key=lambda name: machine["products"][name]["flops"])
    return [
        title(machine),
        machine["date"],
        str(machine["cpus"]),
        f"{machine['load']:.1f}",
        f"{machine['flops'] / 1e9:,.0f} ({best})",
        f"{machine['copy'] / 1e9:.1f}",
        f"{machine['triad'] / 1e9:.1f}",
        ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
    ]


def _cells(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str, str], str]:
    """Returns what is printed of each comparison, by experiment, work and peer; our own rows come before the peers'."""
    cells, ours = {}, {}
    for row in rows:
        key = row["experiment"], row["work"]
        if key not in ours:
            ours[key] = row
            continue
        ratio = f"{row['ratio']:.2f}x"
        shares = [share(of["share"]) for of in (ours[key], row)]
        cells[*key, row["system"]] = f"{ratio} ({shares[0]} to {shares[1]})" if row["share"] else ratio
    return cells


def share(value: float | None) -> str:
    """Returns a share of a bound as text, without the zero in front; "" if it is unknown."""
    return "" if value is None else f"{value:.2f}".removeprefix("0")


def main(argv: list[str] | None = None) -> int:
    parser = cli.parser(__doc__)
    parser.add_argument(
        "file", nargs="*", type=Path, help="results of scripts.lab.peers.compare --to; by default all that are here"
    )
    args = parser.parse_args(argv)
    files = args.file or sorted(RESULTS.glob("*.json"))
    if not files:
        raise UserError(f"{RESULTS}: no results; run python -m scripts.lab.peers.compare --to {RESULTS}/MACHINE.json")
    print("\n".join(tables([read(path) for path in files])))
    return 0


if __name__ == "__main__":
    cli.run(main)
