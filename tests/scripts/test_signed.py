"""Every command that opens a trained model opens what its owner signed, and nothing beside it."""

import dataclasses
import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from configs import registry
from models.sharding.params import describe
from scripts.lab import nowcast
from tests.helpers.signatures import keys
from trainers.plan import abstract_model
from trainers.weights import huggingface, init_from, load_any, peft, release, signing, tensor_files
from trainers.weights.source import Arrays

E = registry.tiny(registry.load("chat.smollm2_dpo"))
OPENING = {
    "lab.capacity": ("--checkpoint", "{}"),
    "chat": ("--checkpoint", "{}"),
    "classify": ("--checkpoint", "{}", "a text"),
    "convert": ("to-hf", "{}", "--to", "{}.new"),
    "convert from": ("from", "{}", "--to", "{}.new"),
    "convert from, adapter": ("from", "{}", "--base", "{}", "--to", "{}.new"),
    "convert to-t5x": ("to-t5x", "{}", "--to", "{}.new"),
    "convert to-maxtext": ("to-maxtext", "{}", "--to", "{}.new"),
    "convert to-peft": ("to-peft", "{}", "--to", "{}.new"),
    "embed": ("--checkpoint", "{}", "a text"),
    "evaluate": ("--checkpoint", "{}"),
    "forecast": ("--checkpoint", "{}"),
    "generate": ("--checkpoint", "{}", "a text"),
    "recommend": ("--checkpoint", "{}", "--user", "1"),
    "report": ("{}", "--outputs"),
    "release": ("{}", "--to", "{}.new"),
    "transcribe": ("--checkpoint", "{}", "a.wav"),
    "translate": ("--checkpoint", "{}", "--from", "de", "ein Text"),
}


def weights() -> Arrays:
    shapes = {info.name: info.shape for info in describe(abstract_model(E))}
    return Arrays(E.model, {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()})


@pytest.fixture(scope="module")
def signed(tmp_path_factory) -> tuple[Path, Path]:
    """A release and its owner's public key."""
    room = tmp_path_factory.mktemp("signed")
    e = dataclasses.replace(E, data=dataclasses.replace(E.data, cache=""))
    folder = release.write_weights(weights(), e, room / "m", "step 1")
    private, public = keys(room, "own")
    signing.sign(folder / release.SUMS, private)
    return folder, public


def a_run(folder: Path) -> None:
    (folder / "checkpoints" / "1").mkdir(parents=True)


def a_link_to_a_run(folder: Path) -> None:
    (folder / "checkpoints").write_text("/somewhere/else")


def an_adapter(folder: Path) -> None:
    (folder / peft.CONFIG).write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    tensor_files.write(folder / peft.TENSORS, {}, (), {})


def another_configuration(folder: Path) -> None:
    (folder / huggingface.CONFIG).write_text("{}")


def another_form(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    huggingface.write_folder(weights(), folder)


def without_checksums(folder: Path) -> None:
    (folder / release.SUMS).unlink()


@pytest.fixture(params=[a_run, a_link_to_a_run, an_adapter, another_configuration, another_form, without_checksums])
def changed(request, signed, tmp_path, monkeypatch) -> Path:
    """A signed release to which something was added, or that was replaced; every file left of it is as it was signed."""
    folder, public = signed
    copied = tmp_path / "m"
    copied.mkdir()
    for file in folder.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    monkeypatch.setenv(release.KEY, str(public))
    assert isinstance(load_any.open_model(copied)[1], release.Release)
    request.param(copied)
    return copied


@pytest.mark.parametrize("command", OPENING)
def test_what_was_added_to_a_signed_release_is_refused_by_every_command(command, changed, monkeypatch):
    """In one line, before anything is read from it."""
    name = command.split()[0]
    script = importlib.import_module(f"scripts.{name}")
    monkeypatch.setattr(sys, "argv", [name, *(argument.format(changed) for argument in OPENING[command])])
    monkeypatch.setattr("scripts.cli.use_devices", lambda devices: None)
    runs_alone = command in ("release", "convert to-peft")
    if runs_alone and not (changed / release.SUMS).exists():
        pytest.skip("a run's own folder has no signature")
    with pytest.raises(release.ReleaseError) as caught:
        script.main()
    (line,) = str(caught.value).splitlines()
    assert ("is a release" in line) if runs_alone else "does not list" in line or "only releases" in line
    assert not changed.with_name("m.new").exists()


def test_a_start_of_training_is_refused_as_well(changed):
    """The weights and the mere sizes are refused alike; so is a baseline's comparison, which opens them in the same way."""
    e = E.with_finetune(init_from=str(changed))
    with pytest.raises(release.ReleaseError):
        init_from.model_of(e)
    for opening in (load_any.open_weights, load_any.open_model, lambda path: nowcast.model_scores(path, "test", 0)):
        with pytest.raises(release.ReleaseError):
            opening(changed)


def test_no_command_opens_weights_by_another_way():
    """Commands get weights from trainers/weights/load_any.py, and from a run's own folder where they continue or publish it."""
    here = Path(__file__).parents[2]
    texts = {str(file.relative_to(here)): file.read_text() for file in here.glob("[dst]*/**/*.py")}
    ways = r"(?<!class )\b(HuggingFace|Gguf|Bare|Peft|Release|read_params|read_stored)\("
    using = {name for name, text in texts.items() if not name.startswith("tests") and re.search(ways, text)}
    assert using == {
        "scripts/convert.py",
        "trainers/audit/checks.py",  # compares with checksums
        "trainers/checkpoints/checkpoint.py",
        "trainers/weights/load_any.py",
        "trainers/weights/release.py",
    }
    through = r"\bcli\.opened\w*\(|\bload_any\.open_\w+\(|weights\.load_any import"
    opening = {name for name, text in texts.items() if re.match(r"scripts/(lab/)?\w+\.py", name) and re.search(through, text)}
    # cli.opened itself, pinned packages, tested above, its own run, a start of training
    others = {"scripts/cli.py", "scripts/demo.py", "scripts/lab/nowcast.py", "scripts/quickstart.py", "scripts/train.py"}
    commands = {command.split()[0].replace(".", "/") for command in OPENING} - {"release"}
    assert opening == {f"scripts/{command}.py" for command in commands} | others
