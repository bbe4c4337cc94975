"""Kills or stops processes of a supervised run at random moments, and compares what the run becomes with one that was left alone.

    python -m scripts.lab.losses                                    # 20 losses in 2,000 tiny steps on four processes
    python -m scripts.lab.losses --losses 100 --steps 4000 --json
    python -m scripts.lab.losses --returns-after 0                  # always on four processes: equal bit for bit
    python -m scripts.lab.losses --stop 15                          # processes hang, and are missed after 15 seconds
    python -m scripts.lab.losses --runs runs/losses && python -m scripts.report runs/losses/cut    # its page

The supervisor is that of `scripts.launch --on local`: after a loss it goes on with the processes that are left, as three of four
by which the rows can be divided, and with all at the next save after the lost one is back. The run that is left alone has one
process, or all where a lost one is back at once. The report has the seconds from a loss to the restart and to the first new step
that is logged, the steps that were trained twice, the largest relative difference of a logged loss, and the goodput of both runs.
Numbers are in float64, so that the rounding of sums in another order stays far below 1e-6.

Processes are forked from this one, which has imported everything, as hosts that hold a warm interpreter would start them; it
needs Linux. What a restart costs beyond that is the imports (docs/OPERATIONS.md).
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import math
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.registry import ConfigError
from data import paths
from scripts import cli
from scripts.lab import forks
from scripts.launching.local import Local
from scripts.launching.supervisor import LOG, Supervised, Supervisor, stopped_by_signals

RUN = ("gpt.quickstart", "--tiny", "--data.batch_size", "12")
HOSTS = (1, 2, 3, 4, 6)  # all divide the rows of a batch
EVERY, LOGGED = 10, 5  # steps between saves and between logged steps
LEFT = 4 * LOGGED  # the steps of a run from its last loss on: however fast they are, it does not end before
EXACT = ("--execution.dtype", "float64", "--train.master_dtype", "float64", "--model.dropout", "0")
# Compiling takes most of a start; less optimised programs take less of it.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
ENVIRONMENT |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


@dataclasses.dataclass
class Loss:
    """A lost process, the seconds until the run was started again and a new step was logged, and the number of that start; None
    if it ended before."""

    at_step: int
    moment: float
    restart: float | None = None
    new_step: float | None = None
    start: int | None = None


class Process:
    """A process that is forked from this one and trains; it looks like a subprocess.Popen."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], output: Path):
        self.code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            forks.run(command[2:], output, lambda: self._prepare(variables))

    @staticmethod
    def _prepare(variables: Mapping[str, str]) -> None:
        from scripts import stopping

        os.environ.clear()
        os.environ.update(variables)
        stopping.listen()

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


