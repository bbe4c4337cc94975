"""Names a process of a run that died, stopped or fell behind, and ends the others with the code that asks for a restart.

Where a process ends because nothing can be written, the others end with its code, UNSAVED: launchers see one code of many.

Every process tells JAX's coordination service, several times within `train.faults.stall_seconds`, that it lives, which step it is
at and what it does there, and reads the same of the others. A collective that waits for a lost process cannot be interrupted, so
that the processes end from a thread of their own; the state of the step under way is lost with them.
"""

import contextlib
import ctypes
import dataclasses
import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from models.errors import UNSAVED, UserError, exit_code, told
from trainers import runlog
from trainers.audit import redaction
from trainers.monitoring.observer import EVALUATING, READING, SAVING, STEPPING, Observer
from trainers.runtime.processes import coordinator, coordinator_address

STARTING, ENDED = "starting", "ended"
_ORDER = (READING, STEPPING, EVALUATING, SAVING)  # within a step
_PATIENCE = 10  # seconds: how long a process may be silent or behind once a collective has failed
_LAST = 30  # seconds for what can still be saved
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A process, as another one sees it.

    Attributes:
      silent: seconds since its last sign of life.
      still: seconds since it was last seen to change its step or what it does.
      failure: the exception that ended it, on one line; "" while it lives.
      lost: its exception is a collective's, which fails where another process is lost.
    """

    step: int
    doing: str
    silent: float = 0.0
    still: float = 0.0
    failure: str = ""
    lost: bool = False

    @property
    def place(self) -> tuple[int, int]:
        return self.step, _ORDER.index(self.doing) if self.doing in _ORDER else -1


def culprit(seen: Sequence[Sighting], seconds: float) -> tuple[int | None, str] | None:
    """Returns (the process for which the others wait, a line about it); (None, a line) where all wait; None where all is well.

    Args:
      seen: every process, in order.
      seconds: how long a process may be silent or behind. A process that is still starting may be behind for longer.
    """
    for number, process in enumerate(seen):
        if process.failure and not process.lost:
            return number, f"process {number} failed at step {process.step}: {process.failure}"
    number, process = max(enumerate(seen), key=lambda item: (item[1].doing != ENDED, item[1].silent))
    if process.doing != ENDED and process.silent > seconds:
        where = f"it was {process.doing}" + (f" at step {process.step}" if process.doing != STARTING else "")
        return number, f"process {number} gives no sign of life for {process.silent:.0f} s ({where})"
    if any(process.doing in (STARTING, ENDED) for process in seen) or min(process.still for process in seen) <= seconds:
        return None
    if process.silent > seconds / 2:  # it will speak, or be silent for too long: who stopped within a step is not slow
        return None
    number, process = min(enumerate(seen), key=lambda item: item[1].place)
    if all(other.place == process.place for other in seen):
        if process.doing != STEPPING:
            return None
        return None, f"no process is behind, but step {process.step} has not ended for {process.still:.0f} s"
    return number, (
        f"process {number} is behind: it has been {process.doing} at step {process.step} for {process.still:.0f} s, for which "
        "the others wait"
    )


def is_of_a_collective(error: BaseException) -> bool:
    """Returns whether an exception may be a collective's that failed because another process was lost."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        return "RESOURCE_EXHAUSTED" not in str(error)
    return isinstance(error, ValueError) and "Gloo" in str(error)  # by which the call of a compiled program fails at times


