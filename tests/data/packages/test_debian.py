import zipfile
from pathlib import Path

import pytest

from data.packages import debian
from data.translation import sources

GERMAN = """\
Package: some
Description-md5: 0123456789abcdef
Description-de: Kurz gesagt
 Ein Absatz über
 zwei Zeilen.
 .
 Eine Liste:
  - erster Punkt,
    der weitergeht
  * zweiter Punkt
 .
 Ende.

Package: other
Description-md5: fedcba9876543210
Description-de: Nur kurz
"""


def test_descriptions_are_paragraphs():
    """A description is its summary, its paragraphs with their lines joined, and each item of its lists."""
    assert debian.parse_descriptions(GERMAN) == {
        "0123456789abcdef": [
            "Kurz gesagt",
            "Ein Absatz über zwei Zeilen.",
            "Eine Liste:",
            "- erster Punkt, der weitergeht",
            "* zweiter Punkt",
            "Ende.",
        ],
        "fedcba9876543210": ["Nur kurz"],
    }


def fake_apt(commands: list[list[str]], lists: Path):
    """An apt-get that knows two languages in one release, and writes the lists it is asked for."""

    def run(command: list[str]) -> None:
        commands.append(command)
        (lists / "lists" / "x_bookworm_InRelease").write_text(
            "".join(f" 00 9 main/i18n/Translation-{suffix}\n" for suffix in ("de", "pt_BR", "en", "en.xz"))
        )
        (option,) = (part for part in command if part.startswith("-oAcquire::Languages="))
        for language in option.partition("=")[2].split(","):
            text = GERMAN.replace("Description-de", f"Description-{language}")
            name = f"x_bookworm_main_i18n_Translation-{language.replace('_', '%5f')}"
            (lists / "lists" / name).write_text(text if language != "pt_BR" else text.replace(" .\n Ende.\n", ""))

    return run


def test_the_archive_is_asked_for_every_language(tmp_path):
    """All languages that the release has are fetched into lists of our own; the same lists give the same file."""
    commands: list[list[str]] = []
    for name in ("a.zip", "b.zip"):
        debian.download_descriptions(tmp_path / name, tmp_path / "apt", fake_apt(commands, tmp_path / "apt"))
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert "-oAcquire::Languages=de,en,pt_BR" in commands[1]
    assert all(f"-oDir::State::Lists={tmp_path / 'apt' / 'lists'}" in command for command in commands)
    with zipfile.ZipFile(tmp_path / "a.zip") as zipped:
        assert zipped.namelist() == ["Translation-de", "Translation-en", "Translation-pt_BR"]


def test_descriptions_are_paired_by_paragraph(tmp_path):
    """Descriptions with as many paragraphs as in English give a pair each, the others their summary alone."""
    debian.download_descriptions(tmp_path / "a.zip", tmp_path / "apt", fake_apt([], tmp_path / "apt"))
    entries = list(sources._descriptions(tmp_path / "a.zip"))
    assert [len([entry for entry in entries if entry[0] == language]) for language in ("de", "pt_BR")] == [7, 2]


def test_the_index_is_the_releases_own(tmp_path):
    """The release's packages in apt's lists are kept, with their descriptions: no updates, and no other archive's.

    A package's source is without a version, its section without a component; the first of two entries counts.
    """
    stanza = "Package: some\nSource: thing (1.0)\nSection: contrib/net\nDescription: what it is\nDescription-md5: 0f\n"

    def run(command: list[str]) -> None:
        for name in ("d_dists_bookworm", "d_dists_bookworm-updates", "other_dists_nodistro"):
            part = tmp_path / "apt" / "lists" / f"{name}_main_binary-amd64_Packages"
            part.write_text(f"{stanza}\nPackage: {name}\n\n{stanza}Tag: x\n")
            if name.startswith("d_"):
                part.with_name(f"{name}_main_i18n_Translation-en").write_text(GERMAN)

    debian.download_index(tmp_path / "index.zip", tmp_path / "apt", run)
    with zipfile.ZipFile(tmp_path / "index.zip") as zipped:
        assert zipped.read("Translation-en").decode() == GERMAN
        assert debian.parse_packages(zipped.read("Packages").decode()) == [
            {"Package": "some", "Source": "thing", "Section": "net", "Description": "what it is", "Description-md5": "0f"},
            {"Package": "d_dists_bookworm", "Source": "d_dists_bookworm", "Section": ""},
        ]
    with pytest.raises(ValueError, match="name no release"):
        debian.download_index(tmp_path / "none.zip", tmp_path / "apt2", lambda command: None)
