"""A user's own labelled text: tables of texts with labels or scores, of tagged words, of questions with answers. No TensorFlow.

The columns are called as a raw example's fields (data.labelled.sources), or as in well-known data sets (the names below). Words
and tags are lists, texts that blanks separate, or a file in the form of CoNLL: a word a line, its tag in the last column, an
empty line behind each sentence. Answers are a text, or those of SQuAD, whose own JSON files are read too.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data import untrusted
from data.labelled.encoding import Form
from data.reading import labels, own, tables
from data.reading.labels import label_of
from data.reading.own import Entry
from data.reading.tables import Row, TableFile
from data.task import DataError
from models.errors import shortened

CONLL = (".conll", ".conllu", ".bio", ".iob", ".iob2")
_TEXTS = ("text", "sentence", "content", "document")
_PAIRS = (
    ("text", "pair"),
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("anchor", "positive"),
)
_LABELS, _SCORES = ("label", "labels", "class", "category"), ("score", "similarity_score")
_WORDS, _TAGS = ("words", "tokens"), ("tags", "ner_tags", "pos_tags", "upos")
_ANSWERS = ("answers", "answer")
_MOST_LABELS = 10_000
_DIGITS = 100  # from which on a label of digits is a name: Python reads no number of thousands
_BINS = 21  # labels that stand for scores, as T5 reads STS-B's (arXiv 1910.10683, section 2.4)


@dataclasses.dataclass(frozen=True)
class Fields:
    """The form of a table's examples, and the columns of their fields."""

    form: Form
    columns: Mapping[str, str]


def files(source: str | Path) -> list[TableFile]:
    """Returns the files of a source: a table's, or those in the form of CoNLL."""
    return tables.files(source) or tables.with_splits(source, tables.listed(source, CONLL.__contains__))


def fields_of(source: str | Path, columns: Mapping[str, str]) -> Fields | None:
    """Returns the fields of a source by its first row; None if it holds no labelled text."""
    if not tables.files(source):
        return Fields("tagging", {"words": "words", "tags": "tags"}) if files(source) else None
    row = tables.first(source, columns)
    return None if row is None or "file_name" in row else _fields_of_row(row)


def _fields_of_row(row: Row) -> Fields | None:
    if isinstance(row.get("paragraphs"), list):
        return Fields("span", {"paragraphs": "paragraphs"})
    label, score, words, tags, answers = (_known(row, names) for names in (_LABELS, _SCORES, _WORDS, _TAGS, _ANSWERS))
    if "question" in row and "context" in row and answers:
        return Fields("span", {"question": "question", "context": "context", "answers": answers})
    if words and tags:
        return Fields("tagging", {"words": words, "tags": tags})
    pair = next((pair for pair in _PAIRS if pair[0] in row and pair[1] in row), None)
    text = _known(row, _TEXTS)
    texts: dict[str, str] = {"text": pair[0], "pair": pair[1]} if pair else {"text": text} if text else {}
    if texts and (label or score):
        return Fields("classification", texts | ({"label": label} if label else {"score": score}))
    return Fields("pair", texts) if pair else None


def _known(row: Row, names: Sequence[str]) -> str:
    return next((name for name in names if name in row), "")


def reader(fields: Fields, columns: Mapping[str, str]) -> Callable[[TableFile], Iterator[Entry]]:
    """Returns a function that yields the entries of a file with these fields."""
    return functools.partial(_entries, fields, dict(columns))


def _entries(fields: Fields, columns: Mapping[str, str], file: TableFile) -> Iterator[Entry]:
    example_of = {"classification": _classified, "tagging": _tagged, "span": _answered, "pair": _paired}[fields.form]
    rows = _sentences(file) if tables.form_of(file.path) in CONLL else tables.rows_of(file, columns)
    for whole in rows:
        split, why = own.given_split(whole)
        for row in _questions(whole) if "paragraphs" in fields.columns else (whole,):
            values = {name: row.get(column) for name, column in fields.columns.items()} | {"id": row.get("id")}
            try:
                example = example_of(row if "paragraphs" in fields.columns else values, row.place)
            except ValueError as problem:
                yield Entry(row.place, {}, why=str(problem))
                continue
            text = str(example.get("context") or example.get("text") or " ".join(example.get("words", ())))
            yield Entry(row.place, example, own.group_of(row, text), split, why)


def _label(value: Any) -> str:
    """Returns a label as a text; raises ValueError if it is none."""
    if not (text := label_of(value)):
        raise ValueError("no label")
    return text


def _classified(fields: Mapping[str, Any], _: str) -> dict[str, Any]:
    texts = {side: own.text_of(fields.get(side), side) for side in ("text", "pair") if side in fields}
    if "label" in fields:
        return texts | {"label": _label(fields["label"])}
    try:
        score = float(fields["score"])
    except (TypeError, ValueError):
        raise ValueError(f"its score is no number: {shortened(str(fields['score']))!r}") from None
    if not abs(score) < float("inf"):
        raise ValueError("no score")
    return texts | {"score": score}


def _paired(fields: Mapping[str, Any], _: str) -> dict[str, Any]:
    return {side: own.text_of(fields.get(side), side) for side in ("text", "pair")}


def _tagged(fields: Mapping[str, Any], _: str) -> dict[str, Any]:
    words, tags = (value.split() if isinstance(value, str) else value for value in (fields["words"], fields["tags"]))
    if not isinstance(words, list) or not isinstance(tags, list) or not words:
        raise ValueError("no words, or no tags")
    if len(words) != len(tags):
        raise ValueError(f"{len(words)} words, and {len(tags)} tags")
    for word in words:
        own.check_is_text(word, "word")
    own.text_of(" ".join(map(str, words)), "words")
    return {"words": [str(word) for word in words], "tags": [_label(tag) for tag in tags]}