class Hunted(Local):
    """Hosts of which one gets a signal whenever the run reaches one of the given steps, a random moment later: within a second,
    and within three logged steps.

    Args:
      steps: ascending, at which a process is lost.
      number: the signal, SIGKILL or SIGSTOP.
    """

    def __init__(
        self,
        workdir: Path,
        hosts: int,
        returns_after: float,
        steps: Sequence[int],
        rng: random.Random,
        number: int = signal.SIGKILL,
    ):
        super().__init__(hosts, returns_after)
        self.workdir, self.rng, self.ahead, self.number = workdir, rng, [*steps], number
        self.losses: list[Loss] = []
        self.starts = 0
        self._due: float | None = None
        self._log: tuple[int, int] = (0, 0)  # the inode of the log, which is another one in each start, and its first step

    def popen(self, host: str, command: Sequence[str], variables: Mapping[str, str]) -> Any:
        return Process(command, variables, self.workdir.with_suffix(f".{host}.log"))

    def start(self, hosts: Sequence[str], command: Sequence[str], variables: Mapping[str, str]) -> None:
        self.starts += 1
        self._restarted()
        super().start(hosts, command, variables)
        if self.losses and self.losses[-1].restart is None:
            self.losses[-1].restart = time.monotonic() - self.losses[-1].moment
            self.losses[-1].start = self.starts - 1

    def _restarted(self) -> None:
        self._log = self._log[0], 2**62  # what the start before has logged is no new step

    def codes(self) -> dict[str, int | None]:
        self._hunt()
        return super().codes()

    def _hunt(self) -> None:
        """Kills or stops a process if it is time to, and notes the first new step after the last loss."""
        step = self._new_step()
        if step is None:
            return
        last = self.losses[-1] if self.losses else None
        if last and last.restart is not None and last.new_step is None:
            last.new_step = time.monotonic() - last.moment
        if self.ahead and step >= self.ahead[0] and self._due is None:
            self._due = time.monotonic() + self.rng.uniform(0, 1)
        if self._due is not None and (time.monotonic() >= self._due or step > self.ahead[0] + LOGGED):
            running = [process for process in self.processes.values() if process.poll() is None]
            if len(running) == len(self.processes):
                self._due = None
                self.ahead.pop(0)
                self.losses.append(Loss(step, time.monotonic()))
                self.rng.choice(running).send_signal(self.number)

    def _new_step(self) -> int | None:
        """Returns the newest logged step, None while this start has not logged one of its own."""
        try:
            with (self.workdir / "metrics.jsonl").open("rb") as file:
                file.seek(max(0, (size := os.fstat(file.fileno()).st_size) - 4096))
                lines, inode = file.read().splitlines(keepends=True), os.fstat(file.fileno()).st_ino
            whole = [line for line in lines[size > 4096 :] if line.endswith(b"\n")]
            step = json.loads(whole[-1])["step"] if whole else 0
        except OSError:
            return None
        if inode != self._log[0]:
            self._log = inode, step
        return step if step > self._log[1] else None


def planned(workdir: str, steps: int, arguments: Sequence[str]) -> str:
    """Returns the supervised run as JSON: a function for `in_a_process`, because it starts JAX."""
    from scripts.launching import elastic, job

    parser = cli.parser("")
    cli.add_experiment(parser)
    given = [*RUN, *EXACT, "--train.steps", str(steps), "--train.log_every", str(LOGGED)]
    given += ["--train.checkpoint.every", str(EVERY), *arguments]
    args, overrides = parser.parse_known_args(given)
    e = cli.chosen(args, overrides)
    machines = job.machines_of(f"cpu:{math.prod(size for _, size in e.layout.mesh)}x1")
    job.check(e, machines)
    return elastic.supervised(job.Job(e, tuple(given), machines, workdir, "", restarts=10**6)).to_json()


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns function(*arguments), called in a fork: what starts threads can't be in a process that others are forked from."""
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(function, *arguments).result()


def trained(workdir: Path, steps: int, hosts: Hunted, arguments: Sequence[str], silence: float) -> None:
    """Trains under the supervisor to the last step; raises ConfigError where it ends otherwise."""
    run = Supervised.from_json(in_a_process(planned, str(workdir), steps, arguments))
    run = dataclasses.replace(run, variables={}, silence=silence or run.silence)  # with the variables of this process
    supervisor = Supervisor(run, hosts)
    with stopped_by_signals(supervisor):
        code = supervisor.supervise()
    if code:
        said = "".join(path.read_text()[-2000:] for path in sorted(workdir.parent.glob(f"{workdir.name}.*.log")))
        raise ConfigError(f"the run in {workdir} ended with {code}: {said}")


