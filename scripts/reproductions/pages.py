"""Pages of reproductions, and the index of them all."""

from collections.abc import Callable, Mapping, Sequence

from scripts.reproductions.entry import Entry, Row
from scripts.reproductions.figure import CLASSES, CLOSE, figure, show
from scripts.reproductions.record import Record

HOW = {
    "computed": "Computed from shapes and schedules.",
    "modelled": "Modelled, not measured.",
    "trained": "Trained here at small size; errors are standard errors over seeds where a row says nothing else.",
    "consistency": "Arithmetic against arithmetic: nothing of the paper's is reproduced by it.",
}
OF_PAPERS = "papers"  # the folder of the pages of whole papers, beside the index
HEAD_LINE = 2  # of a page: `head`
NEAR = f"within {100 * CLOSE:g} %"


def ours(row: Row) -> str:
    """Returns our figure in the unit of the paper's, with its standard error where it has one."""
    paper = figure(row.paper)
    value = paper.shown(row.ours) if paper and isinstance(row.ours, int | float) else show(row.ours)
    return value + (f" +- {row.error:.2g}" if row.error is not None else "")


def verdict(row: Row) -> str:
    """Returns whether a printed figure is the same, or a difference comes out."""
    return {True: "yes", False: "no", None: ""}[row.comes_out if row.sign else row.same]


def deviation(row: Row) -> str:
    """Returns by how many per cent ours is off the paper's figure."""
    if row.deviation is None:
        return ""
    percent = 100 * row.deviation
    return "0" if abs(percent) < 1e-7 else f"{percent:+.2g} %" if abs(percent) < 10 else f"{percent:+.0f} %"


def line(row: Row) -> str:
    """Returns the line of a row in its page's table."""
    cells = (row.label, show(row.paper), row.stated, ours(row), verdict(row), deviation(row), row.differs)
    return f"| {' | '.join(cells)} |"


def head(entry: Entry, record: Record) -> str:
    """Returns the line of a page that says how its rows came about, at which commit, and whether they are stale."""
    commit = record.commit.replace("-dirty", " with changes") or "not known"
    changes = record.changes(entry)
    made = f"{record.date}, commit {commit}, `python -m scripts.reproduce {entry.name}`."
    stale = f" **Stale:** {changes}." if changes else ""
    return f"{entry.source}. {HOW[entry.kind]} {made}{stale}"


def page(entry: Entry, record: Record, rows: Sequence[Row], pictured: bool) -> str:
    """Returns NAME.md."""
    shown = "ours, with standard errors" if entry.kind == "trained" else "ours over the paper's"
    answer = "comes out" if entry.kind == "trained" else "the same"
    lines = [
        f"# {entry.name}",
        "",
        head(entry, record),
        "",
        f"> {entry.claim}",
        "",
        f"| {entry.unit} | paper | stated | ours | {answer} | deviation | what differs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *map(line, rows),
        *(["", f"![{shown}]({entry.name}.svg)"] if pictured else []),
    ]
    return "\n".join(lines) + "\n"


def _count(verdicts: Sequence[bool | None]) -> str:
    """Returns "5 of 6" of those that are one, or nothing where there are none."""
    judged = [verdict for verdict in verdicts if verdict is not None]
    return f"{sum(judged)} of {len(judged)}" if judged else ""


def same(rows: Sequence[Row]) -> str:
    """Returns "5 of 6": the printed figures that come out to the last digit."""
    return _count([row.same for row in rows])


def near(rows: Sequence[Row]) -> str:
    """Returns "6 of 6": the figures of any class that are within CLOSE."""
    return _count([row.near for row in rows])


def come_out(rows: Sequence[Row]) -> str:
    """Returns "5 of 6", and by how much the claims miss that do not come out."""
    missed = [f"{row.label}: {ours(row)}" for row in rows if row.comes_out is False]
    count = _count([row.comes_out for row in rows])
    return f"{count}; not {'; '.join(missed)}" if missed else count


def stated(rows: Sequence[Row]) -> str:
    """Returns the classes of the paper's figures: "6 printed, 1 chart"."""
    classes = [row.stated for row in rows if row.stated and row.compared and row.ours is not None]
    return ", ".join(f"{classes.count(name)} {name}" for name in CLASSES if name in classes)


