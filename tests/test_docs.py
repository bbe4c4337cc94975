"""Links between documents: the file that a link names is there, and so is the heading behind its `#`. Nothing is fetched."""

import re
from pathlib import Path

import pytest

from data.paths import ROOT
from scripts.lab.site import slug

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "models").glob("*/README.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)", re.DOTALL)


def prose(page: Path) -> str:
    """Returns a page without its code, in which brackets mean something else."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?m)(?<=\n\n)(?:(?: {4}|\t).*\n|\n)+", "\n", text)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """Returns the names by which GitHub links to the headings of a page, and those that it sets itself."""
    names: dict[str, int] = {}
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#{1,6} +(.*?)[ #]*$", text, re.MULTILINE):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = slug(plain)
        names[name] = names.get(name, -1) + 1
    repeated = {f"{name}-{i}" for name, last in names.items() for i in range(1, last + 1)}
    return {*names} | repeated | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def broken(page: Path) -> list[str]:
    """Returns the links of a page that lead nowhere; those to other sites are not followed."""
    wrong = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        place, _, heading = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (heading and target.suffix == ".md" and heading not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page):
    """Every relative link of the documents."""
    assert broken(page) == []


def test_what_leads_nowhere_is_noticed(tmp_path):
    """A missing file, a missing heading, here and elsewhere; code is no link, and a heading is named as GitHub names it."""
    (tmp_path / "b.md").write_text("# What `a_b` is, and why\n\n## Again\n\n## Again\n")
    page = tmp_path / "a.md"
    page.write_text(
        "# Top\n\n[x](b.md#what-a_b-is-and-why) [y](b.md#again-1) [z](#top) [w](https://example.org/none)\n`f[0](no.md)`\n\n"
        "    g[0](no.md)\n\n[1](none.md) [2](b.md#again-2) [3](#bottom) ![4](none.png)\n"
    )
    assert broken(page) == ["none.md", "b.md#again-2", "#bottom", "none.png"]
