"""Decode and score: a model's outputs for held-out examples, by beam search, and what their task makes of them."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.experiment import Experiment
from data.config import Decode
from data.decoding import PREFIX, Decoding
from data.features import Example, Features
from data.kinds import task_of
from data.reading.batches import held_out_batches
from data.task import DataError
from models.parts.decoding import beam_search
from models.protocol import Model, Represents, SequenceToSequence, Writes
from models.sharding.params import with_params
from trainers.evaluation.evaluator import Params
from trainers.plan import input_sharding


class Decoder:
    """Beam search with a model's parameters, or its own way of writing (Writes), compiled once for one shape of batch.

    Args:
      model: with shapes for parameters, on its mesh (trainers.plan.Plan.model).

    Raises:
      DataError: the model turns no source into text, or knows fewer tokens than the decoding's vocabulary has.
    """

    def __init__(self, model: Model, config: Decode, decoding: Decoding[Any]):
        if not isinstance(model, SequenceToSequence | Writes):
            raise DataError(f"models of family {model.c.family!r} do not decode a source into text")
        vocab, rows, mesh = model.target_vocab, config.batch_size, model.scope.mesh
        if vocab < decoding.vocab:
            raise DataError(f"the vocabulary has {decoding.vocab} tokens, more than the {vocab} that the model can produce")
        self.rows, self.decoding = rows, decoding
        self._shardings = {name: input_sharding(model, name, f, rows) for name, f in decoding.source.items()}

        # Every process reads every output: the scores are the same everywhere.
        @functools.partial(jax.jit, out_shardings=mesh and NamedSharding(mesh, P()))
        def search(params: Params, batch: Any, real_B: jax.Array) -> jax.Array:
            whole = with_params(model, params)
            if isinstance(whole, Writes):
                return whole.write(batch, config.beams, config.max_length)
            state = whole.start(batch, config.beams, config.max_length)
            tokens_BKT, _ = beam_search(
                whole,
                state,
                real_B,
                beams=config.beams,
                steps=config.max_length,
                vocab=vocab,
                usable=decoding.vocab,
                alpha=config.length_penalty,
                eos=decoding.eos,
                pad=decoding.pad,
                prefix_BP=batch.get(PREFIX),
            )
            return tokens_BKT[:, 0]

        self._search = search

    def __call__(self, params: Params, examples: Sequence[Any]) -> list[str]:
        """Returns the best output for each example, in their order."""
        encoded = [self.decoding.encode(example) for example in examples]
        # Examples of like length share a batch, so that a batch ends when its examples do.
        order = sorted(range(len(encoded)), key=lambda i: sum(np.count_nonzero(x) for x in encoded[i].values()))
        outputs = [""] * len(encoded)
        sorted_rows = [encoded[i] for i in order]
        for number, batch in enumerate(held_out_batches(sorted_rows, self.decoding.source, self.rows)):
            chosen = order[number * self.rows : (number + 1) * self.rows]
            placed = {name: jax.device_put(x, self._shardings[name]) for name, x in batch.items()}
            tokens_BT = np.asarray(self._search(params, placed, np.arange(self.rows) < len(chosen)))
            for row, i in enumerate(chosen):
                outputs[i] = self.decoding.decode(tokens_BT[row])
        return outputs


class Representer:
    """A model's vectors of rows, compiled once for one shape of batch.

    Args:
      model: with shapes for parameters, on its mesh (trainers.plan.Plan.model).
      features: the arrays of a row that it reads.
      rows: of a batch.
    """

    def __init__(self, model: Model, features: Features, rows: int):
        self.features, self.rows, mesh = features, rows, model.scope.mesh
        self._shardings = {name: input_sharding(model, name, f, rows) for name, f in features.items()}

        @functools.partial(jax.jit, out_shardings=mesh and NamedSharding(mesh, P()))
        def vectors(params: Params, batch: Any) -> jax.Array:
            whole: Any = with_params(model, params)
            return whole.vectors(batch)

        self._vectors = vectors

    def __call__(self, params: Params, examples: Sequence[Example]) -> np.ndarray:
        """Returns a vector of each row [N, M], in their order."""
        found = []
        for batch in held_out_batches(examples, self.features, self.rows):
            placed = {name: jax.device_put(x, self._shardings[name]) for name, x in batch.items()}
            found.append(np.asarray(self._vectors(params, placed), np.float32))
        return np.concatenate(found)[: len(examples)]


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
        self.decoder = Decoder(model, config, self.decoding)
        self.examples = self.decoding.examples(cache, config)
        self._model, self._rows = model, config.batch_size

    @property
    def names(self) -> list[str]:
        """The scalars that a call returns."""
        return [f"eval/{name}" for name in self.decoding.names]

    @property
    def samples(self) -> int:
        """How many held-out examples a call decodes."""
        return len(self.examples)

    def __call__(self, params: Params) -> dict[str, float]:
        """Returns `eval/...` scalars."""
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
        found = decoding.baselines(examples, functools.partial(self.decoder, params))
        if decoding.compared and isinstance(self._model, Represents):
            vectors = Representer(self._model, decoding.compared, self._rows)
            found |= decoding.neighbours(examples, functools.partial(vectors, params))
        return found


EVALUATOR = DecodingEvaluator