def logged(workdir: Path) -> dict[int, float]:
    """Returns the loss of every logged step; a step of two lines counts once."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def report(whole: Path, cut: Path, hosts: Hunted, seconds: float) -> dict[str, Any]:
    """Returns the figures: see the module."""
    from trainers.monitoring import history

    want, got = logged(whole), logged(cut)
    events = [json.loads(line) for line in (cut / LOG).read_text().splitlines()]
    starts = [event for event in events if event["event"] == "start"]

    def spread(values: Sequence[float | None]) -> dict[str, float]:
        known = [value for value in values if value is not None] or [0.0]
        return {"median": round(statistics.median(known), 2), "largest": round(max(known), 2)}

    return {
        "steps": max(got),
        "losses": len(hosts.losses),
        "starts": hosts.starts,
        "starts_by_processes": {
            str(n): sum(len(start["hosts"]) == n for start in starts) for n in range(1, len(hosts.names) + 1)
        },
        "seconds": round(seconds, 1),
        "seconds_to_restart": spread([loss.restart for loss in hosts.losses]),
        "seconds_to_new_step": spread([loss.new_step for loss in hosts.losses]),
        "steps_trained_twice": sum(
            max(0, loss.at_step - max(0, starts[loss.start]["newest"])) for loss in hosts.losses if loss.start is not None
        ),
        "logged_steps_equal": want.keys() == got.keys(),
        "largest_relative_difference": max((abs(got[s] - want[s]) / abs(want[s]) for s in want.keys() & got.keys()), default=1.0),
        "bit_for_bit": want == got,
        "goodput": f"{history.read(cut).goodput}",
        "goodput_left_alone": f"{history.read(whole).goodput}",
    }


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("--losses", type=int, default=20, help="processes that are lost")
    parser.add_argument("--steps", type=int, default=2000, help="of the run")
    parser.add_argument(
        "--hosts", type=int, default=4, choices=HOSTS, help="processes of the run, of which one is lost each time"
    )
    parser.add_argument("--returns-after", type=float, default=20, metavar="S", help="a host is back after so many seconds")
    parser.add_argument("--stall-seconds", type=float, default=60, help="the run's train.faults.stall_seconds")
    parser.add_argument(
        "--stop", type=float, default=0, metavar="S", help="stop processes instead, which the supervisor misses after so long"
    )
    parser.add_argument("--seed", type=int, default=7, help="of the moments")
    parser.add_argument(
        "--runs", type=Path, metavar="DIR", help="keep both runs there, whole/ and cut/; by default they are deleted"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    args = parser.parse_args()
    if not 0 < args.losses <= (most := (args.steps - LEFT) // (2 * LOGGED)):
        raise ConfigError(f"--losses {args.losses}: between 1 and {most} of {args.steps} steps")
    os.environ.update(ENVIRONMENT)
    import scripts.train  # noqa: F401
    import trainers.trainer  # noqa: F401 - before the forks

    rng = random.Random(args.seed)
    moments = sorted(LOGGED * n for n in rng.sample(range(1, (args.steps - LEFT) // LOGGED + 1), args.losses))
    arguments = ["--layout", f"fully_sharded:{args.hosts}x1", "--train.faults.stall_seconds", str(args.stall_seconds)]
    if args.runs and args.runs.exists():
        raise ConfigError(f"--runs {args.runs}: exists; choose a new folder")
    with contextlib.ExitStack() as stack:
        (args.runs or Path()).mkdir(parents=True, exist_ok=True)
        folder = args.runs or stack.enter_context(paths.scratch(Path(tempfile.gettempdir()) / "shardzoo_losses"))
        os.environ["SHARDZOO_DATA"] = str(folder / "data")
        left_alone = 1 if args.returns_after else args.hosts  # one takes less time, and rounds otherwise, as fewer hosts do
        trained(folder / "whole", args.steps, Hunted(folder / "whole", left_alone, 0, (), rng), arguments, 0)
        number = signal.SIGSTOP if args.stop else signal.SIGKILL
        began, hosts = time.monotonic(), Hunted(folder / "cut", args.hosts, args.returns_after, moments, rng, number)
        trained(folder / "cut", args.steps, hosts, arguments, args.stop)
        result = report(folder / "whole", folder / "cut", hosts, time.monotonic() - began)
    if args.json:
        cli.print_json(result)
    else:
        print("\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in result.items()))
    return int(not result["logged_steps_equal"] or result["largest_relative_difference"] > 1e-6)


if __name__ == "__main__":
    cli.run(main)