def summary(entry: Entry, rows: Sequence[Row]) -> str:
    """Returns the entry's line of the index."""
    cells = [f"[{entry.name}]({entry.name}.md)", entry.source]
    cells += [cell(entry, rows) for cell in TABLES[_table_of(entry)][1].values()]
    return f"| {' | '.join([*cells, entry.claim])} |"


Cell = Callable[[Entry, Sequence[Row]], str]
# Title, and what stands between the source and the claim of an entry.
TABLES: Mapping[str, tuple[str, Mapping[str, Cell]]] = {
    "figures": (
        "Figures",
        {
            "kind": lambda e, _: e.kind,
            "of the paper's figures": lambda _, rows: stated(rows),
            "the same": lambda _, rows: same(rows),
            NEAR: lambda _, rows: near(rows),
        },
    ),
    "trained": (
        "Claims",
        {
            "of the paper's figures": lambda _, rows: stated(rows),
            "come out": lambda _, rows: come_out(rows),
            NEAR: lambda _, rows: near(rows),
        },
    ),
    "consistency": ("Consistency", {NEAR: lambda _, rows: near(rows)}),
}


def _table_of(entry: Entry) -> str:
    return entry.kind if entry.kind in TABLES else "figures"


HEAD = f"""# What the papers say, and what comes out here

One line a table, figure or claim. Each figure of a paper has a class:

{chr(10).join(f"- *{name}*: {meaning}." for name, meaning in CLASSES.items())}

"The same" counts printed figures alone, and of them those that ours is when it is rounded to the last printed digit: for
"1B" that is not much, for "481,815,347,200" it is everything. "{NEAR.capitalize()}" counts figures of every class that are
numbers, and a page has each deviation. A claim is of a model that was trained here: it comes out where a difference is on
the paper's side of zero by Student's t, with 97.5 % for that side (12.7 standard errors of two seeds, 4.3 of three). Errors
are over seeds; a row whose error is another says so. Models that are trained here are small, so that figures beside the
paper's are compared by direction alone. Consistency compares arithmetic with arithmetic, and is never "the same".
Each page says what differs, and why, and at which commit its rows were made; they lie beside it as JSON, with hashes of the
experiments that they came from. `python -m scripts.reproduce NAME` makes a page anew, `--stale` says which pages what they came
from has left behind.
"""


def index(old: str, known: Mapping[str, Entry], entry: Entry, rows: Sequence[Row]) -> str:
    """Returns README.md with the entry's line in its table, in the order of names; lines of what is no entry any more go.
    The section of papers stays as it is (scripts/reproductions/paper_pages.py)."""
    lines = {text.split("[")[1].split("]")[0]: text for text in old.splitlines() if text.startswith("| [")}
    lines[entry.name] = summary(entry, rows)
    parts = [HEAD]
    for table, (title, columns) in TABLES.items():
        of_table = [lines[name] for name in sorted(lines) if name in known and _table_of(known[name]) == table]
        if of_table:
            head = ["reproduction", "source", *columns, "claim"]
            parts += [f"## {title}\n"] + ([_totals(of_table, head) + "\n"] if table == "figures" else [])
            parts.append("\n".join([f"| {' | '.join(head)} |", "| --- " * len(head) + "|", *of_table]) + "\n")
    return with_papers("\n".join(parts), [line for line in old.splitlines() if f"]({OF_PAPERS}/" in line])


BY_PAPER = """
## By paper

Every numbered table and figure of a paper, and how it is answered. `python -m scripts.reproduce --paper NAME` makes them.

| paper | title | tables and figures | diagrams | with a verdict | of them in part | impossible | open |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def with_papers(index: str, lines: Sequence[str]) -> str:
    """Returns README.md with these lines as its section of papers, its last one."""
    index = index.partition(BY_PAPER)[0]
    return index + BY_PAPER + "\n".join(sorted(lines)) + "\n" if lines else index


def _totals(lines: Sequence[str], head: Sequence[str]) -> str:
    """Returns how many printed figures there are and are the same, by the column of the lines."""
    cells = [line.strip("| ").split(" | ")[head.index("the same")] for line in lines]
    counts = [tuple(map(int, cell.split(" of "))) for cell in cells if " of " in cell]
    return f"Of {sum(printed for _, printed in counts)} printed figures **{sum(n for n, _ in counts)}** are the same."
