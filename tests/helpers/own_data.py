"""A user's own tables in every form, and models of a few weights on a cache: trained for three steps, reopened, and scored."""

import csv
import dataclasses
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from configs import registry
from configs.experiment import Experiment
from data.reading.caches import cache_folder, examples, read_manifest
from models.parts.nested import changed
from models.sharding.layouts import ONE_DEVICE
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
FLAT = ("rows.csv", "rows.tsv")  # forms whose cells are texts
NESTED = tuple(name for name in TABLES if name not in FLAT)


def contents(cache: Path) -> dict[str, Any]:
    """Returns all that training, scoring and reopening read of a cache: equal contents are one program on the same data.

    They are the digests of the training rows and of the vocabularies, what the cache decides of a model, and the held-out
    examples but for their names, which are those of files and rows.
    """
    manifest = read_manifest(cache)
    files = {name: digest for name, digest in manifest["files"].items() if not name.endswith(".jsonl")}
    decided = {
        name: value for name, value in manifest.items() if name not in ("source", "columns", "files", "inputs", "fingerprint")
    }
    held = {
        path.stem: [{name: value for name, value in example.items() if name != "id"} for example in examples(cache, path.stem)]
        for path in cache.glob("*.jsonl")
    }
    return {"files": files, "decided": decided, "held_out": held}
