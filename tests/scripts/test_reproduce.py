"""scripts.reproduce: what it lists, computes, writes and refuses; figures that are exact in the paper come out."""

import dataclasses
import json
import math
import re
import subprocess
import sys

import pytest

from data.paths import ROOT
from scripts import reproduce
from scripts.reproductions import gshard, pages, record
from scripts.reproductions.entry import KINDS, ReproductionError, Row, entries, reproduction
from scripts.reproductions.figure import CLASSES, figure

PAGES = ROOT / "docs" / "reproductions"
COMPUTED = [name for name, entry in entries().items() if not entry.stores]
COMPILES = {"megatron.traffic": pytest.mark.integration}
# Of each paper the figures that take longest; a shorter one of the same paper is compared by `make test`.
LONGEST = ("megatron.microbatch", "megatron.traffic", "gshard.figure_7", "gshard.dropped", "t5.switch_compression")
LONG = (
    "decoders.gpt",
    "decoders.released",
    "gshard.dropped",
    "gshard.table_1",
    "gshard.table_4",
    "megatron.bubble_sizes",
    "megatron.microbatch",
    "megatron.traffic",
    "t5.sizes",
    "t5.switch_flops",
    "t5.switch_scaling",
    "t5.switch_speeds",
)


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Runs the command with its pages in `tmp_path` and returns what it printed; no process asks for the commit."""
    monkeypatch.setattr(record, "revision", lambda: "0123abcd")

    def run(*args: str) -> str:
        monkeypatch.setattr(reproduce.cli, "use_devices", lambda layout: None)  # the tests' devices are there already
        monkeypatch.setattr(sys, "argv", ["reproduce", "--pages", str(tmp_path), "--workdir", str(tmp_path / "runs"), *args])
        assert reproduce.main() == 0
        return capsys.readouterr().out

    return run


def test_each_entry_says_what_it_is():
    """Source, claim, unit, time and the classes of the paper's figures are there, and names are unique."""
    assert len(entries()) >= 30
    for name, entry in entries().items():
        assert entry.name == name and entry.kind in KINDS and entry.minutes > 0
        assert entry.source and entry.unit and entry.claim.endswith("."), name
        assert entry.stated and set(entry.stated) <= set(CLASSES), name


@pytest.mark.parametrize(
    "paper, ours, same",
    [
        ("12.5B", 12.54e9, True),
        ("12.5B", 13.27e9, False),
        ("600B", 600.4e9, True),
        ("600B", 619.4e9, False),
        ("1T", 1.032e12, True),
        ("481,815,347,200", 481_815_347_200, True),
        ("481,815,347,200", 481_815_347_201, False),
        ("45.7 %", 0.45732, True),
        ("45.7 %", 0.4576, False),
        ("< 1 %", 0.0099, True),
        ("< 1 %", 0.01, False),
        ("1,162", 1162.4, True),
        ("X Y -", "X Y -", True),
        ("X Y -", "Y X -", False),
    ],
)
def test_a_figure_is_the_same_in_the_digits_that_are_printed(paper, ours, same):
    """13.27 billion is not "12.5B": how near a number is has a column of its own."""
    assert Row("", paper, ours, stated="printed").same == same


def test_only_printed_figures_are_the_same():
    """One that is read off a chart, derived or remembered can be near; one that is not compared, or that is arithmetic against
    arithmetic, is neither the same nor, where it is not compared, near."""
    for name in CLASSES:
        assert Row("", "100", 100.2, stated=name).same == (True if name == "printed" else None)
        assert Row("", "100", 104.9, stated=name).near and not Row("", "100", 105.1, stated=name).near
    assert Row("", "100", 100.0, stated="printed", reproduces=False).same is None
    row = Row("", "100", 100.0, stated="printed", compared=False)
    assert row.same is None and row.near is None
    assert Row("", None, 3.0).same is None and Row("", "X Y", "X Y", stated="printed").near is None


def test_a_number_of_a_script_is_derived():
    """A printed figure is a text; a number in its place was computed from it."""

    @reproduction("a paper, Table 1", "printed", "derived", unit="things")
    def table():
        """A claim."""
        yield Row("printed", "2", 2.0)
        yield Row("halved", 1.0, 1.0)
        yield Row("not in the paper", None, 5.0)

    @reproduction("a paper, Table 1", unit="things", kind="consistency")
    def against_itself():
        """A claim."""
        yield Row("printed", "2", 2.0)

    rows = list(table.__reproduction__.make(PAGES))  # pyright: ignore[reportFunctionMemberAccess]
    assert [(row.stated, row.same) for row in rows] == [("printed", True), ("derived", None), ("", None)]
    assert (pages.same(rows), pages.near(rows), pages.stated(rows)) == ("1 of 1", "2 of 2", "1 printed, 1 derived")
    (row,) = against_itself.__reproduction__.make(PAGES)  # pyright: ignore[reportFunctionMemberAccess]
    assert (row.stated, row.same, row.near) == ("printed", None, True)


