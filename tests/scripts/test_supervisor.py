"""The supervisor of a run, as hosts are lost and come back: with hosts, a run and a clock that are made up."""

import dataclasses
import errno
import itertools
import json
import os
import random
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.launching import alive, supervisor
from scripts.launching.supervisor import AGAIN, REFUSED, STUCK, Supervised, Supervisor
from tests.helpers.waiting import wait_until

FINAL = (0, 2, 74, 76, 77)
STEP, START, EVERY = 1.0, 5.0, 10  # seconds of a step and of a start, steps between saves


class World:
    """Hosts that run a made-up training: after START seconds a step each second, a save at each multiple of EVERY, and the end
    at `steps`. Processes whose run has lost one hang, unless they are to notice it.

    Attributes:
      now: the time, in seconds.
      away: hosts that are not at hand.
      misfits: the exit code of starts on so many hosts.
      script: (time, what happens then), to be called in order.
    """

    def __init__(
        self, folder: Path, hosts: int, steps: int, usable: Sequence[int] = (1, 2, 4), restarts=1000, saves=True, **fields
    ):
        self.names, self.steps, self.now, self.away = [f"h{n}" for n in range(hosts)], steps, 0.0, set()
        self.processes: dict[str, int | None] = {}
        self.stopped: set[str] = set()  # processes that hear no SIGTERM, and give no sign of life
        self.misfits: dict[int, int] = {}
        self.signs: Path | None = None
        self.script: list = []
        self.used: list[int] = []
        self.told: list[int] = []
        self.began, self.step = 0.0, 0
        self.back: dict[str, float] = {}
        (folder / "checkpoints").mkdir(parents=True)
        self.checkpoints = folder / "checkpoints"
        commands = {n: ["train", str(n)] for n in usable}
        self.run = Supervised(
            workdir=str(folder),
            checkpoints=str(self.checkpoints),
            commands=commands,
            meshes={n: f"data {n}" for n in usable},
            variables={},
            final=FINAL,
            restarts=restarts,
            saves=saves,
            **fields,
        )
        self.supervisor = Supervisor(self.run, self, lambda: self.now, self.sleep)

    # --- Hosts

    def at_hand(self) -> list[str]:
        return [name for name in self.names if name not in self.away]

    def start(self, hosts, command, variables) -> None:
        assert None not in self.processes.values(), "the last start has not ended"
        assert command == ["train", str(len(hosts))] and not self.away & {*hosts}
        self.signs = Path(variables[alive.VARIABLE]) if variables else None
        self.processes, self.stopped = dict.fromkeys(hosts), set()
        self.used.append(len(hosts))
        self.began, self.step = self.now, max(0, self.run.newest())

    def codes(self) -> dict[str, int | None]:
        return dict(self.processes)

    def signal(self, number: int) -> None:
        self.told.append(number)
        for name in [name for name, code in self.processes.items() if code is None]:
            if number == signal.SIGKILL:
                self.processes[name] = -number
            elif self.whole and name not in self.stopped:
                self.save()
                self.processes[name] = AGAIN

    def lost(self, hosts) -> None:
        for host in hosts:
            if host in self.back:
                self.away.add(host)
                at = self.now + self.back[host]
                self.script.append((at, lambda: self.away.discard(host)))
                self.script.sort(key=lambda item: item[0])

    # --- the training, and what befalls it

    @property
    def whole(self) -> bool:
        return all(code in (None, AGAIN) for code in self.processes.values())

    def save(self) -> None:
        (self.checkpoints / str(self.step)).mkdir(exist_ok=True)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        while self.script and self.script[0][0] <= self.now:
            self.script.pop(0)[1]()
        if code := self.misfits.get(len(self.processes)):
            self.processes = dict.fromkeys(self.processes, code)
        running = [name for name, code in self.processes.items() if code is None]
        for number, name in enumerate(self.processes if self.signs and self.signs.is_dir() else ()):
            if name in running and name not in self.stopped:
                os.utime(f"{self.signs}/{number}", ns=(now := round(self.now * 1e9), now))
        if len(running) == len(self.processes) and not self.stopped:
            while self.step < self.steps and self.now >= self.began + START + STEP:
                self.began += STEP
                self.step += 1
                if self.step % EVERY == 0 or self.step == self.steps:
                    self.save()
            if self.step == self.steps:
                self.processes = dict.fromkeys(self.processes, 0)

    def kill(self, number: int) -> None:
        if (name := self.names[number]) in self.processes and self.processes[name] is None:
            self.processes[name] = -signal.SIGKILL

    def end_with(self, *codes: int) -> None:
        self.processes = dict(zip(self.processes, codes, strict=True))

    def events(self) -> list[dict]:
        return [json.loads(line) for line in (Path(self.run.workdir) / supervisor.LOG).read_text().splitlines()]


