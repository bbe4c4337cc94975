"""Pipeline schedules as tables: who does what at which tick."""

import numpy as np
import pytest

from models.sharding.layout import LayoutError
from models.sharding.pipelines.schedule import Schedule

CASES = [(2, 1, 3), (4, 1, 8), (4, 1, 2), (3, 2, 6), (4, 3, 8), (8, 2, 64)]


def done(s: Schedule) -> tuple[dict, dict]:
    """({(stage, chunk, microbatch): tick} of forward passes, the same of backward passes)."""
    passes = []
    for of in (s.forward, s.backward):
        ticks = {}
        for t in range(s.ticks + s.lead):
            for stage in range(s.stages):
                active, chunk, microbatch = of(t, stage)
                if active:
                    assert (stage, chunk, microbatch) not in ticks
                    ticks[stage, chunk, microbatch] = t
        passes.append(ticks)
    return passes[0], passes[1]


def test_a_timeline_by_hand():
    """Two stages, three microbatches: one forward and one backward a tick in the steady part, as 1F1B is drawn."""
    assert Schedule(2, 1, 3).timeline() == [["F0", "F1", "F2 B0", "B1", "B2"], ["", "F0 B0", "F1 B1", "F2 B2", ""]]
    assert Schedule(2, 1, 3).timeline(backward=False) == [["F0", "F1", "F2", ""], ["", "F0", "F1", "F2"]]


@pytest.mark.parametrize(("p", "v", "m"), CASES)
def test_everything_is_done_once_and_in_order(p, v, m):
    """Each stage runs every chunk of every microbatch once each way; a tick after the one before it in the model's order."""
    s = Schedule(p, v, m)
    forward, backward = done(s)
    assert len(forward) == len(backward) == p * v * m
    for (stage, chunk, i), t in forward.items():
        if stage:
            assert forward[stage - 1, chunk, i] == t - 1
            assert backward[stage, chunk, i] == backward[stage - 1, chunk, i] - 1
        elif chunk:
            assert forward[p - 1, chunk - 1, i] == t - 1
            assert backward[p - 1, chunk - 1, i] == backward[0, chunk, i] + 1
    assert all(backward[key] >= forward[key] for key in forward)
    assert all(backward[p - 1, v - 1, i] == forward[p - 1, v - 1, i] for i in range(m))  # the loss is in the same tick
    assert [forward[p - 1, v - 1, i] for i in range(m)] == list(s.leaving())


@pytest.mark.parametrize(("p", "v", "m"), CASES)
def test_the_ring_never_overwrites_what_is_still_needed(p, v, m):
    """Between a chunk's forward and backward pass no other input of its stage takes its slot of 2 v p - 1."""
    s = Schedule(p, v, m)
    forward, backward = done(s)
    for (stage, chunk, i), t in forward.items():
        assert s.slot(chunk, i, stage) == t % s.ring
        assert backward[stage, chunk, i] - t < s.ring


@pytest.mark.parametrize(("p", "v", "m"), [case for case in CASES if case[2] >= case[0]])
def test_the_bubble_is_the_papers(p, v, m):
    """Counted from the ticks, idle time over working time is (p - 1) / (v m)."""
    s = Schedule(p, v, m)
    assert s.idle() == pytest.approx((p - 1) / (v * m))
    assert s.bubble == (p - 1) / (v * m)


def test_arrays_and_numbers_agree():
    """The schedule of all stages at once is that of each."""
    s = Schedule(4, 2, 8)
    for t in range(s.ticks + s.lead):
        for of in (s.forward, s.backward):
            rows = np.stack(of(t, np.arange(4)), axis=1)
            assert rows.tolist() == [[int(x) for x in of(t, stage)] for stage in range(4)]


def test_chunks_need_whole_rounds_of_microbatches():
    """With several chunks a stage, microbatches come in rounds of p."""
    with pytest.raises(LayoutError, match=r"microbatches=6 is not a multiple of the 4 stages.* nearest are 4 and 8"):
        Schedule(4, 2, 6)
    with pytest.raises(LayoutError, match=r"nearest is 4$"):
        Schedule(4, 2, 2)
