"""Labels, transcripts and log-probabilities that another model derives before a cache is prepared.

It is a folder in the data folder, of files of JSON lines and a record, which is written last. The recipes in scripts/recipes/
write it, the makers of caches read it. The folder's name, or the record's `inputs`, is the digest of all that it depends on.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data import paths
from data.task import DataError


@dataclasses.dataclass(frozen=True)
class Derived:
    """The files that a model derives.

    Attributes:
      folder: their folder.
      noun: what they hold, such as "labels".
      model: name or folder of the model.
      record: the file that is written last.
    """

    folder: Path
    noun: str
    model: str
    record: str = "manifest.json"

    def is_complete(self, inputs: str | None = None) -> bool:
        """Returns whether all files are there, and derived from inputs of this digest, if one is given."""
        path = self.folder / self.record
        return path.exists() and (inputs is None or json.loads(path.read_text())["inputs"] == inputs)

    def files(self) -> list[Path]:
        """Returns the files of JSON lines, in order."""
        return sorted(self.folder.glob("*.jsonl"))

    def digests(self, cache: str) -> list[str]:
        """Returns the SHA-256 of each file.

        Raises:
          DataError: the files are not complete; the message has the command that derives them for a cache.
        """
        if not self.is_complete():
            command = f"python -m scripts.prepare_data {cache}"
            raise DataError(f"cache {cache!r}: no {self.noun} by {self.model} in {self.folder}; run: {command}")
        return list(map(paths.sha256, self.files()))

    def lines(self) -> Iterator[Any]:
        """Yields the values of all lines."""
        for file in self.files():
            yield from (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())

    def write(self, name: str, lines: list[Any]) -> None:
        """Writes a file of JSON lines, as a whole or not at all."""
        paths.write_whole(self.folder / name, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))

    def finish(self, **values: Any) -> None:
        """Writes the record, after all files."""
        paths.write_whole(self.folder / self.record, json.dumps(values))
