"""The stopwatch tells the truth: steps and inputs that take known times, by a clock of the tests' own, are what it reports."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from trainers.measure.meter import WARMUP, WINDOW, Meter, measure, ratio

STEP, SLOW = 3.0, 5.0  # seconds


class Machine:
    """A host and a device in one thread, with a clock that only their work moves; also the executor that waits for outputs.

    A dispatched step begins when the device is done with the one before it. Waiting for an output moves the clock of who waits:
    the watching thread's at once, the host's when it asks for the watch's result.
    """

    def __init__(self):
        self.now = self.free = 0.0  # the host's time; when the device has nothing more to do

    def clock(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def device(self, seconds: Callable[[int], float] = lambda n: STEP) -> Callable[[object], "Output"]:
        """A step that the device takes so long for, of each number; dispatching it takes no time."""
        numbers = iter(range(1_000_000))

        def step(batch: object) -> Output:
            self.free = max(self.free, self.now) + seconds(next(numbers))
            return Output(self, self.free)

        return step

    def host(self, batch: object) -> None:
        """A step that is done when the call returns."""
        self.passes(STEP)

    def after(self, seconds: float) -> Callable[[int], int]:
        """Input that takes so long."""
        return lambda number: self.passes(seconds) or number

    @contextlib.contextmanager
    def watch(self) -> Iterator["Machine"]:
        yield self

    def submit(self, wait: Callable[[object], float], output: object) -> "Watched":
        here, end = self.now, wait(output)
        self.now = here  # the watching thread waited, not the host
        return Watched(self, end)


class Output:
    """The output of a device's computation, which is there at a moment."""

    def __init__(self, machine: Machine, ready: float):
        self.machine, self.ready = machine, ready

    def block_until_ready(self) -> "Output":
        self.machine.now = max(self.machine.now, self.ready)
        return self


class Watched:
    """The time of an output, for which the host waits when it asks."""

    def __init__(self, machine: Machine, end: float):
        self.machine, self.end = machine, end

    def result(self) -> float:
        self.machine.now = max(self.machine.now, self.end)
        return self.end


def meter_of(machine: Machine, step, batch) -> Meter:
    return Meter(step, batch, machine.clock, machine.watch)  # pyright: ignore[reportArgumentType]


def measured(machine: Machine, step, batch=lambda number: number, steps: int = 8) -> dict[str, float]:
    meter = meter_of(machine, step, batch)
    measure([meter], steps)
    assert len(meter.seconds) == steps == len(meter.outputs) == len(meter.stalls)
    return meter.spread()


@pytest.mark.parametrize("of", [Machine.device, lambda machine: machine.host], ids=["device", "host"])
def test_a_step_takes_its_time(of):
    """Median, mean, tenth and ninetieth percentile are the step's time, and nothing stalls."""
    machine = Machine()
    figures = measured(machine, of(machine))
    assert {figures[f"step_s_{name}"] for name in ("median", "mean", "p10", "p90")} == {STEP}
    assert figures["input_stall_share"] == 0


def test_input_beside_a_running_step_is_free():
    """Input that takes less than a step, on a device that computes meanwhile, lengthens nothing and is no stall."""
    machine = Machine()
    figures = measured(machine, machine.device(lambda n: SLOW), machine.after(STEP))
    assert figures["step_s_median"] == SLOW and figures["input_stall_share"] == 0


def test_input_that_a_device_waits_for_is_a_stall():
    """Input that takes longer than a step is what a step takes; the stall is the rest that the step does not hide."""
    machine = Machine()
    figures = measured(machine, machine.device(), machine.after(SLOW))
    assert figures["step_s_median"] == SLOW and figures["input_stall_share"] == pytest.approx(2 / 5)


def test_input_that_nothing_hides_is_a_stall():
    """Where steps are done when they return, all of the input is waited for."""
    machine = Machine()
    figures = measured(machine, machine.host, machine.after(SLOW))
    assert figures["step_s_median"] == 8 and figures["input_stall_share"] == pytest.approx(5 / 8)


def test_slow_steps_show():
    """Every second step three times as slow: the percentiles are the two, the median and the mean lie between."""
    machine = Machine()
    figures = measured(machine, machine.device(lambda n: STEP * (3 if n % 2 else 1)), steps=10)
    assert (figures["step_s_p10"], figures["step_s_median"], figures["step_s_p90"]) == (STEP, 2 * STEP, 3 * STEP)
    assert figures["step_s_mean"] == 2 * STEP


def test_the_warm_up_is_dropped():
    """First steps that are ten times as slow are in no number; the first window's own first step is the last of them."""
    machine = Machine()
    figures = measured(machine, machine.device(lambda n: 10 * STEP if n <= WARMUP else STEP))
    assert figures["step_s_p90"] == figures["step_s_mean"] == STEP


def test_batches_come_in_order():
    """Every batch is asked for once, in order, whatever the windows; the thread and the clock are real."""
    asked: list[int] = []
    meter = Meter(lambda batch: batch, lambda number: asked.append(number) or number)
    meter.window(0)
    meter.window(2)
    assert asked == [0, 1, 2, 3] and meter.outputs == [2, 3] and [len(w) for w in meter.windows] == [0, 2]
    assert all(seconds >= 0 for seconds in meter.seconds)


def test_two_by_turns():
    """Two programs run in windows by turns, no step's time has the other's in it, and their ratio is that of their steps."""
    order: list[str] = []
    machine = Machine()

    def noting(name: str, seconds: float):
        run = machine.device(lambda n: seconds)
        return lambda batch: order.append(name) or run(batch)

    a, b = (meter_of(machine, noting(name, s), machine.after(0.0)) for name, s in (("a", STEP), ("b", SLOW)))
    measure([a, b], WINDOW + 2)
    warm, window, last = WARMUP + 1, WINDOW + 1, 3
    assert "".join(order) == "a" * warm + "b" * warm + "a" * window + "b" * window + "a" * last + "b" * last
    assert set(a.seconds) == {STEP} and set(b.seconds) == {SLOW}
    assert ratio(a, b) == pytest.approx({"median": 5 / 3, "p10": 5 / 3, "p90": 5 / 3})


def test_a_failing_step_is_not_swallowed():
    """An error on the device, which only waiting shows, comes out of the window."""

    class Broken:
        def block_until_ready(self):
            return broken.result()

    broken: Future = Future()
    broken.set_exception(RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        Meter(lambda batch: Broken(), lambda number: number).window(3)
