"""Serves a system to scripts.lab.peers.compare, one window at a time, by lines on standard input and output.

This module needs the standard library alone."""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Run = Callable[[int], float]
Prepare = Callable[[dict[str, Any]], tuple[dict[str, Any], Run]]


def serve(**works: Prepare) -> None:
    """Answers the driver until it closes standard input.

    The last arguments of the process are the name of the work and the experiment as JSON. When it is ready, the process prints an
    object that describes it; then, for each line "N", it runs N steps and prints {"seconds": ..., "value": ...}.

    Args:
      works: what the system can do, by name ("train", "generate"). Each takes the experiment's fields and returns the
        description ("parameters", "versions", "settings") and a function that runs a number of steps, waits until they are
        done, and returns a number about the last one: the loss, or the tokens of an output.
    """
    work, experiment = sys.argv[-2:]
    prepare = works[work]
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # output of libraries must not come between the answers
        sys.stdout = sys.stderr

        def answer(fields: dict[str, Any]) -> None:
            print(json.dumps(fields), file=answers, flush=True)

        description, run = prepare(json.loads(experiment))
        answer(description)
        for line in sys.stdin:
            began = time.perf_counter()
            value = run(int(line))
            answer({"seconds": time.perf_counter() - began, "value": value})
