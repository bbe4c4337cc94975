"""Imports what scripts.train does, and forks wherever a function is called for the first time: the child gets a signal there.

It prints a line for each child that did not end with code 75, and at last how many there were. What the children say on standard
error goes to the file WORDS.

    python -m tests.scripts.interrupted SIGNAL EVERY WORDS
"""

import importlib
import os
import signal
import sys
from types import CodeType, FrameType
from typing import Any

from scripts import stopping

number, every, words = signal.Signals[sys.argv[1]], int(sys.argv[2]), os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT)
seen: set[CodeType] = set()
forks: list[int] = []


def at_call(frame: FrameType, event: str, arg: Any) -> None:
    """Forks at one of `every` functions, and at all callbacks of importlib's locks, from which no exception comes through."""
    del arg
    code = frame.f_code
    if event != "call" or code in seen:
        return
    seen.add(code)
    if len(seen) % every and code.co_qualname != "_get_module_lock.<locals>.cb":
        return
    if child := os.fork():
        forks.append(child)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended != 75:
            print(f"{code.co_filename}:{code.co_qualname} ended with {ended}", flush=True)
        return
    sys.setprofile(None)
    os.dup2(words, 2)
    os.lseek(words, 0, os.SEEK_END)
    signal.raise_signal(number)


if __name__ == "__main__":
    parent = os.getpid()
    stopping.listen()
    sys.setprofile(at_call)
    for name in ("dataclasses", "pathlib", "configs.experiment", "configs.registry", "scripts.cli"):  # as scripts.train does
        importlib.import_module(name)
    sys.setprofile(None)
    if os.getpid() != parent:
        os._exit(1)  # a child that went on
    print(f"{len(forks)} signals")
