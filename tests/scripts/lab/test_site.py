"""The documents as a site: which files it is built of, and which pages its menu lists."""

import re

from data.paths import ROOT
from scripts.lab import site


def test_pages_and_what_they_link_to_lie_as_in_the_repository(tmp_path):
    """Every document is there, with the pictures that it shows and the sources that it names; nothing else is copied."""
    pages = tmp_path / "pages"
    (pages / "old").mkdir(parents=True)
    count = site.gather(pages)
    names = {str(file.relative_to(pages)) for file in pages.glob("**/*") if file.is_file()}
    assert count == sum(name.endswith(".md") for name in names) > 20
    assert {"README.md", "docs/quickstart.png", "models/family.py"} <= names and "old" not in {*map(str, pages.iterdir())}
    assert all((pages / name).read_bytes() == (ROOT / name).read_bytes() for name in names)


def test_the_menu_lists_every_document():
    """Pages of single reproductions are reached from their list."""
    listed = set(re.findall(r"- (\S+\.md)$", (ROOT / "docs" / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT)) for pattern in site.PAGES for page in ROOT.glob(pattern)}
    assert listed == {page for page in pages if not re.match(r"docs/reproductions/(?!README)", page)}
