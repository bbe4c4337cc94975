"""A run's time is divided into steps that stayed and losses by cause, without gaps."""

import datetime
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from data.paths import ROOT
from tests.parity import goodput as parity
from trainers.monitoring import goodput, history
from trainers.monitoring.goodput import COMPILE, DATA, DOWN, PARTS, RECOMPUTED, SAVE, START, STEPS, WAITING
from trainers.monitoring.ledger import Account, Ledger, arrivals
from trainers.monitoring.observer import READING, SAVING, STEPPING

T0 = 1_767_322_800  # seconds since 1970


def at(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(T0 + seconds, datetime.UTC).isoformat(timespec="milliseconds")


def begin(seconds: float, loaded: float, restored: int | None = None) -> dict[str, Any]:
    return {"event": "start", "time": at(loaded), "began": T0 + seconds, "restored": restored}


def took(since: float, step: int, n: int, **seconds: float) -> dict[str, Any]:
    return {"event": "goodput", "time": at(since), "since": T0 + since, "step": step, "steps": n, "seconds": seconds}


def parts(*events: dict[str, Any], lines: Any = ()) -> dict[str, float]:
    """Seconds by part, without those that are 0; fails if they are not the whole."""
    total = goodput.of_run(events, [{"time": at(then), "step": step} for then, step in lines])
    assert total is not None and set(total.seconds) == set(PARTS)
    assert total.wall == pytest.approx(sum(total.seconds.values()), abs=1e-9)
    return {part: seconds for part, seconds in total.seconds.items() if seconds} | {"n": total.steps}


FIRST = (begin(0, 2), took(0, 0, 0, start=3, compile=2), took(5, 20, 20, steps=10, data=1), took(16, 30, 10, save=1, steps=5))


def test_a_run_that_was_never_interrupted_is_the_sum_of_its_events():
    assert parts(*FIRST) == {START: 3, COMPILE: 2, STEPS: 15, DATA: 1, SAVE: 1, "n": 30}


def test_steps_that_are_done_again_are_productive_once():
    """The run is killed after step 30, and goes on from step 20: five seconds are lost, and the time between the starts. Where
    the checkpoint lies within an event, its steps are lost in proportion."""
    again = (begin(30, 31, 20), took(30, 20, 0, start=2), took(32, 30, 10, steps=6))
    assert parts(*FIRST, *again) == {START: 5, COMPILE: 2, STEPS: 16, DATA: 1, SAVE: 1, RECOMPUTED: 5, DOWN: 8, "n": 30}
    again = (begin(30, 31, 15), took(30, 15, 0, start=2))
    assert parts(*FIRST, *again) == {START: 5, COMPILE: 2, STEPS: 7.5, DATA: 1, SAVE: 1, RECOMPUTED: 7.5, DOWN: 8, "n": 15}
    assert parts(*FIRST, begin(30, 31))[RECOMPUTED] == 15  # no checkpoint was there


def test_going_back_loses_the_steps_too():
    """Within a start the next event tells from which step it goes on."""
    assert parts(*FIRST, took(22, 25, 5, recomputed=1, steps=2)) == {
        **{START: 3, COMPILE: 2, STEPS: 12, DATA: 1, SAVE: 1, RECOMPUTED: 6, "n": 25}
    }


def test_after_a_kill_the_time_is_known_from_the_hosts():
    """The last event is of second 22; the hosts tell of steps 40 and 50, at 24 and 28. The next start goes on from 40: the time
    up to there counts, the time after is lost, and the run is down until the next command."""
    lines = [(4, 5), (24, 40), (28, 50)]
    assert parts(*FIRST, lines=lines) == {START: 3, COMPILE: 2, STEPS: 21, DATA: 1, SAVE: 1, "n": 50}
    again = begin(40, 41, 40)
    assert parts(*FIRST, again, lines=lines) == {
        **{START: 4, COMPILE: 2, STEPS: 17, DATA: 1, SAVE: 1, RECOMPUTED: 4, DOWN: 12, "n": 40}
    }


def test_a_start_that_waited_for_a_lost_process_until_it_ended_was_waiting():
    stop = {"event": "stop", "time": at(32), "step": 40, "exit_code": 75}
    assert parts(*FIRST, stop, lines=[(24, 40)])[WAITING] == 8


def test_a_start_that_never_compiled_is_a_loss():
    """It is killed while it restores: known is when its command began, and when its state was there."""
    assert parts(*FIRST, begin(30, 34, 30), begin(50, 52, 30)) == {
        **{START: 9, COMPILE: 2, STEPS: 15, DATA: 1, SAVE: 1, DOWN: 24, "n": 30}
    }


def test_a_clock_that_was_set_back_loses_no_time():
    """The second start's clock is ten seconds behind: nothing is counted twice or negative, and nothing is down."""
    again = (begin(12, 13, 30), took(12, 30, 0, start=2), took(14, 40, 10, steps=5))
    assert parts(*FIRST, *again) == {START: 5, COMPILE: 2, STEPS: 20, DATA: 1, SAVE: 1, "n": 40}


@pytest.mark.parametrize(
    "broken",
    [
        {"since": "now"},
        {"since": -1},
        {"seconds": [1]},
        {"seconds": {"idle": 1.0}},
        {"seconds": {"steps": -1.0}},
        {"seconds": {"steps": float("nan")}},
        {"steps": True},
        {"step": 3},
    ],
)
def test_events_of_other_types_are_left_out(broken):
    """Also those of parts that no trainer writes, and of more steps than there were."""
    assert not goodput.is_sound(FIRST[2] | broken)
    assert parts(*FIRST[:2], FIRST[2] | broken, took(5, 20, 20, steps=10)) == {START: 3, COMPILE: 2, STEPS: 10, "n": 20}


def test_a_line_names_the_losses_by_size():
    total = goodput.of_run([*FIRST], [])
    assert str(total) == "goodput 68.2% of 22 s: start 13.6%, compile 9.1%, data 4.5%, save 4.5%"
    assert goodput.of_run([begin(0, 1)], []) is None


# --- measuring


def test_time_without_work_belongs_to_what_the_host_does():
    """A wait for rows costs nothing while a step is under way: only what remains of it then is lost."""
    account = Account(0)
    account.enter(10, COMPILE)
    account.enter(30, DATA)
    account.step(35, 60)  # the host reads on at 40, until 70
    account.enter(40, DATA)
    account.step(70, 90)
    account.step(75, 100)  # in flight beside the other
    account.enter(80, SAVE)
    account.until(104)
    assert account.ns == {START: 10, COMPILE: 20, DATA: 5 + 10, STEPS: 25 + 20 + 10, SAVE: 4}
    assert account.now == sum(account.ns.values())


def test_the_first_step_counts_as_compilation_where_it_is_slow():
    """It took 25, the others 10 each."""
    account = Account(0)
    account.step(0, 25)
    account.divide_first()  # there is nothing to compare with
    account.step(25, 35)
    account.step(35, 45)
    account.divide_first()
    assert account.ns == {STEPS: 45}  # it was the only one of the first event
    account = Account(0)
    for began, ended in ((0, 25), (25, 35), (35, 45)):
        account.step(began, ended)
    account.move(5, WAITING)  # which changes nothing about the first
    account.divide_first()
    account.divide_first()
    assert account.ns == {STEPS: 25, COMPILE: 15, WAITING: 5}


class Loss:
    """Stands for a step's loss on some devices."""

    def __init__(self, devices: int = 1):
        self.ready = threading.Event()
        self.data = self
        self.addressable_shards = [self] * devices

    def block_until_ready(self) -> "Loss":
        assert self.ready.wait(60)
        return self


class Clock:
    def __init__(self):
        self.seconds = 100.0

    def ns(self) -> int:
        return round(1e9 * self.seconds)


@pytest.fixture
def start(tmp_path: Path):
    """A start that began two seconds before its ledger, and compiled for three: its clock, and the ledger at step 10."""
    clock = Clock()
    (tmp_path / "run.jsonl").write_text(json.dumps(begin(0, 2, 10)) + "\n")
    ledger = Ledger(tmp_path, T0, 10, 5, clock.ns, lambda: T0 + clock.seconds - 98)
    ledger.enter(COMPILE)
    clock.seconds += 3
    ledger.started()
    yield clock, ledger
    ledger.close(lambda line: None)


def events(ledger: Ledger) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ledger.workdir / "run.jsonl").read_text().splitlines()][1:]


