"""A user's own labelled text, from every form of table to rows."""

import json
from typing import Any

import numpy as np
import pytest

from data.labelled import encoding, own
from data.labelled.config import LabelledData
from data.prepare import prepare, settings_from
from data.reading.caches import examples, read_manifest
from data.task import DataError
from data.vocabularies.files import VocabularyError
from data.vocabularies.tokenizers import Tokenizer, train_bpe
from tests.helpers.own_data import FLAT, TABLES, contents, scores_by_name, write_lines
from tests.helpers.rows import read_rows
from tests.helpers.wordpiece import train_wordpiece

WORDS = tuple("abcdefghijklmnopqrst")


def sentence(number: int) -> str:
    return " ".join(WORDS[number // 20**i % 20] for i in range(3)) + " mat"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    train_wordpiece([" ".join(WORDS)] * 2 + ["mat where is it blue"] * 9, folder / "tokenizer.json", 60)
    return folder


CLASSES = [{"text": sentence(n), "label": ["good", "bad"][n % 2]} for n in range(40)]
PAIRS = [{"premise": sentence(n), "hypothesis": sentence(3 * n), "label": n % 3} for n in range(40)]
SCORES = [{"sentence1": sentence(n), "sentence2": sentence(n + 1), "score": n % 11 / 2} for n in range(40)]
SIMILAR = [{"anchor": sentence(n), "positive": sentence(n) + " blue"} for n in range(40)]
TAGGED = [{"tokens": sentence(n).split(), "ner_tags": ["O", "B", "I", "O"]} for n in range(40)]
BLANKS = [{name: " ".join(value) for name, value in row.items()} for row in TAGGED]
QUESTIONS = [{"id": str(n), "question": "where is it", "context": f"it is {sentence(n)}", "answer": "mat"} for n in range(40)]
_ANSWERS = [{"text": "mat", "answer_start": row["context"].index("mat")} for row in QUESTIONS]
HF_QUESTIONS = [
    {**row, "answers": {name: [value] for name, value in answer.items()}} for row, answer in zip(QUESTIONS, _ANSWERS, strict=True)
]
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": str(n),
            "paragraphs": [
                {"context": row["context"], "qas": [{"id": row["id"], "question": row["question"], "answers": [answer]}]}
            ],
        }
        for n, (row, answer) in enumerate(zip(QUESTIONS, _ANSWERS, strict=True))
    ],
}
CONLL = "-DOCSTART- O\n\n" + "\n\n".join(
    "\n".join(f"{word} x {tag}" for word, tag in zip(row["tokens"], row["ner_tags"], strict=True)) for row in TAGGED
)
UD = "\n\n".join(
    "# text\n1-2\tthe\t_\t_\t_\n"
    + "\n".join(f"{i}\t{word}\tx\t{row['ner_tags'][i - 1]}\t_" for i, word in enumerate(row["tokens"], 1))
    for row in TAGGED
)


SCORE_LABELS = [f"{n / 4:g}" for n in range(21)]
LETTERS: tuple[encoding.Form, list[str]] = ("classification", ["bad", "good"])
NUMBERS: tuple[encoding.Form, list[str]] = ("classification", ["0", "1", "2"])
GROUPS: dict[
    str, tuple[list[dict[str, Any]], encoding.Form, list[str], str]
] = {  # kind of rows -> the rows, their form and their labels, and an experiment that trains on them
    "classes": (CLASSES, *LETTERS, "bert.minilm_debian_sections"),
    "pairs": (PAIRS, *NUMBERS, "bert.minilm_debian_sections"),
    "scores": (SCORES, "classification", SCORE_LABELS, "bert.minilm_debian_sections"),
    "similar": (SIMILAR, "pair", [], "bert.minilm_l6"),
    "tags": (TAGGED, "tagging", ["B", "I", "O"], "bert.minilm_brown_tags"),
    "questions": (HF_QUESTIONS, "span", [], "bert.base_squad"),
}
AS_TEXTS = {"tags": BLANKS, "questions": QUESTIONS}  # as rows are in tables whose cells are texts
OTHERS = {  # name of a file -> the group whose examples it holds, and what writes it
    "tags.conll": ("tags", lambda path: path.write_text(CONLL)),
    "tags.conllu": ("tags", lambda path: path.write_text(UD)),
    "squad.json": ("questions", lambda path: path.write_text(json.dumps(SQUAD))),
}
CELLS = [*((group, form) for group in GROUPS for form in TABLES), *((group, name) for name, (group, _) in OTHERS.items())]


