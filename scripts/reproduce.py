"""Computes tables and figures of papers anew: *paper | ours | what differs*.

python -m scripts.reproduce --list                   what can be reproduced, and how long it takes; so does no name
python -m scripts.reproduce --list gshard            the same of some lines of papers
python -m scripts.reproduce gshard.table_1           one table, its page and picture
python -m scripts.reproduce gshard megatron          all of some lines of papers
python -m scripts.reproduce --all computed           everything of one kind
python -m scripts.reproduce --stale                  say on each page whether what it came from has changed since
python -m scripts.reproduce --paper gshard           a page of every table and figure of a paper; makes what answers them
python -m scripts.reproduce --paper gshard --list    what that takes; --no-run writes the page from what has been made

Pages are written to docs/reproductions/ (--pages), each with its rows, commit and configurations in a .json file. What is
compiled or trained lies in --workdir: what is stopped goes on with what is missing; --processes 2 trains two runs at a time. A
page whose figures are the same as before is left as it is.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.paths import ROOT, scratch, write_whole
from models.errors import nearest
from scripts import cli
from scripts.reproductions import at_once, pages, paper_pages, record
from scripts.reproductions.entry import KINDS, Entry, ReproductionError, Row, entries, lookup
from scripts.reproductions.figure import show
from scripts.reproductions.papers import PAPERS, Paper
from scripts.reproductions.pictures import draw


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="gshard.table_1, or gshard for all of it; none lists them")
    parser.add_argument("--list", action="store_true", help="list them, or those that are named, and do nothing")
    parser.add_argument("--stale", action="store_true", help="mark pages that are stale, and do nothing else")
    parser.add_argument("--all", choices=KINDS, help="everything of this kind")
    parser.add_argument("--paper", metavar="NAME", help=f"what answers a paper's tables and figures: {', '.join(PAPERS)}")
    parser.add_argument("--no-run", action="store_true", help="with --paper: write its page from what has been made")
    parser.add_argument("--pages", type=cli.folder, default=ROOT / "docs" / "reproductions", help="folder of the pages")
    parser.add_argument("--workdir", type=cli.folder, default=Path("runs/reproductions"), help="folder of runs")
    parser.add_argument("--processes", type=int, default=1, help="train so many runs at a time, the default 1")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    paper = _paper(args)
    chosen = [lookup(name) for name in paper.entries] if paper else _chosen(args)
    if args.stale:
        for e in chosen or entries().values():
            mark(args.pages, e)
        return 0
    if args.list or not chosen:
        _list(args.pages, chosen or list(entries().values()), args.json)
        return 0
    # Before anything else looks for devices: some steps are compiled for several.
    cli.use_devices(cli.SIMULATED)
    for entry in chosen if not args.no_run else ():
        if not args.json:
            print(f"{entry.name}: {entry.source}; {entry.kind}, about {entry.minutes:g} min", flush=True)
        # Runs tell their progress on standard output, where JSON is wanted alone.
        with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout), at_once.processes(args.processes):
            rows, made = record.made(entry, args.workdir / entry.name)
        cli.print_json(as_data(entry, made)) if args.json else print("\n".join(as_text(rows)), flush=True)
        page = write(args.pages, entry, rows, made)
        print(f"  {page}", file=sys.stderr if args.json else sys.stdout, flush=True)
    if paper:
        print(paper_pages.write(args.pages, paper), file=sys.stderr if args.json else sys.stdout, flush=True)
    return 0


def _paper(args: argparse.Namespace) -> Paper | None:
    """Returns the paper that is asked for; raises ReproductionError for one that is not here, or beside other choices."""
    if args.paper is None:
        if args.no_run:
            raise ReproductionError("--no-run: needs --paper NAME")
        return None
    if args.paper not in PAPERS:
        raise ReproductionError(f"--paper {args.paper!r}: no such paper{nearest(args.paper, PAPERS)}")
    if args.names or args.all:
        raise ReproductionError(f"--paper {args.paper}: either a paper, names or --all")
    return PAPERS[args.paper]


def _chosen(args: argparse.Namespace) -> list[Entry]:
    """Returns the entries that are asked for; raises ReproductionError for a name that is none."""
    known = entries()
    chosen = [entry for entry in known.values() if entry.kind == args.all]
    for name in args.names:
        chosen += [entry for entry in known.values() if entry.name.partition(".")[0] == name] or [lookup(name)]
    if args.names and args.all:
        raise ReproductionError(f"--all {args.all}: either names or --all, not both")
    return chosen


def _list(folder: Path, chosen: Sequence[Entry], as_json: bool) -> None:
    if as_json:
        cli.print_json({e.name: as_data(e, record.read(folder, e.name)) for e in chosen})
        return
    for e in chosen:
        print(f"{e.name:28} {e.kind:11} {'+'.join(e.stated):15} {e.minutes:5g} min  {e.source}")
    print(f"{len(chosen)} in all, about {sum(e.minutes for e in chosen):g} min")


def as_data(entry: Entry, made: record.Record | None) -> dict[str, Any]:
    """Returns an entry and what is stored of it as plain values; "rows" is empty where it has not been made."""
    names = ("name", "source", "kind", "stated", "unit", "minutes")
    values = {name: getattr(entry, name) for name in names}
    if made is None:
        return values | {"commit": "", "stale": "not made", "rows": []}
    return values | {"date": made.date, "commit": made.commit, "stale": made.changes(entry), "rows": made.rows}


def mark(folder: Path, entry: Entry) -> None:
    """Writes on an entry's page whether it is stale, and prints it where it is."""
    page, made = folder / f"{entry.name}.md", record.read(folder, entry.name)
    if made is None:
        return print(f"{entry.name}: not made")
    lines = page.read_text().split("\n")
    lines[pages.HEAD_LINE] = pages.head(entry, made)
    write_whole(page, "\n".join(lines))
    if changes := made.changes(entry):
        print(f"{entry.name}: {changes}")


