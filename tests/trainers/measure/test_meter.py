"""The stopwatch tells the truth: steps that sleep and inputs that stall, by known times, are what it reports."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from trainers.measure.meter import WARMUP, WINDOW, Meter, measure, ratio

STEP, SLOW = 0.03, 0.05  # seconds
LATE = 0.012  # by which a sleep may end late on a busy machine, in the median


class Output:
    """What a device computes; there once the device is done."""

    def __init__(self, future: Future):
        self.future = future

    def block_until_ready(self) -> "Output":
        self.future.result()
        return self


def device(seconds: Callable[[int], float] = lambda n: STEP) -> Callable[[object], Output]:
    """A step that a device of its own takes so long for, of each number; dispatching it takes no time."""
    queue, numbers = ThreadPoolExecutor(1), iter(range(1_000_000))
    return lambda batch: Output(queue.submit(time.sleep, seconds(next(numbers))))


def host(batch: object) -> None:
    """A step that is done when the call returns."""
    time.sleep(STEP)


def after(seconds: float) -> Callable[[int], int]:
    """Input that takes so long."""

    def batch(number: int) -> int:
        time.sleep(seconds)
        return number

    return batch


def measured(step, batch, steps: int = 8) -> dict[str, float]:
    meter = Meter(step, batch)
    measure([meter], steps)
    assert len(meter.seconds) == steps == len(meter.outputs) == len(meter.stalls)
    return meter.spread()


@pytest.mark.parametrize("step", [device(), host], ids=["device", "host"])
def test_a_step_takes_as_long_as_it_sleeps(step):
    """Median, tenth and ninetieth percentile are the step's sleep, and nothing stalls."""
    found = measured(step, lambda number: number)
    assert STEP <= found["step_s_median"] < STEP + LATE
    assert STEP - LATE < found["step_s_p10"] <= found["step_s_median"] <= found["step_s_p90"]
    assert found["input_stall_share"] < 0.05


def test_input_beside_a_running_step_is_free():
    """Input that takes less than a step, on a device that computes meanwhile, lengthens nothing and is no stall."""
    found = measured(device(lambda n: SLOW), after(STEP))
    assert SLOW - 0.001 <= found["step_s_median"] < SLOW + LATE
    assert found["input_stall_share"] < 0.1


def test_input_that_a_device_waits_for_is_a_stall():
    """Input that takes longer than a step is what a step takes; the stall is the rest that the step does not hide."""
    found = measured(device(), after(SLOW))
    assert SLOW - 0.001 <= found["step_s_median"] < SLOW + LATE
    assert (SLOW - STEP) / SLOW - 0.1 < found["input_stall_share"] < (SLOW - STEP) / SLOW + 0.15


def test_input_that_nothing_hides_is_a_stall():
    """Where steps are done when they return, all of the input is waited for."""
    found = measured(host, after(SLOW))
    assert STEP + SLOW <= found["step_s_median"] < STEP + SLOW + 2 * LATE
    assert found["input_stall_share"] == pytest.approx(SLOW / (STEP + SLOW), abs=0.1)


def test_slow_steps_show():
    """Every second step three times as slow: the median lies between, the percentiles are the two, the mean is their mean."""
    found = measured(device(lambda n: STEP * (3 if n % 2 else 1)), lambda number: number, 10)
    assert found["step_s_p10"] < STEP + LATE and 3 * STEP - LATE < found["step_s_p90"] < 3 * STEP + 2 * LATE
    assert 1.98 * STEP < found["step_s_mean"] < 2 * STEP + LATE


def test_the_warm_up_is_dropped():
    """First steps that are ten times as slow are in no number; the first window's own first step is the last of them."""
    found = measured(device(lambda n: 10 * STEP if n <= WARMUP else STEP), lambda number: number)
    assert found["step_s_p90"] < 2 * STEP and found["step_s_mean"] < 2 * STEP


def test_batches_come_in_order():
    """Every batch is asked for once, in order, whatever the windows."""
    asked: list[int] = []
    meter = Meter(lambda batch: batch, lambda number: asked.append(number) or number)
    meter.window(0)
    meter.window(2)
    assert asked == [0, 1, 2, 3] and meter.outputs == [2, 3] and [len(w) for w in meter.windows] == [0, 2]


def test_two_by_turns():
    """Two programs run in windows by turns, no step's time has the other's in it, and their ratio is that of their steps."""
    order: list[str] = []

    def noting(name: str, seconds: float):
        run = device(lambda n: seconds)
        return lambda batch: order.append(name) or run(batch)

    a, b = Meter(noting("a", STEP), after(0.0)), Meter(noting("b", SLOW), after(0.0))
    measure([a, b], WINDOW + 2)
    warm, window, rest = WARMUP + 1, WINDOW + 1, 3
    assert "".join(order) == "a" * warm + "b" * warm + "a" * window + "b" * window + "a" * rest + "b" * rest
    found = ratio(a, b)
    assert found["median"] == pytest.approx(SLOW / STEP, rel=0.25)
    assert found["p10"] <= found["p90"] and found["p10"] == pytest.approx(SLOW / STEP, rel=0.35)


def test_a_failing_step_is_not_swallowed():
    """An error on the device, which only waiting shows, comes out of the window."""
    broken: Future = Future()
    broken.set_exception(RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        Meter(lambda batch: Output(broken), lambda number: number).window(3)
