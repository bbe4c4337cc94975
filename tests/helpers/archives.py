"""Small packages for tests, and real ones."""

import fcntl
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from data import paths
from data.packages import fetch, weights
from data.packages.fetch import FetchError, Package
from data.vocabularies.tokenizers import Tokenizer


def tarball(path: Path, files: Mapping[str, str | bytes]) -> Path:
    """An npm tarball of the given files."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def fetched(*packages: Package) -> Path:
    """The folder with these real packages, which are fetched the first time, by one process at a time.

    Skips the test, with the client's complaint, where no registry answers; mark it `network`.
    """
    folder = paths.data_dir() / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            fetch.fetch(packages, folder)
        except FetchError as error:
            if "SHA-256" in str(error):  # the registry did answer
                raise
            pytest.skip(f"needs the network: {error}")
    return folder


def released_weights(name: str) -> Path:
    """The folder of these released weights; see `fetched`."""
    fetched(*weights.WEIGHTS[name].packages)
    return weights.fetch_weights(name, progress=lambda line: None)


def released(name: str, folder: Path) -> Tokenizer:
    """A released vocabulary; see `fetched`."""
    weights.write_vocabulary(name, fetched(weights.VOCABULARIES[name]), folder / "tokenizer.json")
    return Tokenizer(folder)