def as_text(rows: Sequence[Row]) -> list[str]:
    """Returns the rows as lines of a terminal."""
    lines = []
    for row in rows:
        figures = f"{show(row.paper):>16} {row.stated:8} {pages.ours(row):>20}"
        lines.append(f"  {row.label:36} {figures}  {pages.verdict(row):4}{pages.deviation(row):>8}  {row.differs}")
    return lines


def write(folder: Path, entry: Entry, rows: Sequence[Row], made: record.Record) -> Path:
    """Writes NAME.md, NAME.json and its picture, and the entry's line in the folder's index; returns the page's path.

    A page that differs by the line of its date and commit alone is left as it is, with its picture, whose bytes may be another
    matplotlib's; so is what is stored, unless the page was stale. Pages of papers that name the entry and have been written are
    written anew.
    """
    page, picture, index = folder / f"{entry.name}.md", folder / f"{entry.name}.svg", folder / "README.md"
    with scratch(picture) as new:
        pictured = draw(new / picture.name, entry, rows)
        text = pages.page(entry, made, rows, pictured)
        old, before = page.read_text() if page.exists() else "", record.read(folder, entry.name)
        differs = _headless(old) != _headless(text) or (pictured and not picture.exists())
        if differs and pictured:
            (new / picture.name).replace(picture)
        if differs or before is None or before.changes(entry):
            write_whole(page, text)
            record.write(folder, entry.name, made)
    write_whole(index, pages.index(index.read_text() if index.exists() else "", entries(), entry, rows))
    for paper in paper_pages.naming(entry.name):
        if (folder / pages.OF_PAPERS / f"{paper.name}.md").exists():
            paper_pages.write(folder, paper)
    return page


def _headless(page: str) -> list[str]:
    """Returns the lines of a page without the one that says when it was made."""
    return [line for n, line in enumerate(page.split("\n")) if n != pages.HEAD_LINE]


if __name__ == "__main__":
    cli.run(main)
