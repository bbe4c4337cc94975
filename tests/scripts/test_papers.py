"""Papers by one command: every table and figure has an answer, none is forgotten, and pages are what the index says."""

import dataclasses
import re
import sys

import pytest

from data.paths import ROOT
from scripts import reproduce
from scripts.reproductions import pages, paper_pages, record
from scripts.reproductions.entry import ReproductionError, entries
from scripts.reproductions.papers import GSHARD, MEGATRON, PAPERS, SWITCH, Item

PAGES = ROOT / "docs" / "reproductions"
INDEX = (PAGES / "README.md").read_text()
LINE = "| [gspmd.table_1](gspmd.table_1.md) | a source | computed | 6 printed | 6 of 6 |  | A claim. |\n"
HEAD = "| reproduction | source | kind | of the paper's figures | the same | within 5 % | claim |\n"


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Runs the command with its pages in `tmp_path` and returns what it printed."""

    monkeypatch.setattr(record, "revision", lambda: "0123abcd")

    def run(*args: str) -> str:
        monkeypatch.setattr(reproduce.cli, "use_devices", lambda layout: None)
        monkeypatch.setattr(sys, "argv", ["reproduce", "--pages", str(tmp_path), "--workdir", str(tmp_path / "runs"), *args])
        assert reproduce.main() == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("paper", PAPERS.values(), ids=list(PAPERS))
def test_every_entry_of_a_paper_exists_and_none_is_forgotten(paper):
    """Entries are those whose source names the paper, or others that are here."""
    assert set(paper.entries) <= {*entries()}
    about = {name for name, entry in entries().items() if re.search(rf"\b{re.escape(paper.title)}\b", entry.source)}
    assert about <= set(paper.entries), f"{paper.name} does not name {about - set(paper.entries)}"


@pytest.mark.parametrize("paper", PAPERS.values(), ids=list(PAPERS))
def test_items_are_in_order_and_whole(paper):
    """Figures and tables are each numbered without a gap where the text was read; every other answer than an entry has a
    reason, and the code that a diagram points to is there."""
    labels = [item.label for item in paper.items]
    assert len(set(labels)) == len(labels)
    if paper in (GSHARD, SWITCH, MEGATRON):
        for kind in ("Figure", "Table"):
            numbers = [int(label.split()[1]) for label in labels if label.startswith(kind)]
            assert numbers == list(range(1, len(numbers) + 1))
        assert not any(item.recalled for item in paper.items)
    for item in paper.items:
        assert bool(item.note) or not (item.kind or item.partly), item.label
        for path in re.findall(r"\b(?:models|data|trainers|scripts|docs)/[\w/.]*\w", item.note if item.kind == "diagram" else ""):
            assert (ROOT / path).exists(), f"{paper.name}, {item.label}: no {path}"


def test_an_item_without_an_answer_is_refused():
    """No entry and no kind, or a kind without a reason."""
    with pytest.raises(AssertionError):
        Item("Table 1", "sizes")
    with pytest.raises(AssertionError):
        Item("Table 1", "sizes", kind="impossible")


@pytest.mark.parametrize("paper", PAPERS.values(), ids=list(PAPERS))
def test_a_page_is_what_the_index_says(paper):
    """Pages of papers cannot drift from the verdicts of their entries, nor their lines of the index."""
    run = f"run: python -m scripts.reproduce --paper {paper.name} --no-run"
    assert (PAGES / "papers" / f"{paper.name}.md").read_text() == paper_pages.page(paper, INDEX), run
    assert paper_pages.summary(paper, INDEX) in INDEX.splitlines(), run


def test_there_is_a_page_for_each_paper_and_no_other():
    """A paper that is no more leaves no page and no line."""
    assert {path.stem for path in (PAGES / "papers").iterdir()} == {*PAPERS}
    assert INDEX.count("](papers/") == len(PAPERS)


@pytest.mark.parametrize("paper", [GSHARD, SWITCH, MEGATRON], ids=lambda paper: paper.name)
def test_most_of_a_paper_is_answered(paper):
    """Nine of ten tables and figures that are no diagrams have a verdict, or a reason why they cannot have one; of Switch
    Transformer seven."""
    n = paper_pages.counts(paper, INDEX)
    share = (n["verdict"] + n["impossible"]) / (n["items"] - n["diagram"])
    assert share >= (0.7 if paper is SWITCH else 0.9)
    assert n["partly"] <= n["verdict"] and n["impossible"] + n["open"] + n["verdict"] + n["diagram"] == n["items"]


def test_a_verdict_is_read_from_the_index():
    """Each table of the index has columns of its own; what misses is left out, and what is not there has none."""
    claims = "| reproduction | source | of the paper's figures | come out | within 5 % | claim |\n"
    trained = "| [gshard.depth](gshard.depth.md) | a source | 6 printed | 2 of 6; not this: 0.1 |  | A claim. |\n"
    index = HEAD + LINE + claims + trained
    assert paper_pages.verdict(index, "gspmd.table_1") == "6 of 6 the same"
    assert paper_pages.verdict(index, "gshard.depth") == "2 of 6 come out"
    assert paper_pages.verdict(index, "gspmd.table") == paper_pages.verdict("", "gshard.depth") == ""


def test_arithmetic_against_arithmetic_is_no_verdict(monkeypatch):
    """It counts as open, as does an entry that has not been made; a diagram with an entry stays one."""
    consistent = "| reproduction | source | within 5 % | claim |\n| [gspmd.bubbles](gspmd.bubbles.md) | x | 6 of 6 | A claim. |\n"
    items = (
        Item("Table 1", "x", ("gspmd.table_1",)),
        Item("Table 2", "x", ("gspmd.bubbles",)),
        Item("Table 3", "x", ("gspmd.table_2",)),
        Item("Figure 1", "x", ("gspmd.table_1",), "models/t5", "diagram"),
    )
    paper = dataclasses.replace(GSHARD, items=items)
    index = HEAD + LINE + consistent
    assert [paper_pages.answer(item, index) for item in items] == ["computed", "consistency", "not made", "diagram"]
    assert paper_pages.counts(paper, index) == {
        "items": 4, "diagram": 1, "verdict": 1, "partly": 0, "impossible": 0, "open": 2
    }  # fmt: skip
    assert "Of the other **3**, **1** have a verdict" in paper_pages.page(paper, index).replace("\n", " ")


def test_a_paper_is_listed_and_its_page_written(command, tmp_path, monkeypatch):
    """--list does nothing; --no-run writes the page from the index; a run makes every entry, and the page last."""
    assert "gspmd.table_2 " in command("--paper", "gspmd", "--list") and not list(tmp_path.iterdir())
    (tmp_path / "README.md").write_text(pages.HEAD + HEAD + LINE)
    assert f"{tmp_path}/papers/gspmd.md\n" in command("--paper", "gspmd", "--no-run")
    page = (tmp_path / "papers" / "gspmd.md").read_text()
    assert "[gspmd.table_1](../gspmd.table_1.md): 6 of 6 the same" in page and "| not made, in part |" in page
    index = (tmp_path / "README.md").read_text()
    assert LINE in index and index.count("[gspmd](papers/gspmd.md)") == 1
    monkeypatch.setitem(PAPERS, "gspmd", dataclasses.replace(PAPERS["gspmd"], items=PAPERS["gspmd"].items[:1]))
    assert command("--paper", "gspmd").index("gspmd.table_1.md") >= 0
    assert (tmp_path / "gspmd.table_1.md").exists() and "Of 1 tables" in (tmp_path / "papers" / "gspmd.md").read_text()


def test_an_entry_that_is_made_renews_the_pages_of_its_papers(command, tmp_path):
    """Pages that have been written are renewed, and no others; the section of papers stays in the index."""
    command("--paper", "gspmd", "--no-run")
    command("gspmd.bubbles")
    page = (tmp_path / "papers" / "gspmd.md").read_text()
    assert "[gspmd.bubbles](../gspmd.bubbles.md): 6 of 6 within 5 % (consistency);" in page and "| consistency, in part |" in page
    assert [path.name for path in (tmp_path / "papers").iterdir()] == ["gspmd.md"]
    index = (tmp_path / "README.md").read_text()
    assert index.index("[gspmd.bubbles]") < index.index("## By paper") < index.index("[gspmd](papers/gspmd.md)")


def test_an_unknown_paper_is_one_line_with_the_nearest(command):
    """So are a paper beside names, and --no-run without one."""
    with pytest.raises(ReproductionError, match=r"^--paper 'gshart': no such paper; did you mean 'gshard'"):
        command("--paper", "gshart")
    with pytest.raises(ReproductionError, match="either a paper"):
        command("--paper", "gshard", "megatron")
    with pytest.raises(ReproductionError, match="needs --paper"):
        command("--no-run")
