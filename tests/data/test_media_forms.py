"""Pictures, sounds and conversations in every form of a user's table: one cache, on which models are trained and scored."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from configs import registry
from data.chat import sources as chats
from data.chat.caches import PreferenceCache
from data.prepare import prepare, settings_from
from data.reading.caches import read_manifest
from models.parts.nested import changed
from scripts.recipes import prepare as recipes
from tests.helpers.chats import conversations, turns, write_vocabulary
from tests.helpers.grids import FIELDS, showers, times, write_series
from tests.helpers.own_data import MEDIA, NESTED, TABLES, contents, scores_by_name, write_lines, write_media
from tests.helpers.pictures import encoded, smooth
from tests.helpers.sounds import tone, wav
from trainers import lora
from trainers.plan import fresh_state, make_plan
from trainers.weights import release
from trainers.weights.source import Arrays

WORDS = ("yes", "no", "yes no", "no yes yes")
PICTURES = {f"{n:02d}.png": encoded(smooth(9, 12, n)) for n in range(24)}
SOUNDS = {f"{n:02d}.wav": wav(tone(0.4, 300 + 10 * n)) for n in range(24)}
CLASSES = [{"label": ("ant", "bee", "cow")[n % 3]} for n in range(24)]
TEXTS = [{"text": WORDS[n % 4], "group": n} for n in range(24)]
CAPTIONS = [{"caption": f"a {WORDS[n % 4]} thing"} for n in range(24)]
TALKS = [{"messages": record["messages"]} for record in conversations(40, 0)]
SHORT = {"seconds": 1.28, "targets_length": 24}


def write_classes(folder: Path) -> Path:
    """Writes a folder of pictures for each class."""
    for (name, content), row in zip(PICTURES.items(), CLASSES, strict=True):
        (folder / row["label"]).mkdir(exist_ok=True)
        (folder / row["label"] / name).write_bytes(content)
    return folder


def write_manifest(folder: Path) -> Path:
    """Writes sounds and a manifest of JSON lines, as NeMo has them."""
    for name, content in SOUNDS.items():
        (folder / name).write_bytes(content)
    rows = [{"audio_filepath": name, "duration": 0.4, **row} for name, row in zip(SOUNDS, TEXTS, strict=True)]
    write_lines(folder / "train_manifest.json", rows)
    return folder / "train_manifest.json"


def write_talks(folder: Path, form: str) -> Path:
    """Writes conversations in a form of a table, or in a folder of two tables."""
    if form == "folder":
        for n, rows in enumerate((TALKS[:20], TALKS[20:])):
            write_lines(folder / f"{n}.jsonl", rows)
        return folder
    TABLES[form](folder / form, TALKS)
    return folder / form


def write(kind: str, form: str, folder: Path) -> Path:
    """Writes the examples of a kind in a form; returns what is to be read."""
    match kind, form:
        case "pictures", "folders of classes":
            return write_classes(folder)
        case "sounds", "manifest":
            return write_manifest(folder)
        case "conversations", _:
            return write_talks(folder, form)
        case "grids", _:
            return write_series(folder / "rain.nc", showers(60).astype(np.float32), times(60))
        case "sounds", _:
            return write_media(folder, form, SOUNDS, TEXTS, "audio")
    return write_media(folder, form, PICTURES, CLASSES if kind == "pictures" else CAPTIONS, "image")


KINDS: dict[str, tuple[str, dict[str, Any], str]] = {  # kind -> the form that is trained on, settings, an experiment
    "pictures": ("inside saved", {}, "vit.quickstart"),
    "sounds": ("manifest", SHORT, "conformer.small_czech"),
    "captions": ("inside rows.parquet", {}, "multimodal.emoji"),
    "grids": ("", FIELDS, "metnet2.quickstart"),
    "conversations": ("rows.parquet", {"length": 64}, "chat.smollm2_sft"),
}
CELLS = [
    *((kind, form) for kind in ("pictures", "sounds", "captions") for form in MEDIA),
    ("pictures", "folders of classes"),
    ("sounds", "manifest"),
    *(("conversations", form) for form in ("folder", *NESTED)),
]


def made(kind: str, form: str, root: Path) -> tuple[Path, list[str]]:
    """Prepares the cache `mine` of a kind in a form; returns its folder and what was said."""
    (root / "source").mkdir()
    settings = settings_from(str(write(kind, form, root / "source")))
    vocabulary = write_vocabulary(root / "vocabulary") if settings.released else None
    said: list[str] = []
    fields = KINDS[kind][1]
    settings = dataclasses.replace(settings, **fields)
    return prepare("mine", settings, data_dir=root / "data", vocabulary=vocabulary, progress=said.append), said


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """The contents of each kind's cache on which `test_models_are_trained_and_scored` trains."""
    return {kind: contents(made(kind, form, tmp_path_factory.mktemp(kind))[0]) for kind, (form, *_) in KINDS.items()}


