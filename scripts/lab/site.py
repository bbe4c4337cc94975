"""Builds the documents as a site with MkDocs: `make docs`, which makes its environment from requirements-docs.lock.

    make docs        # site/html/index.html

The documents are the files that the repository has, at the same places, so that their links hold in both. Files that they link
to are copied. A link or an anchor that leads nowhere fails.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # this file runs without the zoo's packages
PAGES = ("*.md", "docs/**/*.md", "models/*/README.md")
LINK = re.compile(r"\]\(<?([^)#\s>]+)")


def slug(heading: str, separator: str = "-") -> str:
    """Returns the anchor of a heading, as GitHub names it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def gather(pages: Path) -> int:
    """Copies the documents and the files that they link to into a new folder; returns how many pages there are."""
    shutil.rmtree(pages, ignore_errors=True)
    sources = {page for pattern in PAGES for page in ROOT.glob(pattern)}
    linked = {(page.parent / link).resolve() for page in sources for link in LINK.findall(page.read_text())}
    files = {file for file in linked if file.is_file() and file.is_relative_to(ROOT)}
    for file in sources | files:
        to = pages / file.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)
    return len(sources)


def main() -> int:
    count = gather(ROOT / "site" / "pages")
    command = [sys.executable, "-m", "mkdocs", "--quiet", "build", "--clean", "--config-file", str(ROOT / "docs" / "mkdocs.yml")]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if not code:
        print(f"{count} pages in {ROOT / 'site' / 'html' / 'index.html'}")
    return code


if __name__ == "__main__":
    sys.exit(main())
