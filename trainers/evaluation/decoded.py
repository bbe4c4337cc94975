"""Decode and score: a model's outputs for held-out examples, and the scores that their task gives them."""

import functools
from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from data.kinds import task_of
from models.protocol import Model, Represents
from models.sharding.params import Params
from trainers.inference.decoder import Decoder
from trainers.inference.runner import Runner
from trainers.inference.transcription import UtteranceDecoder


class DecodingEvaluator:
    """The scores of a model's outputs for a held-out split.

    Args:
      model: with shapes for parameters, on its mesh.
      cache: the prepared cache with the examples.
      vocabulary: the folder with the model's vocabularies: the cache, or a release.
    """

    def __init__(self, model: Model, e: Experiment, cache: Path, vocabulary: Path):
        config: Any = e.eval
        self.decoding = task_of(e.data).decoding(vocabulary)
        make = UtteranceDecoder if UtteranceDecoder.suits(model, self.decoding) else Decoder
        self.decoder = make(model, config, self.decoding)
        self.examples = self.decoding.examples(cache, config)
        self.names, self.samples = [f"eval/{name}" for name in self.decoding.names], len(self.examples)
        self._model, self._rows = model, config.batch_size

    def __call__(self, params: Params) -> dict[str, float]:
        scores = self.decoding.scores(self.examples, self.decoder(params, self.examples))
        return {f"eval/{name}": value for name, value in self.decoding.scalars(scores).items()}

    def report(self, params: Params, *, details: bool = False) -> tuple[dict[str, Any], str]:
        """Returns the task's scores with its baselines, and both as text."""
        scores = self.decoding.scores(self.examples, self.decoder(params, self.examples))
        if baselines := self.baselines(params):
            scores["baselines"] = baselines
        return scores, self.decoding.table(scores, details=details)

    def baselines(self, params: Params) -> dict[str, Any]:
        """Returns the task's baselines, those by the model's own vectors among them."""
        decoding, examples = self.decoding, self.examples
        baselines = decoding.baselines(examples, functools.partial(self.decoder, params))
        if decoding.compared and isinstance(self._model, Represents):
            vectors = Runner(self._model, decoding.compared, self._rows, lambda m, batch: m.vectors(batch).astype("float32"))
            baselines |= decoding.neighbours(examples, functools.partial(vectors.map, params))
        return baselines


EVALUATOR = DecodingEvaluator
