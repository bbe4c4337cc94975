"""A user's own tables in every form, and models of a few weights on a cache: trained for three steps, reopened, and scored."""

import csv
import dataclasses
import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from pyarrow import parquet

from configs import registry
from configs.experiment import Experiment
from data.reading.caches import cache_folder, examples, read_manifest
from models.parts.nested import changed
from models.sharding.layouts import ONE_DEVICE
from scripts import cli
from tests.helpers.runs import run
from trainers import trainer
from trainers.evaluation.evaluator import open_evaluator
from trainers.inference.load import load
from trainers.weights.load_any import open_model


def scores_of(experiment: str, workdir: Path, model: dict[str, Any], **data: Any) -> dict[str, Any]:
    """Returns the scores on the test of an experiment, tiny and with these changes, after three steps on the data."""
    e = registry.load(experiment)
    tiny = registry.tiny(e)
    e = dataclasses.replace(
        tiny,
        layout=ONE_DEVICE,
        model=changed(tiny.model, model),
        data=dataclasses.replace(e.data, batch_size=2, **data),
        train=dataclasses.replace(tiny.train, finetune=dataclasses.replace(tiny.train.finetune, init_from="")),
        eval=dataclasses.replace(e.eval, split="test", limit=4),
    )
    return reopened_scores(e, workdir)


def scores_by_name(experiment: str, workdir: Path, *options: str) -> dict[str, Any]:
    """Returns the scores on the test of an experiment, tiny, after three steps on the cache `mine`: what the data decide is taken
    from them, as on the command line."""
    parser = cli.parser("")
    cli.add_experiment(parser)
    arguments = [experiment, "--tiny", "--data.cache", "mine", "--data.batch-size", "4", "--train.finetune.init-from=", *options]
    e = dataclasses.replace(cli.chosen(*parser.parse_known_args(arguments)), layout=ONE_DEVICE)
    assert e.eval is not None
    e = dataclasses.replace(e, eval=dataclasses.replace(e.eval, split="test", limit=4))
    return reopened_scores(e, workdir)


def reopened_scores(e: Experiment, workdir: Path) -> dict[str, Any]:
    """Trains an experiment to its end, opens it again, and returns its scores."""
    assert run(e, workdir) == trainer.DONE
    opened, weights = open_model(workdir)
    cache = cache_folder(opened.data)
    served = load(weights, opened.execution, ONE_DEVICE)
    scores, _ = open_evaluator(served.model, opened, cache, weights.vocabulary or cache).report(served.params)
    return scores.get("all", scores)


Rows = Sequence[Mapping[str, Any]]


def write_csv(path: Path, rows: Rows, delimiter: str = ",") -> None:
    """Writes a table as its people do, quoted where it must be."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0]], delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def write_lines(path: Path, rows: Rows) -> None:
    """Writes JSON lines, compressed if the file is called so."""
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def write_arrow(path: Path, rows: Rows) -> None:
    """Writes an Arrow stream, as `datasets` has them."""
    table = pyarrow.Table.from_pylist([dict(row) for row in rows])
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)


def save_to_disk(folder: Path, rows: Rows) -> None:
    """Writes a folder as `save_to_disk` of `datasets` does, of one split."""
    folder.mkdir(parents=True)
    write_arrow(folder / "data-00000-of-00001.arrow", rows)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")


TABLES: dict[str, Callable[[Path, Rows], object]] = {  # name of a file or a folder -> what writes rows there
    "rows.csv": write_csv,
    "rows.tsv": lambda path, rows: write_csv(path, rows, "\t"),
    "rows.jsonl": write_lines,
    "rows.jsonl.gz": write_lines,
    "rows.json": lambda path, rows: path.write_text(json.dumps(rows)),
    "rows.parquet": lambda path, rows: parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path),
    "rows.arrow": write_arrow,
    "saved": save_to_disk,
}


def table(name: str, rows: Rows) -> Callable[[Path], object]:
    """Returns what writes these rows in a form of TABLES."""
    return lambda path: TABLES[name](path, rows)


FLAT = ("rows.csv", "rows.tsv")  # forms whose cells are texts
NESTED = tuple(name for name in TABLES if name not in FLAT)


MEDIA = (
    *(f"beside {form}" for form in ("metadata.csv", "metadata.tsv", "metadata.jsonl", "rows.parquet", "rows.arrow", "saved")),
    *(f"inside {form}" for form in ("rows.parquet", "rows.arrow", "saved")),
)
"""Forms of tables of pictures and sounds: files that the rows name, or their bytes in the table."""


def write_media(folder: Path, form: str, files: Mapping[str, bytes], rows: Rows, column: str) -> Path:
    """Writes a table of files in one of the forms of MEDIA; returns what is to be read.

    Args:
      column: of the bytes in a table; names have `file_name`.
    """
    where, name = form.split()
    source = folder / name
    is_beside = where == "beside"
    cells = files if is_beside else ({"bytes": content, "path": None} for content in files.values())
    column = "file_name" if is_beside else column
    write = TABLES[f"rows{source.suffix}" if source.suffix else name]
    write(source, [{column: cell, **row} for cell, row in zip(cells, rows, strict=True)])
    for file, content in files.items() if is_beside else ():
        ((source if source.is_dir() else folder) / file).write_bytes(content)
    return folder if name.startswith("metadata") else source


def contents(cache: Path) -> dict[str, Any]:
    """Returns all that training, scoring and reopening read of a cache: equal contents are one program on the same data.

    They are the digests of the vocabularies and of each row, what the cache decides of a model, and the held-out examples but for
    their names, which are those of files and rows; in order, but of pictures, whose order is that of their hashed names.
    """
    manifest = read_manifest(cache)
    in_order = list if manifest["kind"] != "images" else sorted
    told_apart = ("source", "sources", "columns", "files", "inputs", "fingerprint", "parts")
    rows = {path.relative_to(cache).as_posix(): in_order(_digests(path)) for path in cache.rglob("*.array_record")}
    held = {
        path.stem: in_order(
            json.dumps({name: value for name, value in example.items() if name not in ("id", "name", "source")})
            for example in examples(cache, path.stem)
        )
        for path in cache.glob("*.jsonl")
    }
    return {
        "rows": sorted(digests for name, digests in rows.items() if name.startswith("train/")),
        "held_out_rows": {name: digests for name, digests in rows.items() if not name.startswith("train/")},
        "files": {name: digest for name, digest in manifest["files"].items() if "." + name.rpartition(".")[2] not in _READ},
        "parts": [*manifest.get("parts", {}).values()],  # which may be called as the file is
        "decided": {name: value for name, value in manifest.items() if name not in told_apart},
        "held_out": held,
    }


_READ = (".array_record", ".jsonl")


def _digests(path: Path) -> Iterator[str]:
    reader = array_record_module.ArrayRecordReader(str(path))
    try:
        for record in reader.read_all():
            yield hashlib.sha256(record).hexdigest()
    finally:
        reader.close()