def test_a_run_that_loses_nothing_is_started_once(tmp_path):
    world = World(tmp_path, 4, 25)
    assert world.supervisor.supervise() == 0 and world.used == [4]
    assert [event["event"] for event in world.events()] == ["start", "end"]


def test_a_lost_host_is_left_out_at_once_and_taken_in_at_the_next_save(tmp_path, capsys):
    """One of four hosts dies at step 14, to be back 12 seconds later: two go on from step 10 after the two seconds that others
    get, and after the save of step 20 all four go on from the step at which the two stopped."""
    world = World(tmp_path, 4, 40)
    world.back = {"h1": 12.0}
    world.script = [(START + 14.5, lambda: world.kill(1))]
    assert world.supervisor.supervise() == 0 and world.used == [4, 2, 4]
    starts = [event for event in world.events() if event["event"] == "start"]
    assert [start["newest"] for start in starts] == [-1, 10, 20]
    assert starts[1]["hosts"] == ["h0", "h2"] and 2 <= starts[1]["seconds"] < 2.5 and "seconds" not in starts[2]
    lost = [event for event in world.events() if event["event"] == "lost"]
    assert [(event["hosts"], event["codes"]) for event in lost] == [(["h1"], {"h1": -9})]
    assert world.told.count(signal.SIGTERM) == 1
    assert "started on 2 hosts, data 2, 2." in capsys.readouterr().out


def test_a_process_that_hangs_is_lost_when_the_others_have_ended(tmp_path):
    """The others name it and end with 75; what still runs ten seconds later is killed, and its host is not used for now."""
    world = World(tmp_path, 4, 40)
    world.back = {"h0": 1000.0, "h1": 1000.0, "h3": 1000.0}
    world.script = [(20, lambda: (world.stopped.add("h3"), world.end_with(75, 75, 75, None)))]  # pyright: ignore
    assert world.supervisor.supervise() == 0 and world.used == [4, 2]
    assert world.away == {"h3"} and signal.SIGKILL in world.told


def test_a_host_that_is_lost_while_the_run_was_asked_to_end_is_lost(tmp_path):
    """Two of four hosts run, and are asked to end after a save, since the others are back. One dies then: the rest gets two
    seconds, not the five minutes of an orderly end, and the next start does without it."""
    world = World(tmp_path, 4, 60)
    world.away, world.back = {"h2", "h3"}, {"h0": 1000.0}
    world.script = [(12, world.away.clear)]
    tell = world.signal

    def dies(number: int) -> None:
        if number == signal.SIGTERM and world.used == [2]:
            world.processes["h0"] = -signal.SIGKILL
        tell(number)

    world.signal = dies
    assert world.supervisor.supervise() == 0 and world.used == [2, 2]
    lost = [event for event in world.events() if event["event"] == "lost"]
    assert [(event["hosts"], event["codes"]) for event in lost] == [(["h0"], {"h0": -9})]
    starts = [event for event in world.events() if event["event"] == "start"]
    assert starts[1]["hosts"] == ["h1", "h2"] and starts[1]["seconds"] < 3


