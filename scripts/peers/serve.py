"""Serves a system to bench_peers, one window at a time, by lines on standard input and output. Standard library alone."""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Run = Callable[[int], float]


def serve(prepare: Callable[[dict[str, Any]], tuple[dict[str, Any], Run]]) -> None:
    """Answers the driver until it closes standard input.

    The one argument of the process is the experiment as JSON. When it is ready to train, the process prints an object that
    describes it; then, for each line "N", it trains N steps and prints {"seconds": ..., "loss": ...}.

    Args:
      prepare: takes the experiment's fields and returns the description ("parameters", "versions", "settings") and a function
        that trains a number of steps, waits until they are done, and returns the last one's loss.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # output of libraries must not come between the answers
        sys.stdout = sys.stderr

        def answer(fields: dict[str, Any]) -> None:
            print(json.dumps(fields), file=answers, flush=True)

        description, run = prepare(json.loads(sys.argv[1]))
        answer(description)
        for line in sys.stdin:
            began = time.perf_counter()
            loss = run(int(line))
            answer({"seconds": time.perf_counter() - began, "loss": loss})
