"""Computes tables and figures of papers anew: *paper | ours | what differs*.

python -m scripts.reproduce --list                   what can be reproduced, and how long it takes; so does no name
python -m scripts.reproduce --list gshard            the same of some lines of papers
python -m scripts.reproduce gshard.table_1           one table, its page and picture
python -m scripts.reproduce gshard megatron          all of some lines of papers
python -m scripts.reproduce --all computed           everything of one kind

Pages are written to docs/reproductions/ (--pages). What is compiled or trained lies in --workdir: what is
stopped goes on with what is missing. A page whose figures are the same as before is left as it is.
"""

import argparse
import contextlib
import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.paths import ROOT, scratch, write_whole
from scripts import cli
from scripts.reproductions.entry import KINDS, Entry, ReproductionError, Row, entries, lookup
from scripts.reproductions.pictures import draw


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="gshard.table_1, or gshard for all of it; none lists them"
    )
    parser.add_argument("--list", action="store_true", help="list them, or those that are named, and do nothing")
    parser.add_argument("--all", choices=KINDS, help="everything of this kind")
    parser.add_argument("--pages", type=cli.folder, default=ROOT / "docs" / "reproductions", help="folder of the pages")
    parser.add_argument("--workdir", type=cli.folder, default=Path("runs/reproductions"), help="folder of runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    chosen = _chosen(args)
    if args.list or not chosen:
        _list(chosen or list(entries().values()), args.json)
        return 0
    for entry in chosen:
        if not args.json:
            print(f"{entry.name}: {entry.source}; {entry.kind}, about {entry.minutes:g} min", flush=True)
        # Runs tell their progress on standard output, where JSON is wanted alone.
        with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
            rows = list(entry.make(args.workdir / entry.name))
        cli.print_json(as_data(entry, rows)) if args.json else print("\n".join(as_text(rows)), flush=True)
        page = write(args.pages, entry, rows)
        print(f"  {page}", file=sys.stderr if args.json else sys.stdout, flush=True)
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


def _list(chosen: Sequence[Entry], as_json: bool) -> None:
    if as_json:
        cli.print_json({e.name: {"source": e.source, "kind": e.kind, "minutes": e.minutes} for e in chosen})
        return
    for e in chosen:
        print(f"{e.name:28} {e.kind:9} {e.minutes:5g} min  {e.source}")


def as_data(entry: Entry, rows: Sequence[Row]) -> dict[str, Any]:
    """Returns an entry and its rows as plain values."""
    names = ("label", "paper", "ours", "error", "agrees", "differs")
    lines = [{name: getattr(row, name) for name in names} for row in rows]
    return {"name": entry.name, "source": entry.source, "kind": entry.kind, "unit": entry.unit, "rows": lines}


def as_text(rows: Sequence[Row]) -> list[str]:
    """Returns the rows as lines of a terminal."""
    return [f"  {r.label:36} {_value(r.paper):>16} {_ours(r):>20}  {_verdict(r):4} {r.differs}" for r in rows]


def _ours(row: Row) -> str:
    """Returns our figure, with its standard error over seeds where it has one."""
    return _value(row.ours) + (f" +- {row.error:.2g}" if row.error is not None else "")


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
    """Returns "5 of 6", and of a trained reproduction by how much the claims miss that do not come out."""
    compared = [row for row in rows if row.agrees is not None]
    missed = [f"{row.label}: {_ours(row)}" for row in compared if row.sign and not row.agrees]
    count = f"{sum(bool(row.agrees) for row in compared)} of {len(compared)}"
    return f"{count}; not {'; '.join(missed)}" if missed else count


def write(folder: Path, entry: Entry, rows: Sequence[Row]) -> Path:
    """Writes NAME.md and its picture, and the entry's line in the folder's table; returns the page's path.

    A page that differs by its date alone is left as it is, with its picture, whose bytes may be another matplotlib's.
    """
    page, picture = folder / f"{entry.name}.md", folder / f"{entry.name}.svg"
    with scratch(picture) as new:
        pictured = draw(new / picture.name, entry, rows)
        text = _page(entry, rows, pictured)
        old = page.read_text() if page.exists() else ""
        if _undated(old) != _undated(text) or (pictured and not picture.exists()):
            if pictured:
                (new / picture.name).replace(picture)
            write_whole(page, text)
    link = f"[{entry.name}]({entry.name}.md)"
    line = f"| {link} | {entry.source} | {entry.kind} | {summary(rows)} | {entry.claim} |"
    _note(folder / "README.md", entry.name, line)
    return page


def _undated(page: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\d(?=, `python -m scripts)", "", page, count=1)


def _page(entry: Entry, rows: Sequence[Row], pictured: bool) -> str:
    """Returns the text of a page."""
    shown = "ours, with standard errors" if entry.kind == "trained" else "ours over the paper's"
    date = datetime.date.today().isoformat()
    how = {
        "computed": "Computed from shapes and schedules.",
        "modelled": "Modelled, not measured.",
        "trained": "Trained here at small size, with standard errors over seeds and held-out samples.",
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
        *(f"| {r.label} | {_value(r.paper)} | {_ours(r)} | {_verdict(r)} | {r.differs} |" for r in rows),
        *(["", f"![{shown}]({entry.name}.svg)"] if pictured else []),
    ]
    return "\n".join(lines) + "\n"


HEAD = """# What the papers say, and what comes out here

One line a table, figure or claim. Of what is computed, "the same" counts the figures that are the paper's to the digits that it
prints; of what is trained, the claims that come out: a difference on the paper's side of zero by two standard errors, over seeds
and held-out samples. Models that are trained here are small, so that figures beside the paper's are compared by direction alone.
Each page says what differs, and why.
`python -m scripts.reproduce NAME` makes a page anew.

| reproduction | source | kind | the same | claim |
| --- | --- | --- | --- | --- |
"""


def _note(path: Path, name: str, line: str) -> None:
    """Puts the entry's line into the table, in the order of names."""
    old = path.read_text().splitlines() if path.exists() else []
    lines = {text.split("[")[1].split("]")[0]: text for text in old if text.startswith("| [")}
    lines[name] = line
    write_whole(path, HEAD + "\n".join(lines[key] for key in sorted(lines)) + "\n")


if __name__ == "__main__":
    cli.run(main)
