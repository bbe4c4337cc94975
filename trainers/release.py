"""A release: a folder with all that a trained model needs, readable without this code.

model.safetensors   the parameters by dotted name, float32
experiment.json     the experiment that trained them
source.model, target.model, manifest.json   vocabularies and what the training data was
README.md           the model card
SHA256SUMS          of all the others, in the format of sha256sum
"""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from configs import registry
from configs.schema import Experiment, SyntheticTranslation
from data import paths
from data.batches import cache_folder, read_manifest
from models.common.layout import UserError
from models.common.sharding import flatten, nest
from trainers import checkpoint, state

WEIGHTS, EXPERIMENT, SUMS = "model.safetensors", "experiment.json", "SHA256SUMS"
_DATA_FILES = ("source.model", "target.model", "manifest.json")


class ReleaseError(UserError):
    """A folder that is no sound release, or that cannot be written; one line says why."""


def write(workdir: Path, to: Path, *, step: int | None = None, scores: dict[str, Any] | None = None) -> Path:
    """Writes a run's newest checkpoint (or that of `step`) as a release.

    Args:
      scores: results to put into the card, by name.

    Raises:
      ReleaseError: `to` exists already.
    """
    if to.exists():
        raise ReleaseError(f"{to} exists; choose a new folder")
    experiment, at, params, data = checkpoint.read_params(workdir, step)
    with paths.new_folder(to.absolute()) as folder:
        save_file({k: np.asarray(v) for k, v in flatten(params).items()}, folder / WEIGHTS)
        (folder / EXPERIMENT).write_text(json.dumps(registry.to_json(experiment), indent=1) + "\n")
        if not isinstance(experiment.data, SyntheticTranslation):
            cache = cache_folder(experiment.data)
            check_data(data, cache)
            for name in _DATA_FILES:
                shutil.copyfile(cache / name, folder / name)
        (folder / "README.md").write_text(card(experiment, at, params, folder, scores or {}))
        names = sorted(p.name for p in folder.iterdir())
        (folder / SUMS).write_text("".join(f"{paths.sha256(folder / n)}  {n}\n" for n in names))
    return to


def card(experiment: Experiment, step: int, params: Any, folder: Path, scores: dict[str, Any]) -> str:
    """The model card."""
    total = sum(np.size(x) for x in flatten(params).values())
    lines = [
        f"# {experiment.name}, step {step}",
        "",
        f"{total:,} parameters, float32, in `{WEIGHTS}`; the whole experiment in `{EXPERIMENT}`.",
        "",
    ]
    if (folder / "manifest.json").exists():
        manifest = json.loads((folder / "manifest.json").read_text())
        pairs = sum(language["pairs"] for language in manifest["languages"].values())
        lines += [
            f"Translates {len(manifest['languages'])} languages into English: {', '.join(sorted(manifest['languages']))}.",
            "",
            f"Trained on {pairs:,} pairs of software messages (`{manifest['catalogue']}`, fingerprint "
            f"{manifest['fingerprint'][:16]}): short strings of user interfaces, by volunteers. Other text is out of domain.",
            "",
            "    python -m scripts.translate --checkpoint THIS_FOLDER --from de 'Passwort vergessen?'",
            "",
        ]
    if scores:
        lines += ["| score | value |", "| --- | --- |", *(f"| {k} | {v:.2f} |" for k, v in scores.items()), ""]
    versions = ", ".join(f"{k} {v}" for k, v in checkpoint.versions().items())
    return "\n".join([*lines, f"Written with {versions}.", ""])


def verify(folder: Path) -> None:
    """Raises ReleaseError unless every file is there with its checksum."""
    if not (folder / SUMS).exists():
        raise ReleaseError(f"{folder} is no release: it has no {SUMS}")
    for line in (folder / SUMS).read_text().splitlines():
        want, name = line.split("  ", 1)
        if not (folder / name).exists():
            raise ReleaseError(f"release {folder}: {name} is missing")
        if paths.sha256(folder / name) != want:
            raise ReleaseError(f"release {folder}: {name} is damaged, its SHA-256 is not the one in {SUMS}")


def read(folder: Path) -> tuple[Experiment, dict[str, Any]]:
    """(experiment, parameters on the host) of a release, after `verify`."""
    verify(folder)
    experiment = registry.from_json(json.loads((folder / EXPERIMENT).read_text()))
    with safe_open(folder / WEIGHTS, "numpy") as file:
        params = nest({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - not a dict
    return experiment, params


def check_data(fingerprint: str, cache: Path) -> None:
    """Refuses a cache that was prepared anew since a model was trained on it: its vocabularies may be others."""
    now = read_manifest(cache)["fingerprint"]
    if not fingerprint.startswith(now):
        raise ReleaseError(
            f"the prepared data at {cache} is not what the model was trained on (fingerprint {fingerprint[:12]}, now "
            f"{now[:12]}); use a release, which holds its own vocabularies"
        )


def initial_state(p: state.Plan) -> state.State:
    """A fresh state with the weights of the release that `train.init_from` names.

    Raises:
      ReleaseError: a tensor is missing, too much, or of another shape.
    """
    folder = Path(p.experiment.train.init_from)
    verify(folder)
    if not isinstance(p.experiment.data, SyntheticTranslation):
        for name in ("source.model", "target.model"):
            if paths.sha256(folder / name) != paths.sha256(cache_folder(p.experiment.data) / name):
                raise ReleaseError(
                    f"release {folder}: {name} is another vocabulary than that of {p.experiment.data.cache!r}"
                )
    fresh = state.create(p)
    shapes = {name: x.shape for name, x in flatten(fresh.params).items()}
    shardings = flatten(p.shardings.params)
    with safe_open(folder / WEIGHTS, "numpy") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        for name in sorted(shapes.keys() | found.keys()):
            if shapes.get(name) != found.get(name):
                raise ReleaseError(
                    f"release {folder}: {name} has shape {found.get(name, 'none')}, "
                    f"the model needs {shapes.get(name, 'none')}"
                )

        def load(name: str) -> jax.Array:  # every device reads its own piece, and only that
            piece = file.get_slice(name)
            dtype = p.experiment.train.master_dtype
            return jax.make_array_from_callback(
                shapes[name], shardings[name], lambda index: np.asarray(piece[index], dtype)
            )

        params = nest({name: load(name) for name in shapes})
    return dataclasses.replace(fresh, params=params)


def open_model(path: Path, step: int | None = None) -> tuple[Experiment, dict[str, Any], Path]:
    """(experiment, parameters, folder with vocabularies) of a run's workdir or of a release."""
    if (path / SUMS).exists():
        return *read(path), path
    if (path / "checkpoints").is_dir():
        experiment, _, params, data = checkpoint.read_params(path, step)
        folder = cache_folder(experiment.data)
        check_data(data, folder)
        return experiment, params, folder
    raise ReleaseError(f"{path} is neither a run's workdir (no checkpoints/) nor a release (no {SUMS})")