def write(folder, group, form):
    """Writes a group's rows in a form; returns the file or the folder."""
    source = folder / form
    if form in OTHERS:
        OTHERS[form][1](source)
    else:
        rows = GROUPS[group][0]
        TABLES[form](source, AS_TEXTS[group] if form in FLAT and group in AS_TEXTS else rows)
    return source


def made(root, source, vocabulary, progress=len):
    return prepare("mine", settings_from(str(source)).encoded_with(""), data_dir=root, vocabulary=vocabulary, progress=progress)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, vocabulary):
    """The contents of each group's cache on which `test_models_are_trained_on_every_form_of_labels_and_scored` trains."""
    roots = {group: tmp_path_factory.mktemp(group) for group in GROUPS}
    return {group: contents(made(root, write(root, group, "rows.jsonl"), vocabulary)) for group, root in roots.items()}


@pytest.mark.parametrize(("group", "source"), CELLS)
def test_every_form_of_labelled_text_becomes_rows(tmp_path, vocabulary, trained, group, source):
    """All 40 examples are in one split each, the rows hold those of training, and three of them are shown with their labels. The
    contents are those that a model is trained on below, whatever the form."""
    _, form, labels, _ = GROUPS[group]
    lines, file = [], write(tmp_path, group, source)
    cache = made(tmp_path, file, vocabulary, lines.append)
    assert contents(cache) == trained[group]
    manifest = read_manifest(cache)
    assert (manifest["form"], manifest["labels"], manifest["left_out"]) == (form, labels, 0)
    assert manifest["vocabulary"] == 60
    held = [example for split in ("validation", "test") for example in examples(cache, split)]
    assert len(held) == 6 and manifest["parts"]["all"]["examples"] == 34
    data = LabelledData(batch_size=1, length=manifest["length"], slots=manifest["slots"], spans=form == "span")
    tokenizer = Tokenizer(cache)
    stored = [
        encoding.row_of(row.tobytes(), form, data.length, data.slots) for row in read_rows(cache / "train/all.array_record")
    ]
    targets = np.concatenate([row["targets"][row["targets"] >= 0] for row in stored])
    assert len(targets) == {"tagging": 34 * 4, "span": 34 * 2, "pair": 34 * 2}.get(form, 34)
    if form == "span":
        spans = [row["tokens"][start : end + 1] for row in stored for start, end in row["targets"] if start > 0]
        assert {tokenizer.decode(ids) for ids in spans} == {"mat"}
    assert sum(line.startswith("read 1 file: ") for line in lines) == 1
    shown = [line for line in lines if line.startswith("a row of train: [CLS]")]
    assert len(shown) == min(3, len(stored))
    assert form == "pair" or "{" in shown[0]
    assert made(tmp_path, file, vocabulary, lines.append) == cache
    assert lines[-1].startswith("mine: up to date")


def rows_of(tmp_path, rows, vocabulary, **fields):
    write_lines(tmp_path / "rows.jsonl", rows)
    settings = settings_from(str(tmp_path / "rows.jsonl"), **fields).encoded_with("")
    lines = []
    return prepare("mine", settings, data_dir=tmp_path, vocabulary=vocabulary, progress=lines.append), lines


def test_what_cannot_be_used_is_counted_and_named(tmp_path, vocabulary):
    bad = [{"text": "", "label": "good"}, {"text": "a cat", "label": None}, {"text": "\ud800", "label": "bad"}]
    bad += [
        {"text": "a cat", "label": float("nan")},
        {"text": float("nan"), "label": "bad"},
    ]  # as data frames write what they lack
    cache, lines = rows_of(tmp_path, [*CLASSES, *bad], vocabulary)
    assert read_manifest(cache)["left_out"] == 5
    assert "the source: 5 of 45 examples left out; rows.jsonl, row 41: no text" in lines


