"""The page of a paper: each of its tables and figures, how it is answered, and the verdict; and its line in the index."""

from collections.abc import Mapping
from pathlib import Path

from data.paths import write_whole
from scripts.reproductions import pages
from scripts.reproductions.entry import KINDS, entries
from scripts.reproductions.papers import PAPERS, Item, Paper

REFUSED = "consistency"  # arithmetic against arithmetic: no verdict on a figure


def verdict(index: str, name: str) -> str:
    """Returns the verdict on an entry in short, from its line in the index: "1 of 7 the same, 5 of 7 within 5 %".

    Empty for an entry that has not been made, or whose figures are compared in no way.
    """
    head: list[str] = []
    for line in index.splitlines():
        cells = line.strip("| ").split(" | ") if line.startswith("| ") else []
        if cells[:1] == ["reproduction"]:
            head = cells
        elif cells and cells[0].startswith(f"[{name}]"):
            by_column = {column: cell.split(";")[0].strip() for column, cell in zip(head, cells, strict=True)}
            return ", ".join(f"{by_column[c]} {c}" for c in ("the same", "come out", pages.NEAR) if by_column.get(c))
    return ""


def answer(item: Item, index: str) -> str:
    """Returns how an item is answered: the kinds of its entries that have a verdict, in the order of KINDS; else one of
    UNANSWERED, "consistency", or "not made" where no entry has been made."""
    if item.kind:
        return item.kind
    made = {entries()[name].kind for name in item.entries if verdict(index, name)}
    if not made:
        return "not made"
    return " + ".join(kind for kind in KINDS if kind in made and kind != REFUSED) or REFUSED


def counts(paper: Paper, index: str) -> dict[str, int]:
    """Returns how many items there are, "diagram", "verdict", of them "partly", "impossible" and "open" (all others)."""
    answers = {item.label: answer(item, index) for item in paper.items}
    without = ("diagram", "impossible", "open", "not made", REFUSED)
    judged = [item for item in paper.items if answers[item.label] not in without]
    count = {kind: list(answers.values()).count(kind) for kind in ("diagram", "impossible")}
    count |= {"items": len(paper.items), "verdict": len(judged), "partly": sum(item.partly for item in judged)}
    return count | {"open": count["items"] - count["diagram"] - count["verdict"] - count["impossible"]}


def page(paper: Paper, index: str) -> str:
    """Returns papers/NAME.md, for the reproductions' index as it is."""
    n = counts(paper, index)
    compared = n["items"] - n["diagram"]
    head = f"[arXiv {paper.arxiv}](https://arxiv.org/abs/{paper.arxiv}). {paper.source}"
    lines = [
        f"# {paper.title}",
        "",
        f"{head} `python -m scripts.reproduce --paper {paper.name}`.",
        "",
        f"Of {n['items']} tables and figures {n['diagram']} are diagrams: drawings or pseudo-code, with nothing to compare. Of",
        f"the other **{compared}**, **{n['verdict']}** have a verdict here ({n['partly']} of them for a part of what they show),",
        f"**{n['impossible']}** are impossible, and **{n['open']}** are open: they could be answered, and are not.",
        "A verdict is not a success: it says how many figures came out, which may be none.",
        "",
        "| in the paper | shows | answered | verdict, reason or place |",
        "| --- | --- | --- | --- |",
        *(_line(item, index) for item in paper.items),
    ]
    return "\n".join(lines) + "\n"


def _line(item: Item, index: str) -> str:
    how = answer(item, index) + (", in part" if item.partly else "")
    label = item.label + (" (from memory)" if item.recalled else "")
    said = [_judged(name, "" if item.kind == "diagram" else verdict(index, name)) for name in item.entries]
    return f"| {label} | {item.shows} | {how} | {'; '.join(filter(None, [*said, item.note]))} |"


def _judged(name: str, text: str) -> str:
    """Returns a link to an entry's page, with the verdict; of arithmetic against arithmetic it says what it is."""
    against = " (consistency)" if text and entries()[name].kind == REFUSED else ""
    return f"[{name}](../{name}.md)" + (f": {text}{against}" if text else "")


def summary(paper: Paper, index: str) -> str:
    """Returns the paper's line of the index."""
    n = counts(paper, index)
    columns = ("items", "diagram", "verdict", "partly", "impossible", "open")
    cells = [
        f"[{paper.name}]({pages.OF_PAPERS}/{paper.name}.md)",
        f"{paper.title} (arXiv {paper.arxiv})",
        *(str(n[c]) for c in columns),
    ]
    return f"| {' | '.join(cells)} |"


def write(folder: Path, paper: Paper) -> Path:
    """Writes the page of a paper from the index in `folder`, and its line of the index; returns the page's path."""
    target, readme = folder / pages.OF_PAPERS / f"{paper.name}.md", folder / "README.md"
    index = readme.read_text() if readme.exists() else ""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, page(paper, index))
    others = [line for line in index.splitlines() if f"]({pages.OF_PAPERS}/" in line and not line.startswith(f"| [{paper.name}]")]
    write_whole(readme, pages.with_papers(index, [*others, summary(paper, index)]))
    return target


def naming(name: str, papers: Mapping[str, Paper] = PAPERS) -> list[Paper]:
    """Returns the papers that name an entry."""
    return [paper for paper in papers.values() if name in paper.entries]
