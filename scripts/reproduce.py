"""Computes tables and figures of papers anew: *paper | ours | what differs*.

python -m scripts.reproduce                          what can be reproduced, and how long it takes
python -m scripts.reproduce gshard.table_1           one table, its page and picture
python -m scripts.reproduce gshard megatron          all of some lines of papers
python -m scripts.reproduce --all computed           everything of one kind

Pages are written to docs/reproductions/ (--pages). What is compiled or trained lies in --workdir: what is
stopped goes on with what is missing.
"""

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.paths import ROOT
from scripts import cli
from scripts.reproductions.entry import KINDS, Entry, ReproductionError, Row, entries, lookup


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="gshard.table_1, or gshard for all of it; none lists them"
    )
    parser.add_argument("--all", choices=KINDS, help="everything of this kind")
    parser.add_argument("--pages", type=cli.folder, default=ROOT / "docs" / "reproductions", help="folder of the pages")
    parser.add_argument("--workdir", type=cli.folder, default=Path("runs/reproductions"), help="folder of runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    chosen = _chosen(args)
    if not chosen:
        _list(args)
        return 0
    for entry in chosen:
        if not args.json:
            print(f"{entry.name}: {entry.source}; {entry.kind}, about {entry.minutes:g} min", flush=True)
        rows = list(entry.make(args.workdir / entry.name))
        cli.print_json(as_data(entry, rows)) if args.json else print("\n".join(as_text(rows)), flush=True)
        write(args.pages, entry, rows)
    return 0


def _chosen(args: argparse.Namespace) -> list[Entry]:
    """Returns the entries that are asked for; raises ReproductionError for a name that is none."""
    known = entries()
    chosen = [entry for entry in known.values() if entry.kind == args.all]
    for name in args.names:
        chosen += [entry for entry in known.values() if entry.name.partition(".")[0] == name] or [lookup(name)]
    if args.names and args.all:
        raise ReproductionError(f"--all {args.all}: either names or --all, not both")
    return chosen


def _list(args: argparse.Namespace) -> None:
    if args.json:
        cli.print_json({e.name: {"source": e.source, "kind": e.kind, "minutes": e.minutes} for e in entries().values()})
        return
    for e in entries().values():
        print(f"{e.name:28} {e.kind:9} {e.minutes:5g} min  {e.source}")


def as_data(entry: Entry, rows: Sequence[Row]) -> dict[str, Any]:
    """Returns an entry and its rows as plain values."""
    lines = [
        {"label": r.label, "paper": r.paper, "ours": r.ours, "agrees": r.agrees, "differs": r.differs} for r in rows
    ]
    return {"name": entry.name, "source": entry.source, "kind": entry.kind, "unit": entry.unit, "rows": lines}


def as_text(rows: Sequence[Row]) -> list[str]:
    """Returns the rows as lines of a terminal."""
    return [f"  {r.label:36} {_value(r.paper):>16} {_value(r.ours):>16}  {_verdict(r):4} {r.differs}" for r in rows]


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return value


def _verdict(row: Row) -> str:
    return {True: "yes", False: "no", None: ""}[row.agrees]


def summary(rows: Sequence[Row]) -> str:
    """Returns "5 of 6 figures"."""
    compared = [row.agrees for row in rows if row.agrees is not None]
    return f"{sum(compared)} of {len(compared)}"


def write(folder: Path, entry: Entry, rows: Sequence[Row]) -> None:
    """Writes NAME.md and its picture, and the entry's line in the folder's table."""
    folder.mkdir(parents=True, exist_ok=True)
    pictured = draw(folder / f"{entry.name}.svg", entry, rows)
    date = datetime.date.today().isoformat()
    how = {
        "computed": "Computed from shapes and schedules.",
        "modelled": "Modelled, not measured.",
        "trained": "Trained here.",
    }
    lines = [
        f"# {entry.name}",
        "",
        f"{entry.source}. {how[entry.kind]} {date}, `python -m scripts.reproduce {entry.name}`.",
        "",
        f"> {entry.claim}",
        "",
        f"| {entry.unit} | paper | ours | the same | what differs |",
        "| --- | --- | --- | --- | --- |",
        *(f"| {r.label} | {_value(r.paper)} | {_value(r.ours)} | {_verdict(r)} | {r.differs} |" for r in rows),
        *(["", f"![ours over the paper's]({entry.name}.svg)"] if pictured else []),
    ]
    (folder / f"{entry.name}.md").write_text("\n".join(lines) + "\n")
    link = f"[{entry.name}]({entry.name}.md)"
    line = f"| {link} | {entry.source} | {entry.kind} | {summary(rows)} | {entry.claim} |"
    _note(folder / "README.md", entry.name, line)


HEAD = """# What the papers say, and what comes out here

One line a table or figure: how many of its figures are the paper's, to the digits that it prints. Each page says what differs.
`python -m scripts.reproduce NAME` makes a page anew.

| reproduction | source | kind | the same | claim |
| --- | --- | --- | --- | --- |
"""


def _note(path: Path, name: str, line: str) -> None:
    """Puts the entry's line into the table, in the order of names."""
    old = path.read_text().splitlines() if path.exists() else []
    lines = {text.split("[")[1].split("]")[0]: text for text in old if text.startswith("| [")}
    lines[name] = line
    path.write_text(HEAD + "\n".join(lines[key] for key in sorted(lines)) + "\n")


def draw(path: Path, entry: Entry, rows: Sequence[Row]) -> bool:
    """Draws ours over the paper's figure for each row that has both; returns whether there were two or more."""
    pairs = [(row.label, row.ratio, row.agrees) for row in rows if row.ratio]
    if len(pairs) < 2:
        return False
    import matplotlib
    from matplotlib.figure import Figure

    labels, ratios, agree = zip(*pairs, strict=True)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": entry.name, "font.size": 8}):
        figure = Figure(figsize=(6, 0.6 + 0.2 * len(pairs)), layout="constrained")
        axes = figure.add_subplot()
        places = range(len(pairs), 0, -1)
        axes.axvline(1, color="0.8", linewidth=1, zorder=0)
        axes.scatter(ratios, places, s=18, color=["#1a7f37" if a else "#c4421a" for a in agree])
        axes.set_yticks(list(places), labels)
        axes.set_xlabel("ours / paper")
        if max(ratios) > 3 or min(ratios) < 1 / 3:
            axes.set_xscale("log")
        else:
            axes.set_xlim(min(0.85, min(ratios) - 0.05), max(1.15, max(ratios) + 0.05))
        figure.savefig(path, format="svg", metadata={"Date": None})
    return True


if __name__ == "__main__":
    cli.run(main)
