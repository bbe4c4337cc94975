"""Measures a baseline on a classification cache: TF-IDF and a linear SVM, for a fine-tuned encoder to beat.

    python -m scripts.bench_text_baseline debian_sections --sizes 1000,5000,20000,0 --seeds 0,1,2 --json

Trains on the training examples that the encoder gets at that size and seed (0: all), chooses the SVM's C on the
validation split and scores the test split once. Features are words and pairs of words, or those and character n-grams.
Needs scikit-learn, which the project does not require.
"""

import json
import statistics
import time
from typing import Any

from configs.registry import ConfigError
from data.labelled import metrics
from data.paths import data_dir
from data.reading.caches import examples as raw_examples
from data.reading.caches import read_manifest
from data.reading.splits import Example, subset
from scripts import cli

FEATURES = ("words", "characters")
_STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0)  # C, the weight of errors


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each kind of features and size.

    Raises:
      ConfigError: the cache does not suit, or scikit-learn is missing.
    """
    parser = cli.parser(__doc__)
    parser.add_argument("cache", help="a prepared cache of whole texts with labels, e.g. debian_sections")
    parser.add_argument(
        "--sizes", type=cli.numbers, default=[0], help="numbers of training examples, comma-separated; 0 takes all (the default)"
    )
    parser.add_argument(
        "--seeds", type=cli.numbers, default=[0], help="seeds for the choice of training examples, comma-separated"
    )
    parser.add_argument("--features", choices=(*FEATURES, "both"), default="both", help="what a text is described by; both")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    cli.check_scikit_learn()
    folder = data_dir() / "caches" / options.cache
    manifest = read_manifest(folder)
    if manifest.get("form") != "classification" or manifest["limit"]:
        raise ConfigError(f"{options.cache} is not a cache of classified texts with all training examples")
    splits = {name: list(raw_examples(folder, name)) for name in ("train", "validation", "test")}
    for features in FEATURES if options.features == "both" else (options.features,):
        for size in options.sizes:
            line = measure(splits, features, size, options.seeds)
            print(json.dumps({"cache": options.cache, **line}) if options.json else tell(line), flush=True)
    return 0


def measure(splits: dict[str, list[Example]], features: str, size: int, seeds: list[int]) -> dict[str, Any]:
    """Returns accuracy and macro-F1 on the test split, a list over seeds each; with all examples a single seed is enough."""
    start = time.monotonic()
    seeds = seeds if 0 < size < len(splits["train"]) else seeds[:1]
    runs = [fit_and_score({**splits, "train": subset(splits["train"], size, seed)}, features) for seed in seeds]
    return {
        "features": features,
        "examples": size or len(splits["train"]),
        "seeds": seeds,
        **{name: [round(run[name], 4) for run in runs] for name in runs[0]},
        "seconds": round(time.monotonic() - start, 1),
    }


def fit_and_score(splits: dict[str, list[Example]], features: str) -> dict[str, float]:
    """Returns the test scores of the SVM whose C is best on the validation split."""
    from sklearn.svm import LinearSVC  # pyright: ignore[reportMissingImports]

    texts = {
        name: ["\n".join(filter(None, (example["text"], example.get("pair")))) for example in examples]
        for name, examples in splits.items()
    }
    labels = {name: [example["label"] for example in examples] for name, examples in splits.items()}
    vectorizer = _vectorizer(features)
    vectors = {"train": vectorizer.fit_transform(texts["train"])}
    vectors |= {name: vectorizer.transform(texts[name]) for name in ("validation", "test")}
    models = [LinearSVC(C=strength).fit(vectors["train"], labels["train"]) for strength in _STRENGTHS]
    best = max(models, key=lambda model: model.score(vectors["validation"], labels["validation"]))
    predictions = best.predict(vectors["test"]).tolist()
    confusion = metrics.confusion_of(labels["test"], predictions)
    return {"accuracy": metrics.accuracy(confusion), "macro_f1": metrics.macro_f1(confusion), "c": best.C}


def _vectorizer(features: str) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer  # pyright: ignore[reportMissingImports]
    from sklearn.pipeline import make_union  # pyright: ignore[reportMissingImports]

    # One-letter words count: C and R are languages.
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b")
    if features == "words":
        return words
    return make_union(words, TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(2, 5)))


def tell(line: dict[str, Any]) -> str:
    """Returns a measurement as one line: means over the seeds, and their spread."""
    accuracy, f1 = line["accuracy"], line["macro_f1"]
    spread = f" (from {min(accuracy):.3f} to {max(accuracy):.3f})" if len(accuracy) > 1 else ""
    means = f"accuracy {statistics.mean(accuracy):.3f}{spread}, macro-F1 {statistics.mean(f1):.3f}"
    return f"{line['features']:<10} {line['examples']:>6} examples: {means}"


if __name__ == "__main__":
    cli.run(main)
