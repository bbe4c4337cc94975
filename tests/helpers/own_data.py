"""A model of a few weights on a cache: trained for three steps, opened again, and scored."""

import dataclasses
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment
from data.reading.caches import cache_folder
from models.parts.nested import changed
from models.sharding.layouts import ONE_DEVICE
from tests.helpers.runs import run
from trainers import trainer
from trainers.evaluation.evaluator import open_evaluator
from trainers.inference.load import load
from trainers.weights.load_any import open_model


def scores_of(experiment: str, workdir: Path, model: dict[str, Any], **data: Any) -> dict[str, Any]:
    """Returns the scores on the test of an experiment, tiny and with these changes, after three steps on the data."""
    e = registry.load(experiment)
    tiny = registry.tiny(e)
    e = dataclasses.replace(
        tiny,
        layout=ONE_DEVICE,
        model=changed(tiny.model, model),
        data=dataclasses.replace(e.data, batch_size=2, **data),
        train=dataclasses.replace(tiny.train, finetune=dataclasses.replace(tiny.train.finetune, init_from="")),
        eval=dataclasses.replace(e.eval, split="test", limit=4),
    )
    return reopened_scores(e, workdir)


def reopened_scores(e: Experiment, workdir: Path) -> dict[str, Any]:
    """Trains an experiment to its end, opens it again, and returns its scores."""
    assert run(e, workdir) == trainer.DONE
    opened, weights = open_model(workdir)
    cache = cache_folder(opened.data)
    served = load(weights, opened.execution, ONE_DEVICE)
    scores, _ = open_evaluator(served.model, opened, cache, weights.vocabulary or cache).report(served.params)
    return scores.get("all", scores)
