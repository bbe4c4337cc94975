"""Measures baselines on a cache of pictures, for a trained model to beat: logistic regression and a random forest on pixels.

    python -m scripts.bench_image_baseline fashion_mnist --size 28 --json

Pictures are cut and resized as evaluation sees them, and are vectors of pixels from 0 to 1. Trains on the cache's training
pictures, chooses the regression's C on the validation split and scores the test split once. Needs scikit-learn, which the project
does not require.
"""

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.cache_maker import ALL
from data.features import Example
from data.images.config import ImageData
from data.images.task import ImageTask
from data.paths import data_dir
from data.reading.caches import read_manifest
from models.errors import UserError
from scripts import cli

MODELS = ("logistic_regression", "random_forest")
_STRENGTHS = (0.01, 0.1, 1.0)  # C, the weight of errors
_TREES = 100
_READ = 4096  # pictures at a time


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each model; raises UserError if the cache does not suit or scikit-learn is missing."""
    parser = cli.parser(__doc__)
    parser.add_argument("cache", help="a prepared cache of pictures, e.g. fashion_mnist")
    parser.add_argument("--size", type=int, default=28, metavar="PIXELS", help="height and width that pictures have")
    parser.add_argument("--limit", type=int, default=0, help="at most so many training pictures; 0 takes all")
    parser.add_argument("--models", choices=(*MODELS, "both"), default="both", help="which baselines are fitted; both")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    cli.check_scikit_learn()
    folder = data_dir() / "caches" / options.cache
    manifest = read_manifest(folder)
    if manifest["kind"] != ImageData.kind:
        raise UserError(f"{options.cache} is no cache of pictures")
    splits = read(folder, manifest, options.size, options.limit)
    for name in MODELS if options.models == "both" else (options.models,):
        start = time.monotonic()
        line = {"cache": options.cache, "model": name, "examples": len(splits["train"][1]), **fit_and_score(name, splits)}
        line |= {"seconds": round(time.monotonic() - start, 1)}
        print(json.dumps(line) if options.json else "  ".join(f"{k} {v}" for k, v in line.items()), flush=True)
    return 0


def read(folder: Path, manifest: dict[str, Any], size: int, limit: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns pixels [N, size * size * C], float32 from 0 to 1, and classes [N] of each split of a cache."""
    data = ImageData(batch_size=1, height=size, width=size, channels=manifest["channels"], mean=(0.0,), std=(1.0,), eval_crop=1.0)
    files = {"train": folder / "train" / f"{ALL}.array_record"} | {
        split: folder / f"{split}.array_record" for split in manifest["held_out"]
    }
    counts = {"train": manifest["parts"][ALL]["rows"], **manifest["held_out"]}
    counts["train"] = min(limit or counts["train"], counts["train"])
    return {split: _stack(ImageTask(data).pictures(file, counts[split])) for split, file in files.items()}


def _stack(rows: Sequence[Example]) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = [], []
    for start in range(0, len(rows), _READ):
        part: Iterable[dict[str, np.ndarray]] = rows[start : start + _READ]
        for row in part:
            pixels.append(row["images"].ravel())
            labels.append(row["labels"][0])
    return np.stack(pixels), np.array(labels)


def fit_and_score(name: str, splits: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Returns the test accuracy of a model, and the C that is best on the validation split where the model has one."""
    from sklearn.ensemble import RandomForestClassifier  # pyright: ignore[reportMissingImports]
    from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]

    if name == "random_forest":
        forest = RandomForestClassifier(_TREES, n_jobs=-1, random_state=0).fit(*splits["train"])
        return {"accuracy": round(float(forest.score(*splits["test"])), 4)}
    models = [LogisticRegression(C=strength, max_iter=200).fit(*splits["train"]) for strength in _STRENGTHS]
    best = max(models, key=lambda model: model.score(*splits["validation"]))
    return {"accuracy": round(float(best.score(*splits["test"])), 4), "c": best.C}


if __name__ == "__main__":
    cli.run(main)