@pytest.mark.parametrize(("rows", "label"), [(CLASSES, "good"), (PAIRS, 1)])
def test_a_split_without_a_class_is_named(tmp_path, vocabulary, rows, label):
    """One group has all examples of a class, so that one split alone has it; where all splits have all classes, none is named."""
    cache, lines = rows_of(
        tmp_path, [{**row, "group": row["label"] if row["label"] == label else n} for n, row in enumerate(rows)], vocabulary
    )
    manifest = read_manifest(cache)
    having = {split: {str(example["label"]) for example in examples(cache, split)} for split in ("test", "validation")}
    lacking = {split: sorted({*manifest["labels"]} - labels) for split, labels in having.items()}
    assert any(lacking.values()) and {split: manifest["missing"].get(split, []) for split in having} == lacking
    number = f"of {len(manifest['labels'])} classes, such as"
    for split, names in lacking.items():
        assert not names or f"{split}: no example of {len(names)} {number} {names[0]!r}" in lines


def test_equal_texts_stay_together_and_a_group_does(tmp_path, vocabulary):
    """Texts that differ in case and numbers alone are equal; a column `group` says otherwise."""
    twice = [{**row, "text": text} for row in CLASSES for text in (row["text"], row["text"].upper() + "!")]
    cache, _ = rows_of(tmp_path, twice, vocabulary)
    held = [example["text"] for split in ("validation", "test") for example in examples(cache, split)]
    assert len(held) == 12 and {text.lower().strip("!") for text in held if text.isupper() or text.endswith("!")} <= {*held}
    (tmp_path / "grouped").mkdir()
    grouped = [{**row, "group": n // 10} for n, row in enumerate(CLASSES)]
    cache, _ = rows_of(tmp_path / "grouped", grouped, vocabulary)
    sizes = [sum(1 for _ in examples(cache, split)) for split in ("validation", "test")]
    assert sizes == [10, 10]


def test_given_splits_are_obeyed_and_a_missing_one_is_drawn(tmp_path, vocabulary):
    """A copy of a held-out text is not trained on, although its row says so."""
    rows = [{**row, "split": "test" if n < 9 else "train"} for n, row in enumerate(CLASSES)]
    cache, lines = rows_of(tmp_path, [*rows, {**CLASSES[0], "split": "train"}], vocabulary)
    assert {example["text"] for example in examples(cache, "test")} == {row["text"] for row in CLASSES[:9]}
    assert read_manifest(cache)["parts"]["all"]["examples"] == 31 - sum(1 for _ in examples(cache, "validation"))
    assert any("is in the test as well" in line for line in lines) != any(
        example["text"] == CLASSES[0]["text"] for example in examples(cache, "validation")
    )


@pytest.mark.parametrize("rows", [SCORES, HF_QUESTIONS], ids=["scores", "questions"])
def test_a_copy_with_another_answer_is_not_trained_on(tmp_path, vocabulary, rows):
    """An input is held out, whatever the score, the name or the answer that it has elsewhere."""
    there = [{**row, "split": "test" if n < 9 else "train"} for n, row in enumerate(rows)]
    other = {"score": 3.25} if "score" in rows[0] else {"id": "again", "answers": {"text": ["it"], "answer_start": [0]}}
    cache, _ = rows_of(tmp_path, [*there, {**there[0], **other, "split": "train"}], vocabulary)
    assert read_manifest(cache)["left_out"] == 1
    assert sum(1 for _ in examples(cache, "test")) == 9


@pytest.mark.parametrize(("ending", "text"), [("conll", CONLL), ("conllu", UD)])
def test_files_of_tagged_words_are_in_the_splits_that_they_are_named_for(tmp_path, ending, text):
    for split in ("train", "dev", "test"):
        (tmp_path / f"en-ud-{split}.{ending}").write_text(text)
    fields = own.fields_of(tmp_path, {})
    assert fields
    read = own.reader(fields, {})
    splits = [{entry.split for entry in read(file)} for file in own.files(tmp_path)]
    assert splits == [{"validation"}, {"test"}, {"train"}]


def test_a_word_may_be_the_sign_with_which_comments_begin(tmp_path):
    (tmp_path / "a.conll").write_text("# sentence 1\npaid x O\n# x B\n5 x I\n")
    fields = own.fields_of(tmp_path / "a.conll", {})
    assert fields
    (entry,) = own.reader(fields, {})(own.files(tmp_path / "a.conll")[0])
    assert entry.example == {"words": ["paid", "#", "5"], "tags": ["O", "B", "I"]}


def test_columns_are_mapped(tmp_path, vocabulary):
    rows = [{"body": row["text"], "topic": row["label"], "text": "another"} for row in CLASSES]
    cache, _ = rows_of(tmp_path, rows, vocabulary, columns="text=body,label=topic")
    assert next(examples(cache, "test")).keys() == {"text", "label"}
    with pytest.raises(DataError, match=r"no column 'topics'; did you mean 'topic'\?"):
        rows_of(tmp_path, rows, vocabulary, columns="text=body,label=topics")


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"text": sentence(n), "label": "x"} for n in range(9)], "all 9 examples have the label 'x'"),
        ([{"text": sentence(n), "score": 1} for n in range(9)], "all 9 examples have the score 1"),
        (
            [{"text": sentence(n), "label": n} for n in range(10_001)],
            "more than 10,000 different labels; take the column as a score",
        ),
        ([{"text": "", "label": "x"}], r"no example can be used; rows\.jsonl, row 1: no text"),
        (
            [{"text": f"{n} {n}", "label": n, "split": "dev"} for n in range(9)],
            "no row is of the split 'train', but of 'validation'",
        ),
        ([{"text": "a", "label": "x", "split": "test"}, {"text": "b", "label": "x"}], "row 2: no split, which 1 other rows have"),
    ],
)
def test_labels_that_nothing_can_be_learned_of_are_refused(tmp_path, vocabulary, rows, reason):
    """Nothing is left of the cache."""
    with pytest.raises(DataError, match=reason):
        rows_of(tmp_path, rows, vocabulary)
    assert not (tmp_path / "caches" / "mine").exists()


