"""Prepares caches of preference pairs: the weights that a run starts from say how likely each answer is (DPO's reference).

The log-probabilities are computed once, and stored with the pairs: a run then keeps no second model, whether it trains all
parameters, adapters or a quantised base, and under every layout.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from data import paths
from data.chat import cache as maker
from data.chat import encoding
from data.chat.encoding import Counts
from data.chat.settings import Preferences
from data.features import positions
from data.packages import fetch
from data.packages.weights import WEIGHTS, fetch_weights, weights_folder
from data.reading import packing
from data.stages import Progress, stage
from data.task import DataError
from data.vocabularies import files
from data.vocabularies.chat_templates import ChatEncoder
from models.sharding.layouts import ONE_DEVICE
from scripts import cli

_RECORD, _STEP = "reference.json", 64  # rows are as long as a multiple of _STEP: few programs are compiled


def located(settings: Preferences, root: Path, progress: Progress) -> Preferences:
    """Returns the settings with the reference's folder, fetched if it is named; a path is made absolute."""
    if settings.reference in WEIGHTS and not Path(settings.reference).exists():
        fetch_weights(settings.reference, root, progress)
        return settings
    return dataclasses.replace(settings, reference=str(Path(settings.reference).expanduser().resolve()))


def score(settings: Preferences, root: Path, progress: Progress) -> Path:
    """Writes what the reference says of each pair, unless it is written.

    Returns:
      The folder, `data.chat.cache.reference_folder`.

    Raises:
      DataError: the weights have no vocabulary with a chat template.
    """
    named = settings.reference in WEIGHTS and not Path(settings.reference).exists()
    source = weights_folder(settings.reference, root) if named else Path(settings.reference)
    folder = maker.reference_folder(settings, root)
    inputs = paths.digest([maker.FORMAT, dataclasses.asdict(settings), _state(source), maker.state_of_file(settings)])
    if (folder / _RECORD).exists() and json.loads((folder / _RECORD).read_text())["inputs"] == inputs:
        return folder
    fetch.fetch(maker.packages_of(settings), root / "packages", progress)

    cli.use_devices(ONE_DEVICE)
    from trainers.inference.load import load

    e, weights = cli.opened(source)
    if weights.vocabulary is None:
        raise DataError(f"{source} has no vocabulary, of which preference pairs could be made")
    with stage("reference", progress), paths.new_folder(folder) as new:
        files.copy(weights.vocabulary, new)
        encoder, counts = ChatEncoder(new), Counts()
        records = list(maker.pairs_of(settings, root))
        known = {id(r): sides for r, *sides in encoding.fitting_pairs(records, encoder, settings.length, counts)}
        served = load(weights, e.execution)
        logps = log_probabilities(served.model, served.params, [side for sides in known.values() for side in sides])
        of_pair = dict(zip(known, zip(logps[::2], logps[1::2], strict=True), strict=True))
        lines = (json.dumps(of_pair.get(id(record))) for record in records)
        (new / maker.SCORES).write_text("".join(f"{line}\n" for line in lines))
        (new / _RECORD).write_text(json.dumps({"weights": str(source), "inputs": inputs}))
    return folder


def log_probabilities(model: Any, params: dict[str, Any], examples: list[packing.Example], rows: int = 4) -> list[float]:
    """Returns the log-probability of what is learned of each example, which has a row of its own."""
    import jax

    from models.protocol import Batch, Context
    from trainers.inference.runner import Runner

    def likelihoods(model: Any, batch: Batch) -> jax.Array:
        def likelihood(row: Batch) -> jax.Array:
            loss = model.loss({name: x[None] for name, x in row.items()}, Context.evaluation())
            return -loss.metrics["cross_entropy"].sum

        return jax.vmap(likelihood)(batch)

    names = ("tokens", "segments", "positions", "predicted")
    runner = Runner(model, positions(-1, *names), rows, likelihoods)
    logps = np.zeros(len(examples))
    order = sorted(range(len(examples)), key=lambda i: len(examples[i][0]))
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        length = -(-max(len(examples[i][0]) for i in chosen) // _STEP) * _STEP
        batch = {name: np.zeros((rows, length), np.int32) for name in names}
        for row, i in enumerate(chosen):
            ids, predicted = examples[i]
            n = len(ids)
            batch["tokens"][row, :n], batch["predicted"][row, :n] = ids, predicted
            batch["segments"][row, :n], batch["positions"][row, :n] = 1, np.arange(n)
        logps[chosen] = runner(params, batch)[: len(chosen)]
    return logps.tolist()


def _state(source: Path) -> list[Any]:
    """Returns what changes when weights change: names, sizes and times of their files."""
    listed = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in listed]
