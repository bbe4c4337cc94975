"""A cache of small pictures, and models that read them."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import pytest

from tests.helpers.pictures import write_picture_cache


@dataclasses.dataclass(frozen=True)
class Reader:
    """The configuration of a model that reads pictures of one shape and knows some classes."""

    family: ClassVar[str] = "reader"
    labels: int = 3
    picture: tuple[int, int, int] = (8, 8, 3)

    def tiny(self) -> "Reader":
        return self


@pytest.fixture
def model() -> Reader:
    return Reader()


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A data folder with the cache "toy": 60 pictures of 16 x 12 of three classes, 51 of them to train on."""
    root = tmp_path_factory.mktemp("data")
    write_picture_cache(root, {"ant": 20, "bee": 20, "cow": 20})
    return root