def test_a_process_that_ends_by_the_supervisors_own_signal_is_not_lost(tmp_path):
    """As one does that has not come to where it notices SIGTERM."""
    world = World(tmp_path, 2, 30, usable=(1, 2))
    world.away = {"h1"}
    world.script = [(12, world.away.clear)]

    def tell(number: int) -> None:
        world.save()
        world.processes = dict.fromkeys(world.processes, -number)

    world.signal = tell
    assert world.supervisor.supervise() == 0 and world.used == [1, 2]
    assert not [event for event in world.events() if event["event"] == "lost"]


def test_hosts_that_come_back_are_taken_in_at_once_where_a_run_saves_only_when_asked(tmp_path):
    world = World(tmp_path, 2, 30, usable=(1, 2), saves=False)
    world.away = {"h0"}
    world.script = [(START + 3.5, world.away.clear)]
    assert world.supervisor.supervise() == 0 and world.used == [1, 2]
    assert [event["newest"] for event in world.events() if event["event"] == "start"] == [-1, 3]


def test_a_host_that_leaves_again_before_the_save_is_not_waited_for(tmp_path):
    world = World(tmp_path, 2, 30, usable=(1, 2))
    world.away = {"h1"}
    world.script = [(7, world.away.clear), (9, lambda: world.away.add("h1"))]
    assert world.supervisor.supervise() == 0 and world.used == [1]


def test_no_hosts_are_waited_for(tmp_path, capsys):
    """With fewer hosts than the smallest mesh needs the supervisor waits, and says so once."""
    world = World(tmp_path, 4, 10, usable=(2, 4))
    world.away = {"h0", "h1", "h2"}
    world.script = [(100, lambda: world.away.discard("h0"))]
    assert world.supervisor.supervise() == 0 and world.used == [2]
    assert capsys.readouterr().out.count("waiting for hosts: 1 at hand, 2 needed") == 1


@pytest.mark.parametrize("code", FINAL[1:])
def test_a_final_exit_code_ends_the_supervision(tmp_path, code):
    """Whichever process has it; the others' 75 follows from it."""
    world = World(tmp_path, 2, 40, usable=(1, 2))
    world.script = [(8, lambda: world.end_with(75, code))]
    assert world.supervisor.supervise() == code and world.used == [2]


def test_a_mesh_that_is_refused_is_left_out_and_the_next_smaller_one_taken(tmp_path, capsys):
    """Three of four hosts might go on, but the start is refused: two do, and four after the next save. After the second loss
    three are not tried again. The two losses alone use up restarts."""
    world = World(tmp_path, 4, 60, usable=(1, 2, 3, 4), unproven=(3,), restarts=2)
    world.back, world.misfits = {"h1": 20.0, "h2": 20.0}, {3: REFUSED}
    world.script = [(START + 14.5, lambda: world.kill(1)), (START + 60, lambda: world.kill(2))]
    assert world.supervisor.supervise() == 0 and world.used == [4, 3, 2, 4, 2]
    refused = [event for event in world.events() if event["event"] == "refused"]
    assert [(event["mesh"], event["exit_code"]) for event in refused] == [("data 3", REFUSED)]
    assert "data 3 does not fit: 3 hosts are not tried again" in capsys.readouterr().out


def test_the_last_mesh_that_might_not_fit_is_followed_by_one_that_does(tmp_path):
    """Five, four and three of six hosts are refused one after the other."""
    world = World(tmp_path, 6, 40, usable=(1, 2, 3, 4, 5, 6), unproven=(4, 5))
    world.away, world.misfits = {"h5"}, {5: REFUSED, 4: REFUSED}
    assert world.supervisor.supervise() == 0 and world.used == [5, 4, 3]


@pytest.mark.parametrize("hosts", [2, 4])
def test_what_is_refused_on_a_mesh_that_fits_ends_the_supervision(tmp_path, hosts):
    """Neither on all hosts nor on a divisor of them would fewer hosts change anything."""
    world = World(tmp_path, hosts, 40, usable=(1, 2, 3, 4), unproven=(3,))
    world.misfits = {hosts: REFUSED}
    assert world.supervisor.supervise() == REFUSED and world.used == [hosts]


