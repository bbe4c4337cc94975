"""Held-out sentences as rows that a loss scores."""

import numpy as np

from data.kinds import task_of
from data.translation.config import TranslationData
from tests.helpers.caches import write_translation_cache


def test_held_out_sentences_are_packed_with_their_ends(tmp_path):
    """Every sentence is once in the rows, both sides with their end; a limit takes as many of each language."""
    write_translation_cache(tmp_path, {"de": 3, "es": 2})
    task = task_of(TranslationData(cache="toy", batch_size=2, source_length=64, target_length=64))
    held_out = task.held_out(tmp_path / "toy", tmp_path / "toy", "test", 0)
    assert held_out.count == 8
    segments = sum(len(np.unique(row["targets_segments"][row["targets_segments"] > 0])) for row in held_out.rows)
    assert segments == 8 == sum(len(np.unique(row["inputs_segments"][row["inputs_segments"] > 0])) for row in held_out.rows)
    eos = task.decoding(tmp_path / "toy").eos
    assert sum(int(np.sum(row["targets"] == eos)) for row in held_out.rows) == 8
    assert task.held_out(tmp_path / "toy", tmp_path / "toy", "test", 2).count == 2
