"""scripts.reproduce: what it lists, computes, writes and refuses; figures that are exact in the paper come out."""

import json
import re
import sys

import pytest

from scripts import reproduce
from scripts.reproductions.entry import KINDS, ReproductionError, Row, entries


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Runs the command with its pages in `tmp_path` and returns what it printed."""

    def run(*args: str) -> str:
        monkeypatch.setattr(
            sys, "argv", ["reproduce", "--pages", str(tmp_path), "--workdir", str(tmp_path / "runs"), *args]
        )
        assert reproduce.main() == 0
        return capsys.readouterr().out

    return run


def test_each_entry_says_what_it_is():
    """Source, claim, unit and time are there, and names are unique."""
    assert len(entries()) >= 30
    for name, entry in entries().items():
        assert entry.name == name and entry.kind in KINDS and entry.minutes > 0
        assert entry.source and entry.unit and entry.claim.endswith("."), name


def test_a_figure_is_the_papers_to_its_printed_digits():
    """Numbers within the given relative difference, texts if they are equal; nothing is said without both."""
    assert Row("", 600, 604, within=0.01).agrees and not Row("", 600, 620, within=0.01).agrees
    assert Row("", "X Y", "X Y").agrees and not Row("", "X Y", "Y X").agrees
    assert Row("", None, 3.0).agrees is None and Row("", "X Y", "X Y").ratio is None


def test_exact_counts_and_bubbles_come_out(tmp_path):
    """Published counts to the last digit, the annotations of GSPMD's Table 1, and bubbles counted in the timeline."""
    for name in ("encoders.mlperf_sizes", "gspmd.table_1", "gspmd.bubbles", "megatron.bubbles", "gshard.capacity"):
        assert all(row.agrees for row in entries()[name].make(tmp_path)), name


def test_a_page_a_picture_and_a_line_are_written(command, tmp_path):
    """A second run replaces the first one's line, and leaves those of others."""
    assert "megatron.bubbles" in command("megatron.bubbles", "gspmd.bubbles")
    found = json.loads(command("megatron.bubbles", "--json"))
    assert len(found["rows"]) == 6 and all(row["agrees"] for row in found["rows"])
    table = (tmp_path / "README.md").read_text()
    assert (
        table.count("[megatron.bubbles]") == 1
        and "| 6 of 6 |" in table
        and table.index("gspmd") < table.index("megatron")
    )
    assert "| p=4, v=1, m=8 | 0.375 | 0.375 | yes |" in (tmp_path / "megatron.bubbles.md").read_text()
    assert (tmp_path / "megatron.bubbles.svg").read_text().count("p=8") == 3


def test_a_page_whose_figures_are_the_same_stays(command, tmp_path):
    """On another day, with another matplotlib, page and picture keep their bytes; other figures make both anew.
    Either way the page's path is printed."""
    page, picture = tmp_path / "megatron.bubbles.md", tmp_path / "megatron.bubbles.svg"
    assert f"  {page}\n" in command("megatron.bubbles")
    dated = re.sub(r"\d{4}-\d\d-\d\d", "2001-02-03", page.read_text())
    assert "2001-02-03, `python -m scripts.reproduce megatron.bubbles`" in dated
    page.write_text(dated)
    picture.write_text("another's")
    assert f"  {page}\n" in command("megatron.bubbles")
    assert page.read_text() == dated and picture.read_text() == "another's"
    page.write_text(dated.replace("| 0.375 | 0.375 |", "| 0.375 | 0.374 |"))
    command("megatron.bubbles")
    assert "2001-02-03" not in page.read_text() and "| 0.375 | 0.375 |" in page.read_text()
    assert "<svg" in picture.read_text()


def test_the_list_and_a_name_that_is_none(command, tmp_path):
    """Without a name everything is listed, with --list what is named, and nothing is made; a wrong name is one line with the
    nearest."""
    assert "gshard.table_1 " in command() and command("--list") == command()
    assert "gshard.table_1 " in command("--list", "gshard") and "megatron" not in command("--list", "gshard")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ReproductionError, match=r"'gshard.table_4': no such reproduction; did you mean 'gshard.table_"):
        command("gshard.table_4")
