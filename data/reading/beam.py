"""Reads the items of a source in an Apache Beam pipeline, on any of its runners, with the results in the order of the items.

A pipeline maps slices of the items. Each slice's results become a file, which appears when it is complete; the files are then
read in order, so that a cache has the same bytes whatever runner and however many workers made it. A preparation that was killed
goes on with the slices that are missing. Workers must see the data folder under the same path.
"""

import functools
import os
import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from data.reading.files import Sliceable
from data.stages import Progress
from data.task import DataError

INSTALL = "make setup DEVICE=beam, then .venv-beam/bin/python -m scripts.prepare_data"


class BeamMapper:
    """A mapper (data.reading.files) that runs a pipeline for each source that is read.

    Args:
      options: Beam's own, such as "--runner=DirectRunner", "--direct_num_workers=4".
      folder: where the results are kept until the cache is complete.

    Attributes:
      sources: how many sources were read so far.

    Raises:
      DataError: Beam is not installed.
    """

    def __init__(self, options: Sequence[str], folder: Path, progress: Progress):
        try:
            import apache_beam  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise DataError(f"Apache Beam is not installed here: {INSTALL}") from None
        self.options, self.folder, self.progress = list(options), folder, progress
        self.sources = 0

    def __call__(self, read: Callable[[Any], Any], items: Sliceable, window: int) -> Iterator[Any]:
        """Yields what `read` returns of each item, in order; raises DataError where a slice has other results than items."""
        import apache_beam as beam  # pyright: ignore[reportMissingImports]
        from apache_beam.options.pipeline_options import PipelineOptions  # pyright: ignore[reportMissingImports]

        size = len(items)
        folder = self.folder / f"{self.sources:03d}-{size}-{window}"
        self.sources += 1
        folder.mkdir(parents=True, exist_ok=True)
        slices = [(start, min(start + window, size)) for start in range(0, size, window)]
        missing = [slice_ for slice_ in slices if not _file(folder, *slice_).exists()]
        self.progress(f"beam: {len(missing):,} of {len(slices):,} slices to read, {size:,} items")
        work = functools.partial(_write, read, items, folder)
        if len(missing) == 1:  # not worth starting workers
            work(missing[0])
        elif missing:
            with beam.Pipeline(options=PipelineOptions(self.options)) as pipeline:
                _ = pipeline | beam.Create(missing) | beam.Map(work)
        for start, stop in slices:
            results = pickle.loads(_file(folder, start, stop).read_bytes())
            if len(results) != stop - start:
                raise DataError(f"items {start} to {stop}: {len(results)} results; the data set changed while it was read")
            yield from results


def _file(folder: Path, start: int, stop: int) -> Path:
    return folder / f"{start:012d}-{stop:012d}"


def _write(read: Callable[[Any], Any], items: Sliceable, folder: Path, ends: tuple[int, int]) -> int:
    """Writes the results of a slice on a worker, and returns their number. A runner may do this twice."""
    results = [read(item) for item in items.slice(*ends)]
    path = _file(folder, *ends)
    unfinished = path.with_name(f".{uuid.uuid4().hex}")
    unfinished.write_bytes(pickle.dumps(results, protocol=pickle.HIGHEST_PROTOCOL))
    os.replace(unfinished, path)
    return len(results)
