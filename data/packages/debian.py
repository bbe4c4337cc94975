"""Reads Debian's archive through apt, with separate package lists, so that the machine's are not changed.

The machine's apt sources decide which release is read; the pins of `data.translation.sources` are Debian 12's.
"""

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

Run = Callable[[list[str]], None]  # runs a command in the working directory, see `fetch.run_client`

_INDEX = re.compile(r"_main_i18n_Translation-([A-Za-z_%0-9]+)$")
_PACKAGES = re.compile(r"(_dists_[a-z]+)_main_binary-\w+_Packages$")


def _apt_get(lists: Path, *arguments: str) -> list[str]:
    """Returns an apt-get command that keeps its state below `lists`, as plain text, and does not touch the machine's."""
    options = {
        "Dir::State::Lists": lists / "lists",
        "Dir::Cache": lists / "cache",
        "Acquire::GzipIndexes": "false",  # container images like to keep them compressed
        "APT::Sandbox::User": "root",  # apt's own user may not write into our folders
    }
    return ["apt-get", "--quiet=2", *(f"-o{name}={value}" for name, value in options.items()), *arguments]


def download(name: str, version: str, lists: Path, run: Run) -> None:
    """Downloads a package's .deb file into the working directory, after fetching the package lists if necessary."""
    if not any((lists / "lists").glob("*_Packages")):
        _update(lists, "none", run)
    run(_apt_get(lists, "download", f"{name}={version}"))


def download_descriptions(path: Path, lists: Path, run: Run) -> None:
    """Writes the archive's package descriptions in all languages as a zip file of `Translation-LANGUAGE` members.

    The zip file is the same for the same descriptions: members are sorted and have no timestamps.
    """
    _update(lists, "en", run)
    releases = (release.read_text("utf-8") for release in sorted((lists / "lists").glob("*_InRelease")))
    available = {language for text in releases for language in re.findall(r" main/i18n/Translation-(\w+)$", text, re.M)}
    _update(lists, ",".join(sorted(available)), run)
    texts: dict[str, list[str]] = {}
    for index in sorted((lists / "lists").iterdir()):
        if match := _INDEX.search(index.name):
            # The name is escaped as in an address: pt%5fBR.
            texts.setdefault(match[1].replace("%5f", "_"), []).append(index.read_text("utf-8", "replace"))
    _write_zip(path, {f"Translation-{language}": "\n".join(parts) for language, parts in sorted(texts.items())})


def download_index(path: Path, lists: Path, run: Run) -> None:
    """Writes the release's packages as a zip file of `Packages`, see `parse_packages`, and `Translation-en`.

    Only the release itself is included, which changes with its point releases; its updates, which change every day, are
    not, nor are archives of other parties in the machine's sources, which have no translations.
    """
    _update(lists, "en", run)
    texts: dict[str, list[str]] = {"Packages": [], "Translation-en": []}
    for index in sorted((lists / "lists").iterdir()):
        english = index.with_name(_PACKAGES.sub(r"\1_main_i18n_Translation-en", index.name))
        if english != index and english.exists():
            for name, part in zip(texts, (index, english), strict=True):
                texts[name].append(part.read_text("utf-8", "replace"))
    if not texts["Packages"]:
        raise ValueError("apt's sources on this machine name no release of Debian's archive")
    _write_zip(path, {name: "\n".join(parts) for name, parts in texts.items()})


def _write_zip(path: Path, members: Mapping[str, str]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, text in members.items():
            zipped.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)


INDEXES = {"package descriptions": download_descriptions, "package index": download_index}


def _update(lists: Path, languages: str, run: Run) -> None:
    for folder in ("lists/partial", "cache/archives/partial"):
        (lists / folder).mkdir(parents=True, exist_ok=True)
    run(_apt_get(lists, f"-oAcquire::Languages={languages}", "update"))


_ENTRY = re.compile(r"^Description-md5: (\w+)\nDescription-(?!md5)[\w@]+: (.*(?:\n .*)*)", re.MULTILINE)
_BULLET = re.compile(r"  \s*[-*+o] ")


def parse_descriptions(text: str) -> dict[str, list[str]]:
    """Returns the paragraphs of each description in a Translation file, by the MD5 of the English description.

    The first paragraph is the one-line summary. Each item of a list is a paragraph.
    """
    return {match[1]: list(_paragraphs(match[2].split("\n"))) for match in _ENTRY.finditer(text)}


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Yields the paragraphs of a description: ` .` is a blank line, and a line that begins with two blanks is not reflowed."""
    summary, *body = lines
    yield summary
    paragraph: list[str] = []
    for line in body:
        blank, verbatim = line.strip() == ".", line.startswith("  ")
        # A verbatim line without a bullet continues the item before it.
        if paragraph and (blank or (verbatim and _BULLET.match(line))):
            yield " ".join(paragraph)
            paragraph = []
        if not blank:
            paragraph.append(line.strip())
    if paragraph:
        yield " ".join(paragraph)


_FIELD = re.compile(r"^(Package|Source|Section|Description|Description-md5): (.*)$", re.MULTILINE)


def parse_packages(text: str) -> list[dict[str, str]]:
    """Returns each package's Package, Source, Section, Description (the summary) and Description-md5, as far as it has them.

    A source is given without its version, a section without its component (`non-free/games` is `games`).
    Of several entries of a package, for other architectures or versions, the first is returned.
    """
    packages: dict[str, dict[str, str]] = {}
    for stanza in text.split("\n\n"):
        fields = dict(_FIELD.findall(stanza))
        if fields:
            fields["Source"] = fields.get("Source", fields["Package"]).split()[0]
            fields["Section"] = fields.get("Section", "").rpartition("/")[2]
            packages.setdefault(fields["Package"], fields)
    return list(packages.values())
