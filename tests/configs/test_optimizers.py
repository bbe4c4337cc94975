"""Schedules: what cannot be is refused when it is written down, in one line with what would do."""

import numpy as np
import pytest

from configs.optimizers import AdamW, ByComponent, Constant, Cosine, Exponential, InverseSqrt, Linear, OfComponent, Sgd, for_steps
from trainers.optimizers.transforms import learning_rate


@pytest.mark.parametrize("kind", [Cosine, Linear, Exponential])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(warmup=10), "warmup=10: must be below steps=10; nearest is 9"),
        (dict(warmup=-1), "warmup=-1: must be 0 or more; nearest is 0"),
        (dict(steps=0), "steps=0: must be 1 or more; nearest is 1"),
        (dict(peak=0.0), "peak=0.0: must be a number above 0"),
        (dict(peak=float("nan")), "peak=nan: must be a number above 0"),
        (dict(floor=1.5), "floor=1.5: must be in [0, 1], a share of the peak; nearest is 1.0"),
        (dict(floor=-0.1), "floor=-0.1: must be in [0, 1], a share of the peak; nearest is 0.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_schedules_are_refused(kind, fields, message):
    """A warm-up that ends with the schedule or after it, negative lengths and rates raise ValueError: Optax would stay at
    the peak without a word, or raise in the middle of a run's start."""
    with pytest.raises(ValueError) as caught:
        kind(**{"peak": 1.0, "steps": 10, **fields})
    assert str(caught.value) == message


def test_other_schedules_are_refused_likewise():
    with pytest.raises(ValueError, match=r"^value=-0\.1: must be a number above 0$"):
        Constant(value=-0.1)
    with pytest.raises(ValueError, match=r"^scale=0\.0: must be a number above 0$"):
        InverseSqrt(scale=0.0)
    with pytest.raises(ValueError, match=r"^warmup=-5: must be 0 or more; nearest is 0$"):
        InverseSqrt(warmup=-5)


def test_an_exponential_cannot_end_at_zero():
    """Optax takes a decay rate of 0 for none at all; a cosine and a line do end at 0."""
    with pytest.raises(ValueError, match=r"floor=0\.0: an exponential never reaches 0; .* such as 0\.01"):
        Exponential(peak=1.0, steps=10, floor=0.0)
    for kind in (Cosine, Linear):
        assert learning_rate(kind(peak=1.0, steps=10, floor=0.0))(10) == pytest.approx(0.0, abs=1e-7)
    assert learning_rate(Exponential(peak=1.0, steps=10, floor=0.01))(10) == pytest.approx(0.01)


def test_one_step_is_enough_to_decay_in():
    """With warmup = steps - 1 the peak is reached at step 9 and the floor at step 10."""
    for kind in (Cosine, Linear, Exponential):
        rate = learning_rate(kind(peak=2.0, steps=10, warmup=9, floor=0.5))
        assert np.asarray([rate(step) for step in (9, 10, 11)]) == pytest.approx([2.0, 1.0, 1.0])


def test_all_schedules_follow_the_run():
    """Schedules of components do so too, if they end with it."""
    optimizer = ByComponent(
        others=Sgd(schedule=Cosine(peak=1.0, steps=100, warmup=10)),
        components=(
            OfComponent(path="a", rule=AdamW(schedule=Linear(peak=2.0, steps=100))),
            OfComponent(path="b", rule=AdamW(schedule=Linear(peak=2.0, steps=70))),
        ),
    )
    longer = for_steps(optimizer, 100, 300)
    assert isinstance(longer, ByComponent) and longer.schedule == Cosine(peak=1.0, steps=300, warmup=10)
    assert [part.rule.schedule for part in longer.components] == [Linear(peak=2.0, steps=300), Linear(peak=2.0, steps=70)]
