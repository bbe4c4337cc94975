"""Small packages for tests, and real ones."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from data import paths
from data.packages import fetch, weights
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


def released(name: str, folder: Path) -> Tokenizer:
    """A released vocabulary; its package is fetched into the data folder the first time."""
    fetched = paths.data_dir() / "packages"
    fetch.fetch([weights.VOCABULARIES[name]], fetched)
    weights.write_vocabulary(name, fetched, folder / "tokenizer.json")
    return Tokenizer(folder)