def take(clock: Clock, ledger: Ledger, step: int, read: float, computed: float) -> None:
    """Takes a step: devices wait for rows, then compute."""
    ledger.entered(step - 1, READING)
    clock.seconds += read
    ledger.entered(step - 1, STEPPING)
    loss = Loss()
    ledger.stepped(step, {"loss": loss})
    clock.seconds += computed
    loss.ready.set()
    ledger.settled()


@pytest.mark.integration
def test_a_start_writes_its_parts_at_saves_and_at_its_end(start):
    """Three steps of two seconds, of which half a second each waits for rows; the first takes two more. A save of three seconds
    at step 13 is in the event of the end, which has the run's goodput."""
    clock, ledger = start
    for step in (11, 12, 13):
        take(clock, ledger, step, 0.5, 3.5 if step == 11 else 1.5)
    ledger.entered(13, SAVING)
    clock.seconds += 3
    said: list[str] = []
    ledger.close(said.append)
    first, saved, last = events(ledger)
    assert (first["seconds"], first["since"]) == ({START: 2, COMPILE: 3}, T0)
    assert (saved["seconds"], saved["since"]) == ({DATA: 1.5, STEPS: 4.5, COMPILE: 2}, T0 + 5)
    assert (saved["step"], saved["steps"], last["steps"]) == (13, 3, 0)
    assert (last["seconds"], last["since"], last["wall_s"]) == ({SAVE: 3}, T0 + 13, 16)
    assert last["goodput"] == round(4.5 / 16, 4)
    assert said == ["goodput 28.1% of 16 s: compile 31.2%, save 18.8%, start 12.5%, data 9.4%"]
    assert all(goodput.is_sound(event) for event in (first, saved, last))
    read = history.goodput_of(ledger.workdir, {})
    assert read is not None and (read.share, read.steps) == (4.5 / 16, 3)


