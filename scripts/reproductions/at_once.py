"""Runs several at a time, each in a process of its own: a small model uses a core, and hardly more."""

import contextlib
import contextvars
import functools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any

from scripts import cli
from scripts.reproductions.entry import ReproductionError

_processes: contextvars.ContextVar[int] = contextvars.ContextVar("processes", default=1)


@contextlib.contextmanager
def processes(count: int) -> Iterator[None]:
    """Has runs trained so many at a time, inside.

    Raises:
      ReproductionError: the number is below 1, or there is an accelerator, which one process takes whole.
    """
    if count < 1:
        raise ReproductionError(f"--processes {count}: must be at least 1")
    if count > 1:
        import jax

        if (platform := jax.default_backend()) != "cpu":
            raise ReproductionError(f"--processes {count}: one process takes a {platform} whole; the nearest is 1")
    token = _processes.set(count)
    try:
        yield
    finally:
        _processes.reset(token)


def call(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> None:
    """Calls a function with each of the arguments, in processes that share the cores evenly, if several may run at a time; does
    nothing if not, or with a single one.

    What is printed goes to standard error. When one fails, or this process ends, the others get SIGTERM, at which a run saves.

    Raises:
      ReproductionError: a call failed, and has said why.
    """
    count = min(_processes.get(), len(arguments))
    if count < 2:
        return
    context = multiprocessing.get_context("spawn")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares, left = [cores[n::count] for n in range(count)], list(arguments)
    running: dict[int, tuple[Any, list[int]]] = {}  # by sentinel
    try:
        while left or running:
            while left and shares:
                share = shares.pop()
                process = context.Process(target=_call, args=(share, function, left.pop(0)))
                process.start()
                running[process.sentinel] = process, share
            for sentinel in wait([*running]):
                process, share = running.pop(sentinel)  # pyright: ignore[reportArgumentType]
                process.join()
                if process.exitcode:
                    raise ReproductionError(f"a run ended with exit code {process.exitcode}; what it said is above")
                shares.append(share)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _call(share: Sequence[int], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The life of a process: it has its share of the cores."""
    from data.reading.batches import end_with_parent

    end_with_parent(functools.partial(os.kill, os.getpid(), signal.SIGTERM))  # at which a run saves
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if share:
        os.sched_setaffinity(0, share)
    cli.use_devices(cli.SIMULATED)

    def run() -> None:
        function(*arguments)

    cli.run(run)