class Watch(Observer):
    """Watches over the processes of a run while it is entered. A single process is not watched.

    Args:
      seconds: `train.faults.stall_seconds`.
      last_words: called before this process ends because of another; saves what can be saved within so many seconds and
        returns a line about it.
    """

    def __init__(self, workdir: Path, seconds: float, last_words: Callable[[float], str] = lambda seconds: ""):
        self.workdir, self.seconds, self.last_words = workdir, seconds, last_words
        self._me, self._all = jax.process_index(), jax.process_count()
        self._beat = min(max(seconds / 10, 0.1), 5.0)
        self._mine: dict[str, Any] = {"step": 0, "doing": STARTING}
        self._others: dict[int, tuple[dict[str, Any], float, float]] = {}  # what was told, changed when, moved when
        self._began = self._answered = time.monotonic()
        self._patience = seconds
        self._verdict: dict[str, Any] = {}
        self._over = threading.Event()
        self._ending = threading.RLock()  # XLA may abort within the thread that ends this process

    def entered(self, step: int, phase: str) -> None:
        self._mine = {"step": step, "doing": phase}

    def __enter__(self) -> "Watch":
        if self._all > 1:
            _on_abort(self._aborted)
            for work in (self._tell, self._judge):
                threading.Thread(target=work, daemon=True, name=f"watch{work.__name__}").start()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.explain(kind, error, trace)
        self._over.set()
        if self._all > 1:
            self._mine = {**self._mine, "doing": ENDED}
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._put()
            _on_abort(None)

    def explain(self, kind: Any, error: Any, trace: Any) -> None:
        """Ends this process after an exception, if there is one: because of another process, if that caused it.

        Exceptions that every process raises, and only those, are left alone: a user's errors.
        """
        if self._all == 1 or error is None or (isinstance(error, UserError) and not isinstance(error, runlog.StoreError)):
            return
        text = redaction.redacted(told(error, named=True))
        lost = is_of_a_collective(error)
        code = getattr(error, "code", 1) if isinstance(error, SystemExit) else exit_code(error, 1)
        self._mine = {**self._mine, "failure": text, "lost": lost, "unsaved": code == UNSAVED}
        if lost:  # `_judge` ends this process if it finds another that caused this
            self._patience = min(self.seconds, _PATIENCE)
            until = time.monotonic() + self.seconds + self._patience
            while time.monotonic() < until and not all(self._told(n).get("failure") for n in range(self._all)):
                time.sleep(self._beat)
        if not isinstance(error, (UserError, SystemExit)):
            redaction.crash(kind, error, trace)
        self._last(self._me, text, int(code))

    # --- telling and reading -----------------------------------------------------------------------------------------

    def _put(self, count: int = -1) -> None:
        mine = json.dumps({**self._mine, "count": count})
        coordinator().key_value_set(f"shardzoo/watch/{self._me}", mine, allow_overwrite=True)

    def _tell(self) -> None:
        for count in itertools.count():
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # the coordinator is silent: `_judge` sees it
                self._put(count)
                entries = dict(coordinator().key_value_dir_get("shardzoo/watch/"))
                now = time.monotonic()
                for key, text in entries.items():
                    name = key.rpartition("/")[2]
                    value = json.loads(text)
                    if name == "verdict":
                        self._verdict = value
                        continue
                    before, _, moved = self._others.get(int(name), ({}, now, now))
                    if value != before:
                        same = all(before.get(k) == value.get(k) for k in ("step", "doing"))
                        self._others[int(name)] = value, now, moved if same else now
                self._answered = now
            if self._over.wait(self._beat):
                return

    def _told(self, number: int) -> dict[str, Any]:
        return self._others[number][0] if number in self._others else {}

    def _sightings(self, now: float) -> list[Sighting]:
        unseen = ({"step": 0, "doing": STARTING}, self._began, self._began)
        seen = []
        for value, changed, moved in (self._others.get(number, unseen) for number in range(self._all)):
            fields = {k: v for k, v in value.items() if k not in ("count", "unsaved")}
            seen.append(Sighting(**fields, silent=max(0.0, self._answered - changed), still=now - moved))
        return seen

    def _judge(self) -> None:
        last = time.monotonic()
        while not self._over.wait(self._beat):
            now = time.monotonic()
            if now - last > self.seconds:
                self._end(self._me, f"process {self._me} was stopped for {now - last:.0f} s")
            last = now
            if self._verdict:
                self._end(**self._verdict)
            if now - self._answered > self._patience:
                self._end(0, f"process 0, which coordinates the others, gives no sign of life for {now - self._answered:.0f} s")
            if verdict := culprit(self._sightings(now), self._patience):
                self._end(*verdict, self._code(verdict[0]))

    # --- ending --------------------------------------------------------------------------------------------------

    def _code(self, number: int | None) -> int:
        """Returns the exit code of a process that ends because of this one."""
        return UNSAVED if number is not None and self._told(number).get("unsaved") else runlog.PREEMPTED

    def _end(self, number: int | None, said: str, code: int = runlog.PREEMPTED) -> None:
        if number != 0 or self._me == 0:  # all say the same, as the first process has found it
            verdict = json.dumps({"number": number, "said": said, "code": code})
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # another was first
                coordinator().key_value_set("shardzoo/watch/verdict", verdict)
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                verdict = coordinator().key_value_try_get("shardzoo/watch/verdict")
            number, said, code = (json.loads(verdict)[key] for key in ("number", "said", "code"))
        if self._mine.get("failure") and not self._mine.get("lost"):
            return  # the main thread ends this process, with its own error
        self._last(number, said, code)

    def _last(self, number: int | None, said: str, code: int) -> None:
        """Says why, saves what it can, and ends this process at once: no other may be waited for, nor a disk that is full."""
        with self._ending:
            advice = "; run the same command again, also with fewer processes" if code == runlog.PREEMPTED else ""
            try:
                for act in (
                    lambda: print(f"error: {said}{advice}", file=sys.stderr, flush=True),
                    lambda: print(self.last_words(min(self.seconds, _LAST)), file=sys.stderr, flush=True),
                    lambda: self._log_end(number, said, code),
                    sys.stdout.flush,
                ):
                    with contextlib.suppress(Exception):
                        act()
                if self._me == 0 or number == self._me:
                    time.sleep(4 * self._beat)  # the others read of it from the coordinator
            finally:
                os._exit(code)

    def _log_end(self, number: int | None, said: str, code: int) -> None:
        """Logs the run's end on one process: the first, or the second where the first was lost and could not say why."""
        first = self._mine if self._me == 0 else self._told(0)
        if self._me == (1 if number == 0 and code == runlog.PREEMPTED and not first.get("failure") else 0):
            runlog.append(self.workdir, "stop", step=self._mine["step"], exit_code=code, error=said, process=number)

    def _aborted(self) -> None:
        """Ends this process as `_end` does, where JAX aborts it because the coordinator's process has gone.

        A process that is already ending because of another goes on with that: XLA aborts a collective that fails meanwhile.
        """
        with self._ending:
            if not self._over.is_set() and not answers(coordinator_address()):
                self._last(0, "process 0, which coordinates the others, has ended", self._code(0))


def answers(address: str) -> bool:
    """Returns whether anything accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2):
            return True
    except OSError:
        return False


_handlers: list[Any] = []


def _on_abort(function: Callable[[], None] | None) -> None:
    """Has a function called where this process is aborted; None, nothing.

    JAX aborts a process, from a thread of its own, once the coordinator is gone. Python's own handlers would run too late for
    that: in the main thread, which waits for a collective.
    """
    libc = ctypes.CDLL(None)
    if function is None:
        libc.signal(signal.SIGABRT, None)
        return
    _handlers.append(_HANDLER(lambda number: function()))  # kept for as long as C may call it
    libc.signal(signal.SIGABRT, _handlers[-1])
