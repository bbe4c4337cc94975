"""Compares the goodput of a recorded run with what ml-goodput-measurement makes of the same record.

    python3 -m venv .venv-goodput && .venv-goodput/bin/pip install ml-goodput-measurement==0.2.3
    python -m tests.parity.goodput runs/mine
    python -m tests.parity.goodput tests/fixtures/goodput --write

The events of run.jsonl become the entries that the library's recorder writes, and its own calculator divides the time. The names
of its losses and of ours:

    TRAINING_PREP, TPU_INITIALIZATION           start
    PROGRAM_STARTUP                             compile
    DATA_LOADING_SYNC                           data, which is also that of later steps where devices wait for it
    UNPRODUCTIVE_CHECKPOINT_SAVE_TIME           save
    UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME        start
    WASTED_PROGRESS_FROM_DISRUPTION             recomputed
    INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION     down
    CUSTOM_BADPUT_EVENTS                        evaluation, waiting and data: the library has no names for them
    OTHER                                       none: here every second has a name

The definitions differ in this, which is all of the difference on a sound record:

    a restart that lost no step     the library knows restarts by a step that is begun twice. After a stop by a signal, which
                                    saved, the time up to the next start's first step is productive to it, and its preparation
                                    counts twice; here it is down, start and compile
    the last step before a loss     the library has no end of it, and counts it, and what follows it, as INFRASTRUCTURE_RECOVERY;
                                    here a step that is known to have ended is recomputed or productive
    the end of a job                to the library it is productive from its last step to its end, without the time of saves;
                                    here closing logs is waiting
    the first step of a start       the library subtracts the mean of the start's other steps, here that of its first event's
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data import paths
from trainers import runlog
from trainers.monitoring import goodput, history
from trainers.monitoring.goodput import COMPILE, DATA, DOWN, EVALUATION, RECOMPUTED, SAVE, START, STEPS, WAITING, Goodput
from trainers.text_table import text_table

THEIRS = "theirs.json"
NAMES = {
    START: ("TRAINING_PREP",),
    COMPILE: ("PROGRAM_STARTUP",),
    DATA: ("DATA",),
    SAVE: ("UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",),
    EVALUATION: ("EVALUATION",),
    RECOMPUTED: ("WASTED_PROGRESS_FROM_DISRUPTION",),
    WAITING: ("WAITING",),
    DOWN: ("INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",),
}
"""Names of the library's losses, by ours. Those of the user are upper case there."""
_SAVED = ("wait_for_prev_duration_secs", "checkpointer_blocking_duration_secs", "get_old_steps_duration_secs")


class Entries:
    """The library's entries of a run."""

    def __init__(self):
        self.entries: list[dict[str, Any]] = []
        self.saved: dict[str, Any] = {}
        self.fresh = False  # no step of the present start is placed yet

    def start(self, began: float) -> None:
        self.entries.append({"job_start_time": began})
        self.fresh = True

    def steps(self, first: int, count: int, since: float, until: float) -> None:
        """Spreads steps over a time. The first of a start begins with the compilation, and is placed already."""
        for number in range(count):
            if number or not self.fresh:
                at = since + number * (until - since) / count
                self.entries.append({"step_count": first + number, "step_start_time": at})
        self.fresh = self.fresh and not count

    def event(self, event: Mapping[str, Any]) -> float:
        """Adds an event "goodput", its losses behind its steps; returns its end."""
        seconds, at = event["seconds"], event["since"]
        first = event["step"] - event["steps"]
        if START in seconds:
            self.entries.append({"training_prep_start_time": at})
            at += seconds[START]
            self.entries.append({"training_prep_end_time": at})
            self.entries.append({"step_count": first, "step_start_time": at})
        at += seconds.get(COMPILE, 0.0)
        self.steps(first, event["steps"], at, at + seconds.get(STEPS, 0.0))
        at += seconds.get(STEPS, 0.0)
        if (saved := seconds.get(SAVE)) and event["step"] == self.saved.get("step"):  # the library takes the mean of these
            self.saved["checkpoint_manager_blocking_duration_secs"] += saved
            at += saved
        elif saved:
            durations = {"checkpoint_manager_blocking_duration_secs": saved} | dict.fromkeys(_SAVED, 0.0)
            self.saved = {"event_type": "save", "step": event["step"], "directory": "", "wait_start_time": at} | durations
            self.entries.append(self.saved)
            at += saved
        for part in (DATA, EVALUATION, WAITING, RECOMPUTED):
            if part in seconds:
                kind = {"custom_badput_event_type": part}
                self.entries.append(kind | {"custom_badput_event_start_time": at})
                at += seconds[part]
                self.entries.append(kind | {"custom_badput_event_end_time": at})
        return at


