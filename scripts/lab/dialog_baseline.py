"""Measures baselines on rated conversations: TF-IDF and logistic regression, and the majority, for a fine-tuned decoder to beat.

    python -m scripts.lab.dialog_baseline chitchat --words 0,190 --json

Learns each attribute from the rated conversations of the training split, chooses the regression's C by AUC on the validation
split, and scores the test split once. The text is the last words of a conversation; a decoder sees those that fit a row.
Needs scikit-learn, which the project does not require.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from configs.registry import ConfigError
from data.paths import data_dir
from data.reading.caches import examples as raw_examples
from scripts import cli

Example = Mapping[str, Any]

_SPLITS = ("train", "validation", "test")
_STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # C, the weight of errors


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each number of words and each attribute.

    Raises:
      ConfigError: the cache has no rated conversations, or scikit-learn is missing.
    """
    parser = cli.parser(__doc__)
    parser.add_argument("cache", help="a prepared cache of rated conversations, e.g. chitchat")
    parser.add_argument(
        "--words",
        type=cli.numbers,
        default=[0],
        help="how many last words of a conversation are read, comma-separated; 0 reads all (the default)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    cli.check_scikit_learn()
    folder = data_dir() / "caches" / options.cache
    splits = {name: [x for x in raw_examples(folder, name) if x.get("ratings")] for name in _SPLITS}
    if not all(splits.values()):
        raise ConfigError(f"{options.cache} is not a cache of rated conversations")
    for words in options.words:
        for attribute in splits["train"][0]["ratings"]:
            line = {"words": words, "attribute": attribute, **measure(splits, attribute, words)}
            print(json.dumps({"cache": options.cache, **line}) if options.json else tell(line), flush=True)
    return 0


def text(turns: Sequence[str], words: int) -> str:
    """Returns the last words of a conversation; with 0, all."""
    return " ".join(" ".join(turns).split()[-words:])


def measure(splits: Mapping[str, Sequence[Example]], attribute: str, words: int) -> dict[str, Any]:
    """Returns AUC and accuracy on the test split, the accuracy of the majority of training (whose AUC is 0.5), and C."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # pyright: ignore[reportMissingImports]
    from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]
    from sklearn.metrics import roc_auc_score  # pyright: ignore[reportMissingImports]

    labels = {name: [bool(x["ratings"][attribute]) for x in split] for name, split in splits.items()}
    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", min_df=2)
    texts = {name: [text(x["turns"], words) for x in split] for name, split in splits.items()}
    vectors = {"train": vectorizer.fit_transform(texts["train"])}
    vectors |= {name: vectorizer.transform(texts[name]) for name in ("validation", "test")}
    models = [LogisticRegression(C=c, max_iter=1000).fit(vectors["train"], labels["train"]) for c in _STRENGTHS]

    def auc(model: Any, split: str) -> float:
        return float(roc_auc_score(labels[split], model.decision_function(vectors[split])))

    best = max(models, key=lambda model: auc(model, "validation"))
    majority = 2 * sum(labels["train"]) >= len(labels["train"])
    return {
        "auc": round(auc(best, "test"), 4),
        "accuracy": round(float(best.score(vectors["test"], labels["test"])), 4),
        "majority": round(sum(label == majority for label in labels["test"]) / len(labels["test"]), 4),
        "c": best.C,
        **{name: len(split) for name, split in splits.items()},
    }


def tell(line: Mapping[str, Any]) -> str:
    """Returns a measurement as one line."""
    return (
        f"{line['attribute']:<12} {line['words'] or 'all':>5} words: AUC {line['auc']:.3f}, accuracy {line['accuracy']:.3f} "
        f"(majority {line['majority']:.3f}) of {line['test']} conversations"
    )


if __name__ == "__main__":
    cli.run(main)
