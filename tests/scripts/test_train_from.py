"""`scripts.train --from`: a user's own file or folder of each kind becomes the data of a run, under the run's name, as
docs/FINETUNE.md says line by line."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from configs import registry
from configs.experiment import Experiment
from configs.registry import ConfigError
from data.paths import ROOT
from data.prepare import PREPARED
from data.reading.caches import read_manifest
from models.parts.nested import changed
from scripts import cli, train
from tests.helpers.chats import conversations, write_vocabulary
from tests.helpers.own_data import write_csv, write_lines, write_media
from tests.helpers.pictures import encoded, smooth
from tests.helpers.sounds import tone, wav
from tests.parity import ours
from trainers import trainer
from trainers.weights import huggingface
from trainers.weights.source import Arrays

WORDS = ("the", "cat", "saw", "a", "red", "bird", "and", "an", "old", "dog")
TEXTS = [" ".join(WORDS[(n * k) % len(WORDS)] for k in range(1, 8)) for n in range(1, 41)]
PICTURES = {f"{n:02d}.png": encoded(smooth(9, 12, n)) for n in range(24)}
SOUNDS = {f"{n:02d}.wav": wav(tone(0.4, 300 + 10 * n)) for n in range(24)}


def write_pictures(path: Path) -> None:
    for n, (name, content) in enumerate(PICTURES.items()):
        (path / f"class{n % 2}").mkdir(parents=True, exist_ok=True)
        (path / f"class{n % 2}" / name).write_bytes(content)


def write_sounds(path: Path) -> None:
    path.mkdir()
    write_media(
        path, "beside metadata.csv", SOUNDS, [{"text": ("yes", "no", "yes no")[n % 3], "group": n} for n in range(24)], "audio"
    )


def write_captions(path: Path) -> None:
    path.mkdir()
    write_media(path, "beside metadata.csv", PICTURES, [{"caption": f"a {WORDS[n % 9]} thing"} for n in range(24)], "image")


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the table.

    Attributes:
      experiment: that is trained.
      write: writes the file or folder.
      options: of the command line.
      start: whether it starts from a folder with a vocabulary and a chat template.
      sizes: what the data decide of the experiment, by path.
    """

    experiment: str
    write: Callable[[Path], object]
    options: tuple[str, ...] = ()
    start: bool = False
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)


PAIRS = [{"prompt": text, "chosen": "yes", "rejected": "no"} for text in TEXTS]
LABELS = [{"text": text, "label": f"class{n % 3}"} for n, text in enumerate(TEXTS)]
SCORES = [{"sentence1": text, "sentence2": TEXTS[n - 1], "score": n / 8} for n, text in enumerate(TEXTS)]
LENGTH = ("--data.length", "64")
LINES = {
    "notes.txt": Line("gpt.smollm2_135m", lambda path: path.write_text("\n\n".join(TEXTS)), LENGTH, True, {"data.length": 64}),
    "talks.jsonl": Line(
        "chat.smollm2_lora", lambda path: write_lines(path, conversations(40, 0)), LENGTH, True, {"data.length": 64}
    ),
    "likes.jsonl": Line("chat.smollm2_dpo", lambda path: write_lines(path, PAIRS), LENGTH, True, {"data.length": 64}),
    "reviews.csv": Line(
        "bert.minilm_debian_sections", lambda path: write_csv(path, LABELS), LENGTH, True, {"model.head.labels": 3}
    ),
    "similar.csv": Line(
        "bert.minilm_debian_sections", lambda path: write_csv(path, SCORES), LENGTH, True, {"model.head.labels": 21}
    ),
    "calls": Line(
        "conformer.small_czech", write_sounds, ("--data.seconds", "1.28"), False, {"data.slots": 1, "data.targets_length": 128}
    ),
    "flowers": Line("vit.quickstart", write_pictures, (), False, {"data.channels": 3, "model.head.classes": 2}),
    "captions": Line("multimodal.emoji", write_captions),
}
"""What is trained on each, by the source's name in docs/FINETUNE.md."""


