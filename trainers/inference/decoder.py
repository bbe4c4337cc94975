"""Texts that a model writes of sources, by beam search or in its own way."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from data.config import Decode
from data.decoding import PREFIX, Decoding
from data.features import Feature
from data.task import DataError
from models.parts.decoding import beam_search
from models.protocol import Batch, Model, SequenceToSequence, Writes
from models.sharding.params import Params
from trainers.inference.runner import Runner

REAL = "real"  # the array of a batch that says which of its rows are examples


class Decoder:
    """Beam search with a model's parameters, or the model's own way of writing (Writes), compiled for one shape of batch.

    Args:
      model: with shapes for parameters, on its mesh.

    Raises:
      DataError: the model turns no source into text, or knows fewer tokens than the decoding's vocabulary has.
    """

    def __init__(self, model: Model, config: Decode, decoding: Decoding[Any]):
        if not isinstance(model, SequenceToSequence | Writes):
            raise DataError(f"models of family {model.c.family!r} do not decode a source into text")
        vocab = model.target_vocab
        if vocab < decoding.vocab:
            raise DataError(f"the vocabulary has {decoding.vocab} tokens, more than the {vocab} that the model can produce")
        self.decoding = decoding

        def search(model: Any, batch: Batch) -> jax.Array:
            source = {name: batch[name] for name in decoding.source}
            if isinstance(model, Writes):
                return model.write(source, config.beams, config.max_length)
            tokens_BKT, *_ = beam_search(
                model,
                model.start(source, config.beams, config.max_length),
                batch[REAL] > 0,
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

        self._runner = Runner(model, decoding.source | {REAL: Feature((), ())}, config.batch_size, search)

    def __call__(self, params: Params, examples: Sequence[Any]) -> list[str]:
        """Returns the best output for each example, in their order."""
        encoded = [self.decoding.encode(example) for example in examples]
        # Examples of like length share a batch, so that a batch ends when its examples do.
        order = sorted(range(len(encoded)), key=lambda i: sum(np.count_nonzero(x) for x in encoded[i].values()))
        outputs = [""] * len(encoded)
        rows = [encoded[i] | {REAL: np.array(1, np.int32)} for i in order]
        for i, tokens_T in zip(order, self._runner.map(params, rows), strict=True):
            outputs[i] = self.decoding.decode(tokens_T)
        return outputs