def test_a_mesh_on_which_a_run_fails_twice_before_it_saves_is_left_out(tmp_path):
    """Whatever the error is, two go on, and the run does not end after so many starts that saved nothing."""
    world = World(tmp_path, 4, 40, usable=(1, 2, 3, 4), unproven=(3,))
    world.away, world.misfits = {"h3"}, {3: 1}
    assert world.supervisor.supervise() == 0 and world.used == [3, 3, 2]


def test_a_mesh_on_which_the_run_got_further_is_kept(tmp_path):
    """Hosts die again and again before the next save: three are used whenever there are three."""
    world = World(tmp_path, 3, 40, usable=(1, 2, 3), unproven=(3,))
    world.script = [(START + at, lambda: world.kill(1)) for at in (15, 23, 31, 39)]
    assert world.supervisor.supervise() == 0 and {*world.used} == {3} and len(world.used) == 5


@pytest.mark.parametrize("hosts", [1, 4])
def test_a_process_without_a_sign_of_life_is_lost(tmp_path, hosts):
    """The others wait for it and say nothing, or there are none: it is missed after the limit, and what is left is killed."""
    world = World(tmp_path, hosts, 40, silence=30)
    name = world.names[-1]
    world.back = {name: 15.0}
    world.script = [(START + 14.5, lambda: world.stopped.add(name))]
    assert world.supervisor.supervise() == 0 and world.used == ([1, 1] if hosts == 1 else [4, 2, 4])
    (lost,) = [event for event in world.events() if event["event"] == "lost"]
    assert (lost["hosts"], lost["codes"]) == ([name], {})
    end = next(event for event in world.events() if event["event"] == "end")
    assert end["codes"] == dict.fromkeys(world.names, -signal.SIGKILL) and not (tmp_path / "alive").exists()


def test_a_supervisor_that_was_stopped_itself_misses_nobody(tmp_path):
    """An hour passes for it between two looks, and no process had the time to give a sign: the run goes on."""
    world = World(tmp_path, 2, 40, usable=(1, 2), silence=30)
    world.script = [(START + 14.5, lambda: setattr(world, "now", world.now + 3600))]
    assert world.supervisor.supervise() == 0 and world.used == [2]


def test_a_process_touches_its_file_until_the_supervisor_removes_it(tmp_path):
    signs = alive.Signs(tmp_path / "alive", 2)
    assert [signs.silent(1, 0.5) for _ in range(4)] == [0, 0.5, 1, 1.5] and signs.silent(1, 100) == 2.5
    thread = alive.tell({alive.VARIABLE: str(tmp_path / "alive"), "JAX_PROCESS_ID": "1"}, beat=0.01)
    assert thread
    wait_until(lambda: signs.silent(1, 1) == 0, "a sign of life has not come")
    assert signs.silent(0, 1) == 0 and signs.silent(0, 1) == 1 and signs.silent(7, 1) == 0
    signs.close()
    thread.join()
    assert not (tmp_path / "alive").exists() and alive.tell({alive.VARIABLE: str(tmp_path / "alive")}) is None


def test_a_full_disk_ends_neither_the_run_nor_its_log(tmp_path, monkeypatch, capsys):
    """From the loss until the run goes on nothing can be written: one line says so, and what was not written comes later."""
    world = World(tmp_path, 4, 40)
    world.back = {"h1": 12.0}
    append, full = world.supervisor._append, []

    def fails(text: str) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(text)

    monkeypatch.setattr(world.supervisor, "_append", fails)
    world.script = [(START + 12, lambda: full.append(True)), (START + 14.5, lambda: world.kill(1)), (START + 24, full.clear)]
    assert world.supervisor.supervise() == 0 and world.used == [4, 2, 4]
    events = [event["event"] for event in world.events()]
    assert events == ["start", "lost", "end", "start", "more", "end", "start", "end"]
    said = capsys.readouterr().out
    assert said.count("warning: supervisor.jsonl cannot be written (No space left on device); the run goes on") == 1
    assert "h1 ended with -9" in said