@pytest.fixture
def command(tmp_path, monkeypatch) -> Callable[..., Experiment]:
    """Runs scripts.train up to where training begins, in a folder of its own; returns the experiment that is then trained."""
    begun: list[Experiment] = []
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    for name in ("use_devices", "use_devices_of_all"):
        monkeypatch.setattr(cli, name, lambda *_, **__: None)
    monkeypatch.setattr(trainer, "train", lambda e, *_, **__: begun.append(e) or 0)

    def run(*arguments: object) -> Experiment:
        monkeypatch.setattr(sys, "argv", ["train", *map(str, arguments)])
        assert not train.main()
        return begun[-1]

    return run


def start(folder: Path) -> Path:
    """Writes a decoder of a few numbers, with a vocabulary and a chat template, as a folder of `transformers`."""
    model = changed(registry.tiny(registry.load("chat.smollm2_lora")).model, {"vocab": 325, "layers": 2})
    special = ("<|im_start|>", "<|im_end|>", "[CLS]", "[SEP]", "[UNK]")
    vocabulary = write_vocabulary(folder / "vocabulary", special=special)
    return huggingface.write_folder(Arrays(model, ours.fresh(model, 0), vocabulary), folder / "CHECKPOINT")


@pytest.mark.parametrize("name", LINES)
def test_a_file_of_each_kind_is_trained_on(command, tmp_path, name):
    """The cache is called as the run, holds the file, is in the vocabulary of the weights, and decides what it must."""
    line = LINES[name]
    line.write(tmp_path / name)
    given = ["--train.finetune.init-from", start(tmp_path)] if line.start else []
    e = command(line.experiment, "--from", name, "--workdir", "runs/mine", *line.options, *given)
    manifest = read_manifest(tmp_path / "data/caches/mine")
    assert e.data.cache == "mine" and manifest["kind"] == e.data.kind
    assert str(tmp_path / name) in str(train._sources(manifest))
    values = dict(text.split(": ", 1) for text in registry.lines(e))
    assert {path: json.loads(values[path]) for path in line.sizes} == line.sizes
    if line.start:
        assert manifest["vocabulary"] == 325
    if name == "likes.jsonl":
        assert manifest["reference"] == str(tmp_path / "CHECKPOINT")


def test_every_line_of_the_table_is_tested():
    """The table of docs/FINETUNE.md names these experiments with these sources, and no others."""
    page = (ROOT / "docs/FINETUNE.md").read_text().partition("## Your own file")[2].partition("\n## ")[0]
    cells = [row.split("|")[3].strip(" `").split() for row in page.splitlines() if "| `scripts.train" in row]
    assert {(cell[1], cell[3]) for cell in cells} == {(line.experiment, name) for name, line in LINES.items()}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--from", "nots.txt"), "no such file or folder"),
        (("--from", "notes.txt", "--data.cache", "gpt_small"), "--from notes.txt: there are other data called 'gpt_small'"),
        (("--columns", "text=body"), "--columns 'text=body': is of the data of --from"),
    ],
)
def test_what_does_not_go_together_is_refused(command, tmp_path, arguments, line):
    LINES["notes.txt"].write(tmp_path / "notes.txt")
    with pytest.raises(Exception, match=line) as caught:
        command("gpt.quickstart", "--workdir", "runs/mine", *arguments)
    assert "\n" not in str(caught.value)


def test_other_data_of_the_same_name_stay(command, tmp_path):
    """A second file for the same run is refused before anything is written; the first one again is up to date."""
    for name, text in (("one.txt", "one "), ("two.txt", "two ")):
        (tmp_path / name).write_text("\n\n".join(text * n for n in range(1, 40)))
    arguments = ("gpt.quickstart", "--workdir", "runs/mine", "--data.length", 32)
    command(*arguments, "--from", "one.txt")
    before = read_manifest(tmp_path / "data/caches/mine")
    with pytest.raises(ConfigError, match=r"other data called 'mine'; --data\.cache NAME calls these otherwise"):
        command(*arguments, "--from", "two.txt")
    command(*arguments, "--from", "one.txt")
    assert read_manifest(tmp_path / "data/caches/mine") == before and "mine" not in PREPARED
