"""Held-out examples are scored by a loss or decoded, as their kind says."""

import pytest

from configs import registry
from data.kinds import task_of
from data.task import DataError, Task


@pytest.mark.parametrize(("name", "kind"), [("gpt.quickstart", "text"), ("bert.base_mnli", "labelled")])
def test_a_kind_whose_examples_are_not_decoded_says_so(tmp_path, name, kind):
    """One line names the kind, before anything is read."""
    with pytest.raises(DataError, match=f"kind '{kind}' are scored by a loss, not decoded"):
        task_of(registry.load(name).data).decoding(tmp_path)


def test_a_kind_without_rows_for_a_loss_says_so(tmp_path):
    """One line names the kind; it is the default of the contract."""
    task = task_of(registry.load("gshard_m4.quickstart").data)
    with pytest.raises(DataError, match="kind 'translation' has no held-out rows that a loss could score"):
        Task.held_out(task, tmp_path, tmp_path, "test", 0)