def entries(events: Sequence[Mapping[str, Any]], host_lines: Sequence[Mapping[str, Any]], wall: float) -> list[dict[str, Any]]:
    """Returns the entries of a run as the library's recorder writes them.

    Args:
      wall: seconds from the first start to the last sign of life, which is the end of the job.
    """
    result = Entries()
    seen = sorted((goodput.ms_of(line["time"]) / 1000, line["step"]) for line in host_lines)
    starts = [event["began"] for event in events if event.get("event") == "start"]
    at, step, number = starts[0], 0, 0

    def tail(before: float) -> None:
        """Adds the steps of which only hosts.jsonl tells."""
        nonlocal at, step
        for then, done in seen:
            if at < then < before and done > step:
                result.steps(step, done - step, at, then)
                at, step = then, done

    for event in events:
        if event.get("event") == "start":
            tail(starts[number])
            result.start(starts[number])
            at, step, number = starts[number], event.get("restored") or 0, number + 1
        elif event.get("event") == "goodput" and goodput.is_sound(event):
            at, step = result.event(event), event["step"]
    tail(float("inf"))
    placed = [*result.entries, {"job_end_time": starts[0] + wall}]
    # In whole milliseconds, as the events are, so that what follows another begins where that ends.
    return [{name: round(x, 3) if name.endswith("_time") else x for name, x in entry.items()} for entry in placed]


def ours(run: Path) -> tuple[Goodput, list[dict[str, Any]]]:
    """Returns a run's goodput and the library's entries."""
    h = history.read(run)
    assert h.goodput is not None, f"{run}: no event tells of its goodput"
    return h.goodput, entries(runlog.events(run), h.host_lines, h.goodput.wall)


def theirs(run: Path) -> dict[str, Any]:
    """Returns what the library computes."""
    command = [paths.environment("goodput") / "bin/python", paths.ROOT / "tests/parity/goodput_library.py"]
    text = json.dumps(ours(run)[1])
    return json.loads(subprocess.run(command, check=True, input=text, stdout=subprocess.PIPE, text=True).stdout)


def table(total: Goodput, other: Mapping[str, Any]) -> str:
    """Returns a table of both sides, in seconds."""
    rows = [("wall", total.wall, other["wall_s"]), ("productive", total.seconds[STEPS], other["productive_s"])]
    rows += [(part, total.seconds[part], sum(other["lost_s"].get(name, 0.0) for name in NAMES[part])) for part in NAMES]
    named = {name for names in NAMES.values() for name in names}
    rows.append(("other", 0.0, sum(seconds for name, seconds in other["lost_s"].items() if name not in named)))
    cells = [[name, f"{here:,.1f}", f"{there:,.1f}"] for name, here, there in rows]
    return "\n".join(text_table(["seconds", "here", "ml-goodput-measurement"], cells, {1, 2}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--write", action="store_true", help=f"also write the library's numbers to RUN/{THEIRS}")
    args = parser.parse_args()
    other = theirs(args.run)
    if args.write:
        (args.run / THEIRS).write_text(json.dumps(other, indent=1) + "\n")
    total, _ = ours(args.run)
    print(table(total, other))
    print(f"{total}; by the library {other['productive_s'] / other['wall_s']:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
