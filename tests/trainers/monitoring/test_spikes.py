"""A spike of the loss sends a run back to a checkpoint before it."""

from typing import Any

import pytest

from configs.experiment import LocalTier
from tests.helpers.runs import changed_steps, curve, events, run, with_train
from trainers import trainer


@pytest.mark.integration
def test_a_spike_sends_the_run_back_and_past_its_batches(small, tmp_path, monkeypatch, capsys):
    """Batches 8 and 9 spike: the run goes back from step 9 to checkpoint 6 and takes batches 10, 11, ... from there; a run that
    is stopped after it and goes on logs the same numbers, also with local checkpoints of every step."""
    asked: list[int] = []

    class Batches(trainer.Batches):
        def __call__(self, step: int) -> Any:
            asked.append(step)
            return super().__call__(step)

    monkeypatch.setattr(trainer, "Batches", Batches)
    changed_steps(
        monkeypatch,
        lambda call, state, metrics: (state, metrics | {"loss": metrics["loss"] * (9.0 if asked[-1] in (8, 9) else 1.0)}),
    )
    e = with_train(small, steps=12, log_every=1, checkpoint={"every": 3}, faults={"spike": 3.0, "spike_skip": 4})
    assert run(e, tmp_path / "whole") == trainer.DONE
    assert asked == [*range(9), *range(10, 16)]
    assert "going back to step 6, and from there past 4 batches" in capsys.readouterr().out
    (rewind,) = events(tmp_path / "whole", "rewind")
    assert (rewind["at"], rewind["to"], rewind["skip"]) == (9, 6, 4)
    assert [line["step"] for line in curve(tmp_path / "whole")] == list(range(1, 13))

    for steps in (10, 12):
        tier = LocalTier(every=1, folder=str(tmp_path / "host"))
        assert run(with_train(e, steps=steps, checkpoint={"local": tier}), tmp_path / "stopped") == trainer.DONE
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")
