"""Held-out examples are scored by a loss or decoded, as their kind says."""

import pytest

from configs import registry
from data.kinds import task_of
from data.task import DataError


@pytest.mark.parametrize(("name", "kind"), [("gpt.quickstart", "text"), ("bert.base_mnli", "labelled")])
def test_a_kind_whose_examples_are_not_decoded_says_so(tmp_path, name, kind):
    """One line names the kind, before anything is read."""
    with pytest.raises(DataError, match=f"kind '{kind}' are scored by a loss, not decoded"):
        task_of(registry.load(name).data).decoding(tmp_path)


def test_sentences_that_are_translated_have_no_loss_of_their_own(tmp_path):
    with pytest.raises(DataError, match="kind 'translation' has no held-out rows that a loss could score"):
        task_of(registry.load("gshard_m4.quickstart").data).held_out(tmp_path, tmp_path, "test", 0)
