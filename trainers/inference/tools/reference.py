"""The texts that retrieval answers from: the GCIDE dictionary and Debian's package descriptions, kept in <data>/reference.

A snippet has the form of the paper's ("Rafael Nadal / Age / 35"): "Lark / n. / A frolic; a jolly time.",
"curl / Debian package / command line tool for transferring data with URL syntax".
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from data import paths
from data.packages import fetch
from data.stages import Progress, stage
from data.text.sources import CORPORA, Entry
from trainers.inference.tools import retrieval
from trainers.inference.tools.retrieval import SEPARATOR, Index

NAME = "reference"
FORMAT = 1  # increase it whenever the same packages would give other snippets
_LONGEST = 240  # characters of a snippet's text
RECORD = "reference.json"

_HEAD = re.compile(
    r"(?P<word>[^,.;:\[\]()]+?),? (?P<part>(?:prop\. )?(?:n|a|adj|adv|v|prep|conj|interj|pron)\.(?: ?(?:t|i|pl|sing)\.)?)"
    r"(?: & [a-z. ]+\.)?(?=[ \[;]|$)"
)
_BRACKETS = re.compile(r"\s*\[[^\[\]]*\]")
_NUMBER = re.compile(r"^\d+\. ")
_QUOTATION = re.compile(r""" (?:--(?=[A-Z])|"(?=[A-Z])).*""", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.;!?]) ")


def dictionary_snippets(entry: Entry) -> Iterator[str]:
    """Yields a snippet for each sense in a document of the dictionary: the word, its part of speech, the definition.

    Etymologies, quotations, notes and phrases are left out.
    """
    word, _, text = entry
    part = ""
    for number, paragraph in enumerate(text.split("\n")):
        if (head := _HEAD.match(paragraph)) and head["word"].lower() == word:
            part, paragraph = head["part"], paragraph[head.end() :]
        elif number == 0:  # a head in a form of its own
            paragraph = paragraph[len(word) :]
        elif not _NUMBER.match(paragraph):
            continue
        definition = _NUMBER.sub("", _BRACKETS.sub("", paragraph).lstrip(",;. "))
        definition = clipped(_QUOTATION.sub("", definition))
        if definition:
            yield SEPARATOR.join([word, part, definition] if part else [word, definition])


def package_snippets(entry: Entry) -> Iterator[str]:
    """Yields the snippet of a package: its name, its summary and the beginning of its description."""
    name, _, text = entry
    summary, *paragraphs = text.split("\n")
    yield SEPARATOR.join([name, "Debian package", clipped(". ".join([summary, *paragraphs[:1]]))])


def clipped(text: str) -> str:
    """Returns as many whole sentences of a text as a snippet may hold; of a longer sentence, its first words."""
    text = " ".join(text.split())
    if len(text) <= _LONGEST:
        return text
    kept = ""
    for sentence in _SENTENCE_END.split(text):
        if len(kept) + 1 + len(sentence) > _LONGEST:
            break
        kept = f"{kept} {sentence}".strip()
    return kept or text[:_LONGEST].rpartition(" ")[0]


_SNIPPETS = {"gcide": dictionary_snippets, "descriptions": package_snippets}
SOURCES = {source.origin: source for source in CORPORA["english_debian"] if source.origin in _SNIPPETS}


def snippets(folder: Path) -> Iterator[str]:
    """Yields the snippets of all packages in a folder, the dictionary's first."""
    for origin, to_snippets in _SNIPPETS.items():
        source = SOURCES[origin]
        for entry in source.entries(folder / source.package.file):
            yield from to_snippets(entry)


def prepare(data_dir: Path | None = None, progress: Progress = print) -> Path:
    """Makes the index of all snippets, unless it is up to date.

    Returns:
      Its folder.

    Raises:
      FetchError: a package could not be fetched as pinned.
    """
    root = data_dir or paths.data_dir()
    folder, packages = root / NAME, [source.package for source in SOURCES.values()]
    record = {"format": FORMAT, "packages": {package.file: package.sha256 for package in packages}}
    if (folder / RECORD).exists() and json.loads((folder / RECORD).read_text())["made_from"] == record:
        progress(f"{NAME}: up to date in {folder}")
        return folder
    with stage("packages", progress):
        fetched = fetch.fetch(packages, root / "packages", progress)
    with stage("index", progress), paths.new_folder(folder) as new:
        count = retrieval.build(snippets(root / "packages"), new)
        hashes = {path.name: paths.sha256(path) for path in fetched}
        (new / RECORD).write_text(json.dumps({"made_from": record, "packages": hashes, "snippets": count}, indent=1))
    return folder


def prepared(data_dir: Path | None = None) -> Index | None:
    """Returns the index that `prepare` has made, or None where it has not been made."""
    folder = (data_dir or paths.data_dir()) / NAME
    return Index(folder) if (folder / RECORD).exists() else None