def test_ours_is_shown_in_the_papers_unit():
    """13.27 billion beside "12.5B" is "13.27B", 6.2 % more; a share beside "63 %" is in per cent."""
    row = Row("a", "12.5B", 13.27e9, "x", "printed")
    assert pages.line(row) == "| a | 12.5B | printed | 13.27B | no | +6.2 % | x |"
    assert pages.ours(Row("", "63 %", 0.4751)) == "47.51 %" and pages.ours(Row("", None, 1234)) == "1,234"
    assert figure("above 0") is None and figure("below 0 (+2.4 BLEU)") is None


def test_a_difference_is_judged_by_students_t():
    """Two seeds need 12.7 standard errors, three 4.3, and a large sample 1.96."""
    for freedom, bound in ((1, 12.706), (2, 4.303), (math.inf, 1.96)):
        for factor, comes_out in ((1.001, True), (0.999, False)):
            row = Row("", "below 0", -factor * bound * 0.1, error=0.1, freedom=freedom, sign=-1)
            assert row.comes_out == comes_out and row.same is None and row.near is None
    assert Row("", "above 0", 1.0, sign=1).comes_out is None  # a single seed has no error


def _on_page(name: str, rows: list[Row]) -> None:
    page = (PAGES / f"{name}.md").read_text().splitlines()
    for row in rows:
        assert pages.line(row) in page, f"run: python -m scripts.reproduce {name}"


@pytest.mark.integration
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[mark for mark in (COMPILES.get(name), name in LONGEST and pytest.mark.slow) if mark])
        for name in COMPUTED
    ],
)
def test_a_computed_figure_is_what_its_page_says(name, tmp_path, real_draws):
    """A page cannot drift from the code unnoticed: what is computed in a second is compared whole, with its line of the index,
    what takes longer by its first row."""
    entry = entries()[name]
    if name in LONG:
        return _on_page(name, [next(entry.make(tmp_path))])
    rows = list(entry.make(tmp_path))
    _on_page(name, rows)
    assert {row.stated for row in rows} - {""} == set(entry.stated)
    assert pages.summary(entry, rows) in (PAGES / "README.md").read_text().splitlines()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_all_figures_are_what_their_page_says(name, tmp_path, real_draws):
    """The same of all rows of those that take longer."""
    entry = entries()[name]
    rows = list(entry.make(tmp_path))
    _on_page(name, rows)
    assert {row.stated for row in rows} - {""} == set(entry.stated)
    assert pages.summary(entry, rows) in (PAGES / "README.md").read_text().splitlines()


def test_there_is_a_page_for_each_entry_and_no_other(tmp_path):
    """The index is what a run of any entry would make of it: no line too many, the counts of printed figures alone."""
    assert {path.stem for path in PAGES.glob("*.md")} == {*entries(), "README"}
    assert {path.stem for path in PAGES.glob("*.svg")} <= {*entries()}
    old = (PAGES / "README.md").read_text()
    entry = entries()["encoders.mlperf_sizes"]
    assert pages.index(old, entries(), entry, list(entry.make(tmp_path))) == old


def test_exact_counts_come_out(tmp_path):
    """Published counts to the last digit, and the cuts of GSPMD's weights as Lingvo annotates them."""
    for name in ("encoders.mlperf_sizes", "gspmd.table_1"):
        assert all(row.same for row in entries()[name].make(tmp_path)), name


def test_a_page_a_picture_and_a_line_are_written(command, tmp_path):
    """A second run replaces the first one's line, and leaves those of others; kinds have tables of their own, and arithmetic
    against arithmetic is in no count of printed figures."""
    assert "gspmd.bubbles" in command("megatron.table_1_sizes", "gspmd.bubbles")
    printed = json.loads(command("megatron.table_1_sizes", "--json"))
    assert len(printed["rows"]) == 10 and all(row["same"] and row["stated"] == "printed" for row in printed["rows"])
    table = (tmp_path / "README.md").read_text()
    assert table.count("[megatron.table_1_sizes]") == 1 and "| 10 printed | 10 of 10 | 10 of 10 |" in table
    assert "Of 10 printed figures **10** are the same." in table
    assert table.index("## Figures") < table.index("[megatron") < table.index("## Consistency") < table.index("[gspmd")
    assert "| 1.7 | 1.7B | printed | 1.652B | yes | -2.8 % |  |" in (tmp_path / "megatron.table_1_sizes.md").read_text()
    assert (tmp_path / "gspmd.bubbles.svg").read_text().count("8 stages") == 2


def test_a_line_of_what_is_no_entry_goes(tmp_path):
    """An entry that is no more leaves no line in the index."""
    entry = entries()["gspmd.table_1"]
    rows = list(entry.make(tmp_path))
    index = pages.index("| [gspmd.table_99](gspmd.table_99.md) | x | y |\n", entries(), entry, rows)
    assert "gspmd.table_99" not in index and pages.summary(entry, rows) in index


