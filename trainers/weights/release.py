"""A release: a folder with everything that a trained model needs, readable without this code.

model.safetensors   the parameters by dotted name, float32
experiment.json     the experiment that trained them
*.model, tokenizer.json ...   vocabularies (data/vocabularies/files.py)
manifest.json       a description of the training data
README.md           the model card
SHA256SUMS          checksums of all other files, in the format of sha256sum
SHA256SUMS.sig      its signature, if there is one (trainers/weights/signing.py)
audit.jsonl         who wrote and signed it (trainers/audit/log.py); nothing reads it but scripts.audit
"""

import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from configs import registry
from configs.experiment import Experiment
from data import paths, untrusted
from data.kinds import task_of
from data.reading.caches import cache_folder, read_manifest
from data.vocabularies import files
from models.errors import UserError
from models.interchange import InterchangeError, tensors
from models.sharding.params import describe
from trainers.audit import log as audit
from trainers.plan import abstract_model
from trainers.runtime.processes import versions
from trainers.weights import tensor_files
from trainers.weights.source import Arrays, Weights, most_stored, pieces

WEIGHTS, EXPERIMENT, SUMS = "model.safetensors", "experiment.json", "SHA256SUMS"
MANIFEST = "manifest.json"
KEY = "SHARDZOO_RELEASE_KEY"
CHECKPOINTS = "checkpoints"  # a run's
# All files that are read from a release, and those by which a folder is of another form.
READ = (
    WEIGHTS,
    EXPERIMENT,
    MANIFEST,
    *files.PATTERNS,
    CHECKPOINTS,
    "config.json",
    "*_config.json",
    "model.bin",
    "*.gguf",
    "*.safetensors",
    "*.safetensors.index.json",
    "*.npz",
    "*.msgpack",
    "*.msgpack.index.json",
    "checkpoint",  # T5X's
    "_METADATA",  # Orbax's, as MaxText's are
    "items",
)


class ReleaseError(UserError):
    """A folder is not a sound release, or cannot be written; the message is one line that says why."""


def write(workdir: Path, to: Path, *, step: int | None = None, scores: dict[str, Any] | None = None) -> Path:
    """Writes a run's newest checkpoint (or that of `step`) as a release.

    Args:
      scores: results to put into the card, by name.

    Raises:
      ReleaseError: `to` exists already, or `workdir` is a release itself.
    """
    from trainers.checkpoints import checkpoint  # Orbax takes a third of a second: reading one need not wait for it

    require_run(workdir)
    experiment, at, params, data = checkpoint.read_params(workdir, step)
    cache = cache_folder(experiment.data) if experiment.data.cache else None
    if cache:
        check_data(data, cache)
    return write_weights(Arrays(experiment.model, params, cache), experiment, to, f"step {at}", scores)


def write_weights(weights: Weights, e: Experiment, to: Path, note: str, scores: dict[str, Any] | None = None) -> Path:
    """Writes weights as a release of this experiment, a piece at a time.

    Args:
      note: the weights' origin, for the card's heading.

    Raises:
      ReleaseError: `to` exists already.
      InterchangeError: a tensor of the model is missing.
    """
    shapes = check_new(weights, e, to)
    with paths.new_folder(to.absolute()) as folder:
        tensor_files.write(folder / WEIGHTS, shapes, ((k, pieces(weights, k)) for k in shapes), {})
        (folder / EXPERIMENT).write_text(json.dumps(registry.to_json(e), indent=1) + "\n")
        if weights.vocabulary:
            files.copy(weights.vocabulary, folder)
            if (manifest := weights.vocabulary / MANIFEST).exists():
                shutil.copyfile(manifest, folder / MANIFEST)
        total = sum(map(math.prod, shapes.values()))
        (folder / "README.md").write_text(card(e, note, total, folder, scores or {}))
        names = sorted(file.name for file in folder.iterdir())
        (folder / SUMS).write_text("".join(f"{paths.sha256(folder / n)}  {n}\n" for n in names))
    audit.record("release", to, experiment=e.name, note=note, command=audit.command(), files=audit.digests(to, SUMS))
    return to