def _answered(fields: Mapping[str, Any], place: str) -> dict[str, Any]:
    question, context = (own.text_of(fields.get(name), name) for name in ("question", "context"))
    answers = [_placed(text, start, context) for text, start in _answers(fields.get("answers"))]
    if not answers:
        raise ValueError("no answer")
    return {"id": str(fields.get("id") or place), "question": question, "context": context, "answers": answers}


def _answers(value: Any) -> list[tuple[Any, Any]]:
    """Returns the texts of answers with their starts, None where a start is not said."""
    if isinstance(value, dict):  # as `datasets` has them: a list of texts and a list of starts
        texts = value.get("text")
        texts = texts if isinstance(texts, list) else [texts]
        starts = value.get("answer_start")
        return list(zip(texts, starts if isinstance(starts, list) else [starts] * len(texts), strict=False))
    each = value if isinstance(value, list) else [value]
    return [(a.get("text"), a.get("answer_start", a.get("start"))) if isinstance(a, dict) else (a, None) for a in each if a]


def _placed(text: Any, start: Any, context: str) -> dict[str, Any]:
    text = str(text)
    if not isinstance(start, int) or context[start : start + len(text)] != text:
        start = context.find(text)
    if not text or start < 0:
        raise ValueError(f"the answer {shortened(text)!r} is not in the context")
    return {"text": text, "start": start}


def _questions(row: Row) -> Iterator[Row]:
    """Yields the questions of an article of SQuAD's JSON."""
    with untrusted.damage(row.place, DataError):
        for paragraph in row["paragraphs"]:
            for number, question in enumerate(paragraph["qas"], 1):
                inner = Row({**question, "context": paragraph["context"], "group": row.get("group")})
                inner.place = f"{row.place}, question {shortened(str(question.get('id') or number))}"
                yield inner


def _sentences(file: TableFile) -> Iterator[Row]:
    """Yields the sentences of a file in the form of CoNLL: words and tags; of Universal Dependencies, the parts of speech."""
    path, word, tag = file.path, *((1, 3) if tables.form_of(file.path) == ".conllu" else (0, -1))

    def empty() -> Row:
        return Row({"words": [], "tags": []} | ({tables.SPLIT: file.split} if file.split else {}))

    row = empty()
    for number, line in untrusted.lines(path, DataError):
        columns = line.split("\t") if "\t" in line else line.split()
        if not line.strip():
            if row["words"]:
                yield row
            row = empty()
            continue
        # Comments stand before a sentence; among its words, the sign is one of them.
        is_comment = line.startswith("# ") and not row["words"]
        if is_comment or line.startswith("-DOCSTART-") or (tag == 3 and not columns[0].isdecimal()):
            continue  # Universal Dependencies number joined words "3-4" and words that are not written "3.1"
        if len(columns) <= max(word, tag, 1):
            raise DataError(f"{path}, line {number}: {len(columns)} columns; expected a word and its tag")
        row.place = row.place or f"{shortened(path.name)}, line {number}"
        row["words"].append(columns[word])
        row["tags"].append(columns[tag].strip())
    if row["words"]:
        yield row


class Labels:
    """The labels of examples, or the range of their scores, gathered one after the other."""

    def __init__(self):
        self._names, self._examples = set[str](), 0
        self._scores: tuple[float, float] | None = None

    def add(self, example: Mapping[str, Any], _: Any = None) -> None:
        """Counts an example; raises DataError where its labels are too many to be classes."""
        self._examples += 1
        if (score := example.get("score")) is not None:
            low, high = self._scores or (score, score)
            self._scores = min(low, score), max(high, score)
        self._names.update(example.get("tags", ()), [example["label"]] if "label" in example else ())
        if len(self._names) > _MOST_LABELS:
            raise DataError(
                f"more than {_MOST_LABELS:,} different labels; take the column as a score with --columns score=COLUMN"
            )

    @property
    def values(self) -> list[float]:
        """The scores that labels stand for: as many as T5 takes, from the lowest to the highest."""
        if not self._scores:
            return []
        low, high = self._scores
        return [low + (high - low) * i / (_BINS - 1) for i in range(_BINS)]

    def names(self) -> list[str]:
        """Returns the labels in order: numbers by size, names by alphabet; those of scores are numbers. Pairs have none, and -1
        is none where it stands for no label (data.reading.labels).

        Raises:
          DataError: all examples have the same.
        """
        if self._scores and self._scores[0] == self._scores[1]:
            raise DataError(f"all {self._examples:,} examples have the score {self._scores[0]:g}")
        if self._scores:
            return [f"{value:.6g}" for value in self.values]
        if len(self._names) == 1:
            raise DataError(f"all {self._examples:,} examples have the label {shortened(min(self._names))!r}")
        names = self._names - {labels.NONE} if labels.has_none(self._names) else self._names
        numbers = all(len(name) < _DIGITS and name.removeprefix("-").isdecimal() for name in names)
        return sorted(names, key=int) if numbers else sorted(names)


def with_label(example: Mapping[str, Any], values: Sequence[float], names: Sequence[str]) -> dict[str, Any]:
    """Returns an example with the label that stands for its score, the nearest; one that has a label as it is."""
    if "score" not in example:
        return dict(example)
    nearest = min(range(len(values)), key=lambda i: abs(values[i] - example["score"]))
    return {**example, "label": names[nearest]}
