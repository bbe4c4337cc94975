"""Links between documents: the file that a link names is there, and so is the heading behind its `#`. Nothing is fetched.
The names of code in docs/ADD_A_MODEL.md exist."""

import ast
import functools
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


@functools.cache
def code() -> tuple[frozenset[str], frozenset[tuple[str, ...]]]:
    """Returns all words of the code, and (name, parameters...) of each function in data/ and models/."""
    words, signatures = set[str](), set[tuple[str, ...]]()
    for folder in ("configs", "data", "models", "scripts", "tests/toy", "trainers"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            words |= set(re.findall(r"\w+", text)) | {path.stem}
            for node in ast.walk(ast.parse(text)) if folder in ("data", "models") else ():
                if isinstance(node, ast.FunctionDef):
                    names = (a.arg for a in node.args.args if a.arg not in ("self", "cls"))
                    signatures.add((node.name, *names))
    return frozenset(words), frozenset(signatures)


def unknown(text: str) -> list[str]:
    """Returns the names in a page's code that the project does not have, the calls in it that are no function's, and the paths of
    Python files and folders that are not there."""
    words, signatures = code()
    spans = re.findall(r"`([^`\n]+)`", text)
    top, wrong = r"(?:configs|data|models|scripts|tests|trainers)", list[str]()
    for span in [*spans, *re.findall(r"(?m)^ {4,}(?![ |\d-])(.*)$", text)]:
        other = (
            rf'#.*|"[^"]*"|\b(?:my_\w+|[A-Z]+(?=[:/.])|\d\w*|{top}/[\w/.]*)'  # comments, strings, placeholders, numbers, paths
        )
        wrong += [name for name in re.findall(r"\w\w+", re.sub(other, "", span)) if name not in words]
    for span in spans:
        if call := re.fullmatch(r"(\w+)\(([\w, ]*)\)", span):
            given = (call[1], *re.findall(r"\w+", call[2]))
            wrong += [span] * (given not in signatures)
    paths = re.findall(rf"(?<![\w/.]){top}/(?:[\w/]+\.py\b|[\w/]*/(?=[`\s)]))", text)
    return wrong + [path for path in paths if not (ROOT / path).exists()]


def test_the_contracts_are_described_by_names_that_exist():
    """Every name, call and path in docs/ADD_A_MODEL.md, which quotes classes, methods, fields and files."""
    assert unknown((ROOT / "docs" / "ADD_A_MODEL.md").read_text()) == []


def test_names_that_do_not_exist_are_noticed():
    """A name, in a sentence and in a block; a call without one of its parameters; a file and a folder."""
    good = (
        "`stack_modules`, `from_source(source, columns)`, `data.task.Task.sizes`, data/task.py and `tests/toy/`.\n\n    scan(x)\n"
    )
    assert unknown(good) == []
    bad = "`stack_modulos`, `from_source(source)`, data/tusk.py and `tests/toys/`.\n\n    scam(x)\n"
    assert unknown(bad) == ["stack_modulos", "scam", "from_source(source)", "data/tusk.py", "tests/toys/"]