def test_events_are_seldom(start):
    """Saves within a second of the last event write none, nor do logs within a minute."""
    clock, ledger = start
    for step in (11, 12):
        take(clock, ledger, step, 0, 0.2)
        ledger.entered(step, SAVING)
        ledger.logged(None)
    assert len(events(ledger)) == 1
    take(clock, ledger, 13, 0, 59)
    ledger.logged(None)
    assert len(events(ledger)) == 1
    take(clock, ledger, 14, 0, 1)
    ledger.logged(None)
    assert [event["steps"] for event in events(ledger)] == [0, 4]


@pytest.mark.integration
def test_a_start_that_goes_back_says_so(start):
    """Two steps are taken, then the restoring takes four seconds, and the first of them is taken again."""
    clock, ledger = start
    for step in (11, 12):
        take(clock, ledger, step, 0, 2)
    clock.seconds += 4
    ledger.rewound(10)
    take(clock, ledger, 11, 0, 2)
    ledger.close(lambda line: None)
    gone, last = events(ledger)[1:]
    assert gone["seconds"] == {STEPS: 4, RECOMPUTED: 4} and (last["step"], last["steps"]) == (11, 1)
    total = history.goodput_of(ledger.workdir, {})
    assert total is not None and (total.seconds[STEPS], total.seconds[RECOMPUTED], total.steps) == (2, 8, 1)


def test_waiting_for_the_rows_of_others_is_no_step(start):
    """Never more than the steps that have not been written yet."""
    clock, ledger = start
    take(clock, ledger, 11, 0, 2)
    ledger.waited_for_others(0.5)
    ledger.waited_for_others(100)
    assert ledger.settled()[STEPS] == 0 and ledger.settled()[WAITING] == 2e9


def test_a_run_that_was_done_stays_as_it_was(tmp_path):
    ledger = Ledger(tmp_path, T0, 10, 5)
    ledger.close(lambda line: pytest.fail(line))
    assert not list(tmp_path.iterdir())


def test_each_device_is_seen_to_arrive():
    """The second one comes after two looks, the first after four."""

    class Shard:
        def __init__(self, looks: int):
            self.looks = looks

        def is_ready(self) -> bool:
            self.looks -= 1
            return self.looks < 0

    ticks = iter(range(1, 100))
    assert arrivals([Shard(3), Shard(1)], lambda: next(ticks), lambda seconds: None) == [2, 1]


# --- beside ml-goodput-measurement


def both(name: str) -> tuple[dict[str, float], dict[str, float], dict[str, Any]]:
    """Seconds by part of a recorded run, here and by the library, whose numbers lie beside the record, with its own fields."""
    folder = ROOT / "tests/fixtures/goodput" / name
    total, _ = parity.ours(folder)
    theirs = json.loads((folder / parity.THEIRS).read_text())
    named: dict[str, float] = {part: sum(theirs["lost_s"].get(key, 0.0) for key in keys) for part, keys in parity.NAMES.items()}
    assert total.wall == pytest.approx(theirs["wall_s"], abs=0.002)
    named[STEPS] = theirs["productive_s"]
    return dict(total.seconds), named, theirs


def test_a_run_that_was_killed_has_the_goodput_that_the_library_computes():
    """A recorded run, killed after step 340, that went on from step 200, and was stopped at 763: every part is the library's,
    but for closing the logs."""
    ours, theirs, fields = both("killed")
    assert fields["disruptions"] == 1 and fields["lost_s"].get("OTHER", 0) < 0.01
    assert ours == pytest.approx(theirs, abs=0.1)


def test_a_restart_that_lost_no_step_is_a_loss_here_alone():
    """The whole record has two kills, and a stop by a signal: what followed it is productive to the library."""
    ours, theirs, fields = both("all")
    assert fields["disruptions"] == 2
    parts_of_the_restart = 11.751 + 28.36 + 13.195  # seconds down, of its start, and of its compilation, from run.jsonl
    assert theirs[STEPS] - ours[STEPS] == pytest.approx(parts_of_the_restart, rel=0.05)
    same = (START, DATA, SAVE, RECOMPUTED)
    assert [ours[part] for part in same] == pytest.approx([theirs[part] for part in same], abs=0.3)


def test_what_the_library_is_given_is_the_record():
    """Its entries have every start, a beginning of every step that was taken, also of those that were lost, in order of time."""
    _, entries = parity.ours(ROOT / "tests/fixtures/goodput/all")
    steps = [entry["step_count"] for entry in entries if "step_count" in entry]
    lost = [number for number in range(1, len(steps)) if steps[number] != steps[number - 1] + 1]
    assert [steps[number] for number in lost] == [200, 1200] and steps[0] == 0 and steps[-1] == 1999
    assert sum("job_start_time" in entry for entry in entries) == 4
    times = [next(x for name, x in entry.items() if name.endswith("_time")) for entry in entries]
    assert times == sorted(times)