def check_new(weights: Weights, e: Experiment, to: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all parameters of a release that may be written; raises as `write_weights` does."""
    if to.exists():
        raise ReleaseError(f"{to} exists; choose a new folder")
    shapes = {info.name: info.shape for info in describe(abstract_model(e))}
    if wrong := tensors.problems(shapes, {k: v for k, v in weights.shapes.items() if k in shapes}):
        raise InterchangeError(f"the weights lack what the model needs: {wrong}")
    return shapes


def card(e: Experiment, note: str, total: int, folder: Path, scores: dict[str, Any]) -> str:
    """Returns the model card."""
    lines = [
        f"# {e.name}, {note}",
        "",
        f"{total:,} parameters, float32, in `{WEIGHTS}`; the whole experiment in `{EXPERIMENT}`.",
        "",
    ]
    if (folder / MANIFEST).exists():
        manifest = read_manifest(folder)
        lines += [*task_of(e.data).card(manifest), ""]
    if scores:
        lines += ["| score | value |", "| --- | --- |", *(f"| {k} | {v:.2f} |" for k, v in scores.items()), ""]
    written_with = ", ".join(f"{k} {v}" for k, v in versions().items())
    return "\n".join([*lines, f"Written with {written_with}.", ""])


def verify(folder: Path, key: Path | None = None) -> None:
    """Compares a release with its checksums, and those with their signature if there is a key to check it with.

    Args:
      key: a public key; None compares checksums alone.

    Raises:
      ReleaseError: a file has not its checksum, or one that is read, or would be from a folder of another form, is not listed.
      SignatureError: SHA256SUMS is not what the key's owner signed.
    """
    sums = _sums(folder)
    if key:
        from trainers.weights import signing  # here, because few releases are signed

        signing.check(folder / SUMS, key)
    unlisted = sorted({file.name for pattern in READ for file in folder.glob(pattern)} - sums.keys())
    if unlisted:
        raise ReleaseError(f"release {folder}: {SUMS} does not list {', '.join(unlisted)}, which would be read unchecked")
    for name, want in sums.items():
        if paths.sha256(untrusted.member(folder, name, ReleaseError)) != want:
            raise ReleaseError(f"release {folder}: {name} is damaged, its SHA-256 is not the one in {SUMS}")


def require_run(folder: Path) -> None:
    """Raises ReleaseError for a release: what lies under a run's names beside its files was signed by nobody."""
    if (folder / SUMS).exists():
        raise ReleaseError(f"{folder} is a release ({SUMS}), expected a run's workdir")


def owner() -> Path | None:
    """Returns the public key that $SHARDZOO_RELEASE_KEY names; None where it is not set."""
    named = os.environ.get(KEY)
    return Path(named).expanduser() if named else None


def _sums(folder: Path) -> dict[str, str]:
    """Returns the checksums that a release lists, by file name."""
    sums: dict[str, str] = {}
    for number, line in enumerate(untrusted.read_text(folder / SUMS, ReleaseError).removesuffix("\n").split("\n"), 1):
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if not match or match[2] in sums:
            raise ReleaseError(f"release {folder}: line {number} of {SUMS} is damaged: {line[:100]!r}")
        if Path(match[2]).name != match[2]:
            raise ReleaseError(f"release {folder}: {SUMS} names {match[2][:100]!r}, which is no file of the folder")
        sums[match[2]] = match[1]
    return sums


def check_data(fingerprint: str, cache: Path) -> None:
    """Raises ReleaseError for a cache that was prepared anew after a model was trained on it: its vocabularies may differ."""
    now = read_manifest(cache)["fingerprint"]
    if not fingerprint.startswith(now):
        raise ReleaseError(
            f"the prepared data at {cache} is not what the model was trained on (fingerprint {fingerprint[:12]}, now "
            f"{now[:12]}); use a release, which holds its own vocabularies"
        )


class Release:
    """A release as weights to start from (see trainers.weights.source): tensors are read a piece at a time."""

    def __init__(self, folder: Path):
        verify(folder, owner())
        self.folder = folder
        self.experiment = registry.from_json(untrusted.read_json(folder / EXPERIMENT, ReleaseError))
        self.config = self.experiment.model
        # Of pictures there is no vocabulary, but the manifest names the classes.
        self.vocabulary = folder if files.listed(folder) or (folder / MANIFEST).exists() else None
        self._file = tensor_files.TensorFile(folder / WEIGHTS)
        self._file.require_floats(self._file.shapes)
        self.shapes = self._file.shapes
        self.stored = most_stored((dtype.name, self.shapes[name]) for name, dtype in self._file.dtypes.items())
        with untrusted.damage(f"release {folder}: {EXPERIMENT}", ReleaseError):  # sizes that are no model's fail anywhere
            shapes = {info.name: info.shape for info in describe(abstract_model(self.experiment))}
        if wrong := tensors.problems(shapes, self.shapes):
            raise ReleaseError(f"release {folder}: {WEIGHTS} has not the parameters of {EXPERIMENT}'s model: {wrong}")

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """Returns a piece of the parameter of this name; raises InterchangeError if one of its numbers is NaN or infinite."""
        piece = self._file(name)[index]
        tensors.check_finite(piece, f"{self._file.path}: {name}")
        return piece