@pytest.mark.integration
def test_a_disk_that_is_really_full_ends_nothing(tmp_path, capsys):
    """A tmpfs without a free page: no line of the log is cut off."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k,nr_inodes=20", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        world = World(tmp_path / "run", 2, 30, usable=(1, 2), silence=30)
        world.supervisor.run = dataclasses.replace(world.run, workdir=str(disk))
        with pytest.raises(OSError, match="No space left"), (disk / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(512)):
                pass
        world.script = [(START + 12.5, lambda: world.kill(1)), (START + 20, (disk / "filler").unlink)]
        assert world.supervisor.supervise() == 0
        lines = (disk / supervisor.LOG).read_text().splitlines()
        assert [json.loads(line)["event"] for line in lines] == ["start", "lost", "end", "start", "end"]
        assert capsys.readouterr().out.count("warning: ") == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_cannot_be_made_ends_nothing(tmp_path, capsys):
    """Neither its log nor signs of life have a place."""
    world = World(tmp_path / "run", 2, 30, usable=(1, 2), silence=30)
    (tmp_path / "file").touch()
    world.supervisor.run = dataclasses.replace(world.run, workdir=str(tmp_path / "file" / "run"))
    world.script = [(START + 12.5, lambda: world.kill(1))]
    assert world.supervisor.supervise() == 0 and world.used == [2, 2]
    assert capsys.readouterr().out.count("warning: supervisor.jsonl cannot be written (Not a directory)") == 1


def test_checkpoints_at_an_address_are_known_by_the_runs_own_log(tmp_path):
    """The log has those that the run saved and has not deleted; the store is not asked."""
    run = dataclasses.replace(World(tmp_path, 2, 10).run, checkpoints="gs://bucket/runs/mine/")
    assert run.newest() == -1
    files = [
        {"gs://bucket/runs/mine/2/meta/metadata": "a", "gs://bucket/runs/other/9/meta/metadata": "a"},
        {"gs://bucket/runs/mine/4/meta/metadata": "b", "gs://bucket/runs/mine/2/meta/metadata": None},
        {"gs://bucket/runs/mine/6/meta/metadata": None, "experiment.json": "c", "gs://bucket/runs/mine/7/state": "d"},
    ]
    log = tmp_path / "audit.jsonl"
    log.write_text("".join(json.dumps({"event": "checkpoints", "files": names}) + "\n" for names in files) + '[1]\n{"ev')
    assert run.newest() == 4 and run.reached() == 4
    (tmp_path / "run.jsonl").write_text('{"event": "start", "restored": 5}\n')
    assert run.reached() == 5


def test_a_fault_that_comes_back_before_every_save_ends_the_supervision(tmp_path):
    """Each start fails with code 1 before it has saved; the pauses between them grow. A save starts the count anew."""
    world = World(tmp_path, 2, 40, usable=(1, 2))

    def fail() -> None:
        world.end_with(1, 75)
        world.script = [(world.now + START + 4, fail)]

    world.script = [(START + 15, fail)]
    assert world.supervisor.supervise() == 1
    assert len(world.used) == STUCK + 1  # the first had saved step 10
    assert world.events()[-1]["event"] == "given up" and world.now > 60 and world.supervisor.gave_up


@pytest.mark.parametrize(("gave_up", "given_up", "code"), [(True, None, 1), (True, 78, 78), (False, 78, 1)])
def test_a_run_that_is_given_up_may_have_a_code_of_its_own(monkeypatch, tmp_path, gave_up, given_up, code):
    """By which a batch script knows that the same would come again."""
    world = World(tmp_path, 1, 10, usable=(1,))
    monkeypatch.setattr(Supervisor, "supervise", lambda self: setattr(self, "gave_up", gave_up) or 1)
    assert supervisor.supervise(world.run, world, given_up) == code


def test_starts_that_go_on_from_local_checkpoints_get_further(tmp_path):
    """The store has no new checkpoint, but each start restores a later one of its hosts: no fault comes back."""
    world = World(tmp_path, 2, 1000, usable=(1, 2), restarts=3 * STUCK)
    log = tmp_path / "run.jsonl"

    def fail() -> None:
        with log.open("a") as file:
            file.write(json.dumps({"event": "start", "restored": 2 * len(world.used) or None}) + '\n{"event": "sta\n')
        world.end_with(1, 75)
        world.script = [(world.now + START + 4, fail)]

    log.write_text('{"event": "start", "restored": null}\n')
    world.script = [(START + 4, fail)]
    assert world.supervisor.supervise() == 1
    assert len(world.used) == 3 * STUCK + 1 and world.run.newest() == -1  # restarts were used up


def test_restarts_are_bounded(tmp_path, capsys):
    world = World(tmp_path, 2, 1000, usable=(1, 2), restarts=3)

    def kill() -> None:
        world.kill(0)
        world.script = [(world.now + 30, kill)]

    world.script = [(START + 15, kill)]
    assert world.supervisor.supervise() == AGAIN and len(world.used) == 4
    assert world.events()[-1]["event"] == "given up" and "3 restarts are used up" in capsys.readouterr().out


def test_a_signal_to_the_supervisor_saves_and_ends(tmp_path):
    world = World(tmp_path, 2, 40, usable=(1, 2))
    world.script = [(START + 7.5, lambda: setattr(world.supervisor, "stopping", True))]
    assert world.supervisor.supervise() == AGAIN and world.used == [2]
    assert world.run.newest() == 7 and world.told == [signal.SIGTERM]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_befalls_the_hosts_the_run_ends(tmp_path, seed):
    """Random losses, hangs, departures and returns: a start uses no more hosts than there are, a number that the layout can use,
    begins where the newest save is, and the last step comes; no save is lost, and a loss costs at most the steps since a save."""
    rng = random.Random(seed)
    hosts = rng.randint(1, 6)
    usable = sorted({1, *rng.sample(range(1, hosts + 1), rng.randint(1, hosts))})
    world = World(tmp_path, hosts, rng.randint(20, 80), usable)
    world.back = {name: rng.uniform(0, 60) for name in world.names if rng.random() < 0.7}

    def hang() -> None:
        running = [name for name, code in world.processes.items() if code is None]
        if len(running) == len(world.processes) > 1:
            lost = rng.choice(running)
            world.stopped.add(lost)
            world.processes = {name: None if name == lost else AGAIN for name in running}

    for _ in range(rng.randint(0, 12)):
        number = rng.randrange(hosts)
        event = rng.choice([hang, lambda number=number: world.kill(number), lambda number=number: world.kill(number)])
        world.script.append((rng.uniform(0, 300), event))
    world.script.sort(key=lambda item: item[0])
    assert world.supervisor.supervise() == 0
    assert world.step == world.steps == world.run.newest()
    starts = [event for event in world.events() if event["event"] == "start"]
    assert [len(start["hosts"]) for start in starts] == world.used and {*world.used} <= {*usable}
    newest = [start["newest"] for start in starts]
    assert newest == sorted(newest)
    losses = [event for event in world.events() if event["event"] == "lost"]
    assert len(starts) <= len(losses) + world.told.count(signal.SIGTERM) + 1
    pairs = itertools.pairwise(world.events())
    assert all(now["seconds"] <= 45 for before, now in pairs if "seconds" in now and before["event"] != "waiting")


def test_a_plan_survives_json(tmp_path):
    """It reaches the hosts of an engine as text."""
    run = World(tmp_path, 4, 10).run
    assert Supervised.from_json(run.to_json()) == Supervised(**{**vars(run), "final": [*FINAL], "unproven": []})
    assert [run.usable(n) for n in range(6)] == [0, 1, 2, 2, 4, 4]