@pytest.mark.parametrize(("kind", "form"), CELLS)
def test_every_form_makes_the_cache_that_models_are_trained_on(tmp_path, trained, kind, form):
    """All examples are stored, whatever the form, and three rows are shown as a model reads them."""
    cache, said = made(kind, form, tmp_path)
    assert contents(cache) == trained[kind]
    parts = read_manifest(cache)["parts"].values()
    held = sum(map(len, contents(cache)["held_out"].values()))
    assert sum(part["examples"] for part in parts) + held == (40 if kind == "conversations" else 24)
    assert sum(line.startswith("a row of ") for line in said) == 3
    read = "24 files: " if form == "folders of classes" else "2 files: " if form == "folder" else "1 file: "
    assert sum(line.startswith(f"read {read}") for line in said) == 1


@pytest.mark.integration
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, marks=() if kind == "conversations" else pytest.mark.nightly if kind == "captions" else pytest.mark.slow
        )
        for kind in KINDS
    ],
)
def test_models_are_trained_and_scored(tmp_path, trained, monkeypatch, kind):
    """From a table to three steps, and the scores once the run is opened again: nothing but the cache's name is said."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    form, _, experiment = KINDS[kind]
    assert contents(made(kind, form, tmp_path)[0]) == trained[kind]
    scores = scores_by_name(experiment, tmp_path / "run")
    assert scores and all(np.isfinite(value) for value in scores.values() if isinstance(value, float))


PAIRS = [{"prompt": f"the {a} {b}", "chosen": "yes", "rejected": "no"} for a in ("cat", "dog", "bird") for b in "abcdefgh"]


def write_pairs(folder: Path, form: str) -> Path:
    """Writes preference pairs as texts, or as messages."""
    rows: list[dict[str, Any]] = [
        {"prompt": turns(row["prompt"]), **{side: turns("", row[side])[1:] for side in ("chosen", "rejected")}} for row in PAIRS
    ]
    name = form.removeprefix("messages ")
    TABLES[name](folder / name, PAIRS if name == form else rows)
    return folder / name


@pytest.mark.parametrize("form", [*TABLES, *(f"messages {form}" for form in NESTED)])
def test_every_form_of_preferences_gives_the_same_pairs(tmp_path, form):
    """A cache is made of these pairs alone: the rest of the way is the same, which the next test takes."""
    source = write_pairs(tmp_path, form)
    assert isinstance(settings_from(str(source)), PreferenceCache)
    (tmp_path / "lines").mkdir()
    assert list(chats.read(source)) == list(chats.read(write_pairs(tmp_path / "lines", "rows.jsonl")))


@pytest.mark.integration
@pytest.mark.slow
def test_preferences_of_a_table_are_trained_on_and_scored(tmp_path, monkeypatch):
    """From Parquet to three steps of DPO from weights of a few numbers, and the scores once the run is opened again."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    e = registry.tiny(registry.load("chat.smollm2_dpo"))
    e = dataclasses.replace(e, model=changed(e.model, {"vocab": 322, "layers": 2}))
    whole, params = lora.plain(e, fresh_state(make_plan(e, jax.devices()[:1])).params)
    weights = Arrays(whole.model, params, write_vocabulary(tmp_path / "vocabulary"))
    release.write_weights(weights, whole, tmp_path / "start", "")
    settings = settings_from(str(write_pairs(tmp_path, "rows.parquet")))
    settings = dataclasses.replace(settings, length=64, pairs=2, reference=str(tmp_path / "start"))
    said: list[str] = []
    recipes.prepare("mine", settings, progress=said.append)
    assert sum(line.startswith("a row of ") for line in said) == 3
    given = {"vocab": 322, "layers": 2}
    options = [f"--model.{name}={value}" for name, value in given.items()]
    scores = scores_by_name("chat.smollm2_dpo", tmp_path / "run", *options, f"--train.finetune.init-from={tmp_path / 'start'}")
    assert scores["examples"] >= 1 and np.isfinite(scores["preference_loss"]) and 0 <= scores["win_rate"] <= 1
