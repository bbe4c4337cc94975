"""Labels from a teacher: which examples it learns from, which it names, what becomes of them. Imports TensorFlow."""

import dataclasses
import json

import pytest

from configs import registry
from data.labelled import teaching
from data.labelled.settings import ENTRIES, Labelled, cache_of_teacher
from data.prepare import PREPARED, prepare
from data.reading.caches import DataError
from data.reading.caches import examples as raw_examples

TEACHER = "bert.minilm_debian_descriptions_5k"


def quiet(line: str) -> None:
    """Progress that goes nowhere."""


@pytest.mark.parametrize("seed", [0, 2])
def test_the_teacher_names_what_has_no_label(tiny, monkeypatch, seed):
    """It is trained on the first examples of the seed's order and asked for the others, with their second texts; its votes go
    to the student's view, the first ones' are for their own labels, and held-out examples keep theirs."""
    known = Labelled(task="debian_descriptions", tokenizer="minilm_l6", length=32, slots=2, limit=10)
    monkeypatch.setitem(ENTRIES, "debian_descriptions_5k", known)
    asked, trained = [], []

    def command(root, say, name, *arguments):
        if name == "train":
            trained.append(list(map(str, arguments)))
            return
        with open(arguments[arguments.index("--file") + 1], encoding="utf-8") as file:
            for line in file:
                asked.append(json.loads(line))
                say(json.dumps({**asked[-1], "label": "zope", "votes": ["zope", "zope", "x11"]}))

    monkeypatch.setattr(teaching, "_command", command)
    settings = Labelled(
        task="debian_sections", tokenizer="minilm_l6", length=16, slots=8, limit=30, subset_seed=seed, teacher=TEACHER,
        votes=3,
    )  # fmt: skip
    plain = Labelled(task="debian_sections", tokenizer="minilm_l6", length=16, slots=8, limit=30, subset_seed=seed)
    taught, own = (
        prepare(f"{name}_{seed}", s, data_dir=tiny, progress=quiet)
        for name, s in (("taught", settings), ("own", plain))
    )
    learned = tiny / "caches" / ("debian_descriptions_5k" + (f"_seed{seed}" if seed else ""))
    found, true = (list(raw_examples(folder, "train")) for folder in (taught, own))
    assert len(true) == 30
    assert found[:10] == [{**example, "label": [example["label"]] * 3} for example in true[:10]]
    assert found[10:] == [{**example, "label": ["zope", "zope", "x11"]} for example in true[10:]]
    assert [e["text"] for e in asked] == [e["text"] for e in true[10:]] and all(e["pair"] for e in asked)
    assert [e["text"] for e in raw_examples(learned, "train")] == [e["text"] for e in true[:10]]
    assert len(list(read_rows(taught / "train/all.array_record"))) >= 30 * 3 / 8  # three slots an example
    assert trained[0][0] == TEACHER and trained[0][3:5] == ["--data.cache", learned.name]
    assert (taught / "test.jsonl").read_bytes() == (own / "test.jsonl").read_bytes()
    assert json.loads((taught / "manifest.json").read_text())["teacher"] == TEACHER


def test_another_teacher_gives_another_cache(tiny, monkeypatch):
    """The cache is found made until the teacher is trained otherwise, or on something else."""
    known = Labelled(task="debian_descriptions", tokenizer="minilm_l6", length=32, slots=2, limit=10)
    monkeypatch.setitem(ENTRIES, "debian_descriptions_5k", known)
    settings = Labelled(task="debian_sections", tokenizer="minilm_l6", length=16, slots=8, limit=12, teacher=TEACHER)
    made = []

    def label(settings, examples, root, progress):
        made.append(len(examples))
        return examples

    monkeypatch.setattr(teaching, "label", label)
    for _ in range(2):
        prepare("taught_again", settings, data_dir=tiny, progress=quiet)
        assert len(made) == 1
    monkeypatch.setitem(ENTRIES, "debian_descriptions_5k", dataclasses.replace(known, length=24))
    prepare("taught_again", settings, data_dir=tiny, progress=quiet)
    assert len(made) == 2
    longer = registry.load(TEACHER)
    longer = dataclasses.replace(longer, train=dataclasses.replace(longer.train, steps=7))
    monkeypatch.setattr(registry, "load", {TEACHER: longer}.__getitem__)
    prepare("taught_again", settings, data_dir=tiny, progress=quiet)
    assert len(made) == 3


def test_a_command_that_fails_leaves_nothing(tiny, monkeypatch):
    """The cache isn't made where the teacher can't be trained, and the line says which command failed."""
    known = Labelled(task="debian_descriptions", tokenizer="minilm_l6", length=32, slots=2, limit=10)
    monkeypatch.setitem(ENTRIES, "debian_descriptions_5k", known)
    run = teaching._command
    monkeypatch.setattr(teaching, "_command", lambda root, say, name, *rest: run(root, say, name, "--no-such-option"))
    settings = Labelled(task="debian_sections", tokenizer="minilm_l6", length=16, slots=8, limit=30, teacher=TEACHER)
    with pytest.raises(DataError, match=r"^scripts\.train, which labels examples, ended with exit code 2$"):
        prepare("failed", settings, data_dir=tiny, progress=quiet)
    assert not (tiny / "caches" / "failed").exists() and not list((tiny / "teachers").iterdir())


def test_teachers_see_the_examples_of_their_students():
    """Every cache with a teacher: the teacher's own has fewer examples, and its experiment reads it."""
    for settings in PREPARED.values():
        if isinstance(settings, Labelled) and settings.teacher:
            name, known = cache_of_teacher(settings)
            assert name == registry.load(settings.teacher).data.cache and 0 < known.limit < settings.limit
            assert known.subset_seed == settings.subset_seed and not known.teacher