def test_a_vocabulary_without_marks_is_refused(tmp_path, vocabulary):
    train_bpe([" ".join(WORDS)] * 9, tmp_path / "tokenizer.json", 270)
    with pytest.raises(VocabularyError, match=r"needs a vocabulary with \[CLS\], \[SEP\] and \[UNK\]"):
        rows_of(tmp_path, CLASSES, tmp_path)


@pytest.mark.parametrize(("given", "names"), [((10, 9, -2), ["-2", "9", "10"]), ((2, "1" * 5000), ["1" * 5000, "2"])])
def test_numbers_are_in_the_order_of_their_size(given, names):
    labels = own.Labels()
    for label in given:
        labels.add({"label": str(label)})
    assert labels.names() == names


def test_scores_become_the_nearest_of_21_labels():
    labels = own.Labels()
    for score in (0.0, 5.0, 1.1):
        labels.add({"score": score})
    assert [own.with_label({"score": score}, labels.values, labels.names())["label"] for score in (0, 1.1, 1.13, 5)] == [
        "0",
        "1",
        "1.25",
        "5",
    ]


SCORED_BY = {
    "classes": "accuracy",
    "pairs": "accuracy",
    "scores": "pearson",
    "similar": "accuracy",
    "tags": "accuracy",
    "questions": "exact_match",
}


@pytest.mark.integration
@pytest.mark.parametrize(
    "group", [group if group == "scores" else pytest.param(group, marks=pytest.mark.slow) for group in GROUPS]
)
def test_models_are_trained_on_every_form_of_labels_and_scored(tmp_path, vocabulary, trained, monkeypatch, group):
    """Three steps, from a table to the scores of the checkpoint that is opened again; of scored pairs their correlation."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    assert contents(made(tmp_path, write(tmp_path, group, "rows.jsonl"), vocabulary)) == trained[group]
    scores = scores_by_name(GROUPS[group][3], tmp_path / "run")
    assert -1 <= scores[SCORED_BY[group]] <= 1, scores
