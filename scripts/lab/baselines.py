"""Measures classical baselines on a prepared cache, for a trained model to beat.

    python -m scripts.lab.baselines text debian_sections --sizes 1000,5000,20000,0 --seeds 0,1,2 --json
    python -m scripts.lab.baselines dialog chitchat --words 0,190 --json
    python -m scripts.lab.baselines images fashion_mnist --size 28 --json

text: TF-IDF of words and pairs of words, or of those and character n-grams, and a linear SVM, on the training examples that a
fine-tuned encoder gets at that size and seed. dialog: TF-IDF and a logistic regression for each attribute of rated
conversations, on their last words, beside the majority. images: a logistic regression and a random forest on pixels from 0 to 1,
cut and resized as evaluation sees them.

Each model is fitted on the training split; its C, the weight of errors, is chosen on the validation split, and the test split is
scored once. This needs scikit-learn, which the project does not require.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.registry import ConfigError
from data.cache_maker import ALL
from data.features import Example
from data.images.config import ImageData
from data.images.task import ImageTask
from data.labelled import metrics
from data.paths import data_dir
from data.reading.caches import examples, read_manifest
from data.reading.splits import subset
from scripts import cli

FEATURES = ("words", "characters")
MODELS = ("logistic_regression", "random_forest")
_SPLITS = ("train", "validation", "test")
_TREES = 100
_BATCH = 4096  # pictures that are decoded at a time

Line = dict[str, Any]
Splits = Mapping[str, Sequence[Mapping[str, Any]]]


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each baseline; raises ConfigError if the cache does not suit or scikit-learn is missing."""
    parser = cli.parser(__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    text, dialog, images = (kinds.add_parser(name, allow_abbrev=False) for name in ("text", "dialog", "images"))
    text.add_argument("cache", help="a prepared cache of whole texts with labels, e.g. debian_sections")
    text.add_argument("--sizes", type=cli.numbers, default=[0], help="numbers of training examples, comma-separated; 0 takes all")
    text.add_argument("--seeds", type=cli.numbers, default=[0], help="seeds for the choice of training examples, comma-separated")
    text.add_argument("--features", choices=(*FEATURES, "both"), default="both", help="what a text is described by; both")
    dialog.add_argument("cache", help="a prepared cache of rated conversations, e.g. chitchat")
    dialog.add_argument("--words", type=cli.numbers, default=[0], help="numbers of last words that are read; 0 reads all")
    images.add_argument("cache", help="a prepared cache of pictures, e.g. fashion_mnist")
    images.add_argument("--size", type=int, default=28, metavar="PIXELS", help="height and width that pictures have")
    images.add_argument("--limit", type=int, default=0, help="the greatest number of training pictures; 0 takes all")
    images.add_argument("--models", choices=(*MODELS, "both"), default="both", help="which baselines are fitted; both")
    for subparser in (text, dialog, images):
        subparser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    _check_scikit_learn()
    measure, as_text = {"text": (texts, text_line), "dialog": (dialogs, dialog_line), "images": (pictures, image_line)}[
        options.kind
    ]
    for line in measure(data_dir() / "caches" / options.cache, options):
        print(json.dumps({"cache": options.cache, **line}) if options.json else as_text(line), flush=True)
    return 0


def _check_scikit_learn() -> None:
    try:
        import sklearn  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError("this bench needs scikit-learn: pip install scikit-learn") from None


def _best(
    model: Callable[[float], Any], strengths: Sequence[float], train: tuple[Any, Any], score: Callable[[Any], float]
) -> Any:
    """Returns the model, fitted with each C, whose score is best."""
    return max((model(strength).fit(*train) for strength in strengths), key=score)


def _vectors(vectorizer: Any, split_texts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Returns the vectors of each split's texts; the vectorizer is fitted on the training split."""
    train = vectorizer.fit_transform(split_texts["train"])
    return {"train": train} | {name: vectorizer.transform(split_texts[name]) for name in _SPLITS[1:]}


# --- texts --------------------------------------------------------------------------------------------------------


def texts(folder: Path, options: argparse.Namespace) -> Iterator[Line]:
    """Yields accuracy and macro-F1 by features and size, a list over seeds each; with all examples a single seed is enough."""
    manifest = read_manifest(folder)
    if manifest.get("form") != "classification" or manifest["limit"]:
        raise ConfigError(f"{options.cache} is not a cache of classified texts with all training examples")
    splits = {name: list(examples(folder, name)) for name in _SPLITS}
    chosen: Sequence[str] = FEATURES if options.features == "both" else (options.features,)
    for features, size in ((features, size) for features in chosen for size in options.sizes):
        start = time.monotonic()
        seeds = options.seeds if 0 < size < len(splits["train"]) else options.seeds[:1]
        runs = [_classify(splits | {"train": subset(splits["train"], size, seed)}, features) for seed in seeds]
        yield {
            "features": features,
            "examples": size or len(splits["train"]),
            "seeds": seeds,
            **{name: [round(run[name], 4) for run in runs] for name in runs[0]},
            "seconds": round(time.monotonic() - start, 1),
        }


def _classify(splits: Splits, features: str) -> dict[str, float]:
    """Returns the test scores of the SVM whose C is best on the validation split."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # pyright: ignore[reportMissingImports]
    from sklearn.pipeline import make_union  # pyright: ignore[reportMissingImports]
    from sklearn.svm import LinearSVC  # pyright: ignore[reportMissingImports]

    # One-letter words count: C and R are languages.
    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b")
    if features == "characters":
        vectorizer = make_union(vectorizer, TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(2, 5)))
    joined = {name: ["\n".join(filter(None, (x["text"], x.get("pair")))) for x in split] for name, split in splits.items()}
    labels = {name: [x["label"] for x in split] for name, split in splits.items()}
    vectors = _vectors(vectorizer, joined)
    best = _best(
        lambda c: LinearSVC(C=c),
        (0.1, 0.3, 1.0, 3.0, 10.0),
        (vectors["train"], labels["train"]),
        lambda model: model.score(vectors["validation"], labels["validation"]),
    )
    confusion = metrics.confusion_of(labels["test"], best.predict(vectors["test"]).tolist())
    return {"accuracy": metrics.accuracy(confusion), "macro_f1": metrics.macro_f1(confusion), "c": best.C}


def text_line(line: Line) -> str:
    """Returns a measurement as text: means over the seeds, and their spread."""
    accuracy, f1 = line["accuracy"], line["macro_f1"]
    spread = f" (from {min(accuracy):.3f} to {max(accuracy):.3f})" if len(accuracy) > 1 else ""
    means = f"accuracy {statistics.mean(accuracy):.3f}{spread}, macro-F1 {statistics.mean(f1):.3f}"
    return f"{line['features']:<10} {line['examples']:>6} examples: {means}"


# --- rated conversations ------------------------------------------------------------------------------------------


def dialogs(folder: Path, options: argparse.Namespace) -> Iterator[Line]:
    """Yields the scores of each attribute, by the number of last words that are read."""
    splits = {name: [x for x in examples(folder, name) if x.get("ratings")] for name in _SPLITS}
    if not all(splits.values()):
        raise ConfigError(f"{options.cache} is not a cache of rated conversations")
    for words, attribute in itertools.product(options.words, splits["train"][0]["ratings"]):
        yield {"words": words, "attribute": attribute, **_rate(splits, attribute, words)}


def last_words(turns: Sequence[str], words: int) -> str:
    """Returns the last words of a conversation; with 0, all."""
    return " ".join(" ".join(turns).split()[-words:])


def _rate(splits: Splits, attribute: str, words: int) -> Line:
    """Returns AUC and accuracy on the test split, the accuracy of the majority of training (whose AUC is 0.5), and C."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # pyright: ignore[reportMissingImports]
    from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]
    from sklearn.metrics import roc_auc_score  # pyright: ignore[reportMissingImports]

    labels = {name: [bool(x["ratings"][attribute]) for x in split] for name, split in splits.items()}
    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", min_df=2)
    vectors = _vectors(vectorizer, {name: [last_words(x["turns"], words) for x in split] for name, split in splits.items()})

    def auc(model: Any, split: str) -> float:
        return float(roc_auc_score(labels[split], model.decision_function(vectors[split])))

    best = _best(
        lambda c: LogisticRegression(C=c, max_iter=1000),
        (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
        (vectors["train"], labels["train"]),
        lambda model: auc(model, "validation"),
    )
    majority = 2 * sum(labels["train"]) >= len(labels["train"])
    return {
        "auc": round(auc(best, "test"), 4),
        "accuracy": round(float(best.score(vectors["test"], labels["test"])), 4),
        "majority": round(sum(label == majority for label in labels["test"]) / len(labels["test"]), 4),
        "c": best.C,
        **{name: len(split) for name, split in splits.items()},
    }


def dialog_line(line: Line) -> str:
    """Returns a measurement as text."""
    return (
        f"{line['attribute']:<12} {line['words'] or 'all':>5} words: AUC {line['auc']:.3f}, accuracy {line['accuracy']:.3f} "
        f"(majority {line['majority']:.3f}) of {line['test']} conversations"
    )


# --- pictures -----------------------------------------------------------------------------------------------------


def pictures(folder: Path, options: argparse.Namespace) -> Iterator[Line]:
    """Yields the test accuracy of each model."""
    manifest = read_manifest(folder)
    if manifest["kind"] != ImageData.kind:
        raise ConfigError(f"{options.cache} is not a cache of pictures")
    splits = read_pixels(folder, manifest, options.size, options.limit)
    for name in MODELS if options.models == "both" else (options.models,):
        start = time.monotonic()
        scores = _fit_pixels(name, splits)
        yield {"model": name, "examples": len(splits["train"][1]), **scores, "seconds": round(time.monotonic() - start, 1)}


def read_pixels(folder: Path, manifest: dict[str, Any], size: int, limit: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns pixels [N, size * size * C], float32 from 0 to 1, and classes [N] of each split of a cache."""
    data = ImageData(batch_size=1, height=size, width=size, channels=manifest["channels"], mean=(0.0,), std=(1.0,), eval_crop=1.0)
    files = {"train": folder / "train" / f"{ALL}.array_record"}
    files |= {split: folder / f"{split}.array_record" for split in manifest["held_out"]}
    counts = {"train": manifest["parts"][ALL]["rows"], **manifest["held_out"]}
    counts["train"] = min(limit or counts["train"], counts["train"])
    return {split: _stack(ImageTask(data).pictures(file, counts[split])) for split, file in files.items()}


def _stack(rows: Sequence[Example]) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = [], []
    for start in range(0, len(rows), _BATCH):
        batch: Any = rows[start : start + _BATCH]
        for row in batch:
            pixels.append(row["images"].ravel())
            labels.append(row["labels"][0])
    return np.stack(pixels), np.array(labels)


def _fit_pixels(name: str, splits: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Returns the test accuracy of a model, and the C that is best on the validation split where the model has one."""
    from sklearn.ensemble import RandomForestClassifier  # pyright: ignore[reportMissingImports]
    from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]

    if name == "random_forest":
        forest = RandomForestClassifier(_TREES, n_jobs=-1, random_state=0).fit(*splits["train"])
        return {"accuracy": round(float(forest.score(*splits["test"])), 4)}
    best = _best(
        lambda c: LogisticRegression(C=c, max_iter=200),
        (0.01, 0.1, 1.0),
        splits["train"],
        lambda model: model.score(*splits["validation"]),
    )
    return {"accuracy": round(float(best.score(*splits["test"])), 4), "c": best.C}


def image_line(line: Line) -> str:
    """Returns a measurement as text."""
    return "  ".join(f"{name} {value}" for name, value in line.items())


if __name__ == "__main__":
    cli.run(main)