def test_a_page_whose_figures_are_the_same_stays(command, tmp_path):
    """On another day, with another matplotlib, page, picture and rows keep their bytes; other figures make all of them anew.
    Either way the page's path is printed."""
    page, picture, rows = (tmp_path / f"gspmd.bubbles.{suffix}" for suffix in ("md", "svg", "json"))
    assert f"  {page}\n" in command("gspmd.bubbles")
    dated = re.sub(r"\d{4}-\d\d-\d\d, commit [^,]+,", "2001-02-03, commit abc,", page.read_text())
    assert "2001-02-03, commit abc, `python -m scripts.reproduce gspmd.bubbles`." in dated
    page.write_text(dated)
    picture.write_text("another's")
    before = rows.read_bytes()
    assert f"  {page}\n" in command("gspmd.bubbles")
    assert page.read_text() == dated and picture.read_text() == "another's" and rows.read_bytes() == before
    page.write_text(dated.replace("| 0.1111 | derived | 0.1111 |", "| 0.1111 | derived | 0.1112 |"))
    command("gspmd.bubbles")
    assert "2001-02-03" not in page.read_text() and "| 0.1111 | derived | 0.1111 |" in page.read_text()
    assert "<svg" in picture.read_text()


def test_a_stale_page_says_so(command, tmp_path, monkeypatch):
    """Rows are tied to the experiments and to the code that they came from: where one changes, --stale names it on the page, a
    run makes the page anew, and one whose rows come from nothing that has changed is left alone."""
    command("gspmd.table_1", "gspmd.bubbles")
    page, other = tmp_path / "gspmd.table_1.md", tmp_path / "gspmd.bubbles.md"
    fresh, unchanged = page.read_text(), other.read_text()
    assert command("--stale", "gspmd.table_1") == "" and page.read_text() == fresh
    made = record.read(tmp_path, "gspmd.table_1")
    assert made and made.configurations and all(row["same"] for row in made.rows)
    name = next(iter(made.configurations))
    record.write(tmp_path, "gspmd.table_1", dataclasses.replace(made, configurations={name: "another", "gpt.gone": "x"}))
    printed = command("--stale", "gspmd").splitlines()
    assert f"gspmd.table_1: {name}, gpt.gone changed since" in printed and "gspmd.table_2: not made" in printed
    assert not any(line.startswith("gspmd.bubbles:") for line in printed)
    assert f"**Stale:** {name}, gpt.gone changed since." in page.read_text() and other.read_text() == unchanged
    assert json.loads(command("--list", "--json"))["gspmd.table_1"]["stale"] == f"{name}, gpt.gone changed since"
    command("gspmd.table_1")
    assert page.read_text() == fresh and command("--stale", "gspmd.table_1") == ""


@pytest.mark.integration
def test_the_commit_is_that_of_the_checkout():
    """Eight digits, and a mark where a file outside docs/ differs from it; nothing where there is no repository."""
    head = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    inside = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    assert record.revision().removesuffix("-dirty") == inside


def test_a_digest_is_of_what_a_claim_rests_on():
    """Another constant or another function that an entry uses changes it; its documentation does not."""
    before = {claim: record.digest_of(claim) for claim in (gshard.table_1, gshard.table_3, gshard.table_1_experts)}
    assert len({*before.values()}) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gshard, "MODELS", {})
        assert record.digest_of(gshard.table_1) != before[gshard.table_1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gshard, "parts", lambda name: {})
        assert record.digest_of(gshard.table_1_experts) != before[gshard.table_1_experts]
        patch.setattr(gshard.table_3, "__doc__", "Another claim.")
        assert record.digest_of(gshard.table_3) == before[gshard.table_3]


def test_pages_say_whether_they_are_stale():
    """Each page's line is what its stored rows, the experiments and the code of today make of it."""
    for name, entry in entries().items():
        made = record.read(PAGES, name)
        assert made, f"run: python -m scripts.reproduce {name}"
        line = (PAGES / f"{name}.md").read_text().splitlines()[pages.HEAD_LINE]
        assert line == pages.head(entry, made), "run: python -m scripts.reproduce --stale"


def test_the_list_and_a_name_that_is_none(command, tmp_path):
    """Without a name everything is listed, with --list what is named, and nothing is made; a wrong name is one line with the
    nearest."""
    assert "gshard.table_1 " in command() and command("--list") == command()
    assert "gshard.table_1 " in command("--list", "gshard") and "megatron" not in command("--list", "gshard")
    listed = json.loads(command("--list", "--json"))
    assert listed["gshard.table_1"]["stale"] == "not made" and not listed["gshard.table_1"]["rows"]
    assert listed["gshard.table_1"]["stated"] == ["printed"] and listed["gshard.figure_7"]["stated"] == ["chart"]
    assert not list(tmp_path.iterdir())
    with pytest.raises(ReproductionError, match=r"'gshard.table_5': no such reproduction; did you mean 'gshard.table_"):
        command("gshard.table_5")
