"""Labels from a teacher: which examples it learns from, which it names, what becomes of them. Imports TensorFlow."""

import dataclasses
import json

import pytest

from configs import registry
from data import prepare as plain
from data.labelled.caches import ENTRIES, LabelledCache
from data.labelled.pseudo_labels import FILE, labels_of
from data.packages import weights
from data.prepare import PREPARED
from data.reading.caches import examples as raw_examples
from data.task import DataError
from models.errors import UserError
from scripts.recipes import distil
from scripts.recipes import prepare as recipes
from scripts.recipes.distil import cache_of_teacher
from scripts.recipes.prepare import prepare
from tests.helpers.compiling import CHEAP
from tests.helpers.labelled_packages import tiny_packages
from tests.helpers.rows import read_rows

pytestmark = pytest.mark.integration

TEACHER = "bert.minilm_debian_descriptions_5k"
KNOWN = LabelledCache(task="debian_descriptions", tokenizer="minilm_l6", length=32, slots=2, limit=10)
STUDENT = LabelledCache(task="debian_sections", tokenizer="minilm_l6", length=16, slots=8, limit=30, teacher=TEACHER, votes=3)


def quiet(line: str) -> None:
    """Progress that goes nowhere."""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A data folder of tiny packages, whose teacher learns from ten examples; released weights are not fetched."""
    monkeypatch.setitem(ENTRIES, "debian_descriptions_5k", KNOWN)
    monkeypatch.setattr(weights, "fetch_weights", lambda *_: None)
    with tiny_packages(tmp_path):
        yield tmp_path


@pytest.fixture
def commands(monkeypatch) -> tuple[list[list[str]], list[dict]]:
    """Replaces both commands: the arguments of each training, and the examples that the teacher was asked, are kept."""
    trained, asked = [], []

    def command(root, say, name, *arguments):
        if name == "train":
            trained.append(list(map(str, arguments)))
            return
        with open(arguments[arguments.index("--file") + 1], encoding="utf-8") as file:
            for line in file:
                asked.append(json.loads(line))
                say(json.dumps({**asked[-1], "label": "zope", "votes": ["zope", "zope", "x11"]}))

    monkeypatch.setattr(recipes, "command", command)
    return trained, asked


@pytest.mark.parametrize("seed", [0, 2])
def test_the_teacher_names_what_has_no_label(tiny, commands, seed):
    """It is trained on the first examples of the seed's order and asked for the others, with their second texts; its votes go
    to the student's view, the first ones' are for their own labels, and held-out examples keep theirs."""
    trained, asked = commands
    settings = dataclasses.replace(STUDENT, subset_seed=seed)
    taught, own = (
        prepare(f"{name}_{seed}", dataclasses.replace(settings, teacher=teacher), data_dir=tiny, progress=quiet)
        for name, teacher in (("taught", TEACHER), ("own", ""))
    )
    learned = tiny / "caches" / ("debian_descriptions_5k" + (f"_seed{seed}" if seed else ""))
    examples, true = (list(raw_examples(folder, "train")) for folder in (taught, own))
    assert len(true) == 30
    assert examples[:10] == [{**example, "label": [example["label"]] * 3} for example in true[:10]]
    assert examples[10:] == [{**example, "label": ["zope", "zope", "x11"]} for example in true[10:]]
    assert [e["text"] for e in asked] == [e["text"] for e in true[10:]] and all(e["pair"] for e in asked)
    assert [e["text"] for e in raw_examples(learned, "train")] == [e["text"] for e in true[:10]]
    assert len(list(read_rows(taught / "train/all.array_record"))) >= 30 * 3 / 8  # three slots an example
    assert trained[0][0] == TEACHER and trained[0][3:5] == ["--data.cache", learned.name]
    assert (taught / "test.jsonl").read_bytes() == (own / "test.jsonl").read_bytes()
    assert json.loads((taught / "manifest.json").read_text())["teacher"] == TEACHER


def test_a_teacher_that_changes_is_trained_again(tiny, commands, monkeypatch):
    """Its labels are kept until it is trained otherwise or on something else; the cache is kept while the labels are."""
    trained, _ = commands
    said: list[str] = []
    folder = prepare("taught", STUDENT, data_dir=tiny, progress=said.append)
    assert prepare("taught", STUDENT, data_dir=tiny, progress=said.append) == folder
    assert len(trained) == 1 and said[-1] == f"taught: up to date in {folder}"
    longer = registry.load(TEACHER)
    longer = dataclasses.replace(longer, train=dataclasses.replace(longer.train, steps=7))
    with monkeypatch.context() as patch:
        patch.setattr(registry, "load", {TEACHER: longer}.__getitem__)
        prepare("taught", STUDENT, data_dir=tiny, progress=said.append)
    assert len(trained) == 2 and said[-1] == f"taught: up to date in {folder}"  # the stand-in gives the same labels again
    before = (folder / "train.jsonl").read_bytes()
    monkeypatch.setitem(ENTRIES, "debian_descriptions_5k", dataclasses.replace(KNOWN, limit=12))
    prepare("taught", STUDENT, data_dir=tiny, progress=said.append)
    assert len(trained) == 3 and (folder / "train.jsonl").read_bytes() != before


def test_a_cache_without_its_labels_is_refused(tiny, commands):
    """Where there are no labels one line names the command that makes them, and labels of other examples are not taken."""
    with pytest.raises(DataError, match=r"no labels by bert\.minilm.*; run: python -m scripts\.prepare_data taught$"):
        plain.prepare("taught", STUDENT, data_dir=tiny, progress=quiet)
    distil.derive(STUDENT, tiny, quiet)
    file = labels_of(STUDENT, tiny).folder / FILE
    file.write_text("".join(file.read_text().splitlines(keepends=True)[::-1]))
    with pytest.raises(DataError, match=r"belong to other examples of debian_sections: delete them and try again$"):
        plain.prepare("taught", STUDENT, data_dir=tiny, progress=quiet)


def test_a_command_that_fails_leaves_nothing(tiny, monkeypatch):
    """Neither labels nor a cache are made where the teacher can't be trained, and the line says which command failed."""
    run = recipes.command
    monkeypatch.setattr(recipes, "command", lambda root, say, name, *more: run(root, say, name, "--no-such-option"))
    with pytest.raises(UserError, match=r"^scripts\.train, which labels examples, ended with exit code 2$"):
        prepare("failed", STUDENT, data_dir=tiny, progress=quiet)
    assert not (tiny / "caches" / "failed").exists() and not list((tiny / "taught" / TEACHER).iterdir())


@pytest.mark.slow
def test_train_classify_and_prepare_end_to_end(tiny, monkeypatch):
    """A teacher of one small layer is really trained and asked: every example without a label gets three votes of sections."""
    monkeypatch.setenv("XLA_FLAGS", CHEAP)  # for the children: one device
    monkeypatch.setitem(ENTRIES, "debian_descriptions_5k", dataclasses.replace(KNOWN, length=48, slots=4))
    small = {
        "model.layers": 1,
        "model.model_dim": 16,
        "model.attention.heads": 2,
        "model.attention.head_dim": 8,
        "model.feed_forward.hidden_dim": 16,
        "model.vocab": 32,
        "train.finetune.init_from": "",
        "train.steps": 2,
        "train.checkpoint.every": 2,
    }
    smaller = [word for name, value in small.items() for word in (f"--{name}", str(value))]
    run = recipes.command
    monkeypatch.setattr(
        recipes,
        "command",
        lambda root, say, name, *arguments: run(root, say, name, *arguments, *(smaller if name == "train" else ())),
    )
    cache = prepare("taught", STUDENT, data_dir=tiny, progress=quiet)
    examples = list(raw_examples(cache, "train"))
    sections = set(json.loads((cache / "manifest.json").read_text())["labels"])
    assert len(examples) == 30 and all(len(e["label"]) == 3 and set(e["label"]) <= sections for e in examples)
    assert all(e["label"] in (["libs"] * 3, ["games"] * 3) for e in examples[:10])
    assert len(list(read_rows(cache / "train/all.array_record"))) >= 30 * 3 / 8
    assert list((tiny / "taught" / TEACHER).iterdir()) == [labels_of(STUDENT, tiny).folder]  # the run is gone


def test_teachers_see_the_examples_of_their_students():
    """Every cache with a teacher: the teacher's own has fewer examples, and its experiment reads it."""
    taught = [settings for settings in PREPARED.values() if isinstance(settings, LabelledCache) and settings.teacher]
    assert taught
    for settings in taught:
        name, known = cache_of_teacher(settings)
        assert name == registry.load(settings.teacher).data.cache and 0 < known.limit < settings.limit
        assert known.subset_seed == settings.subset_seed and not known.teacher
