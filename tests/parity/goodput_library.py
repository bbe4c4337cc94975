"""Prints, as JSON, the goodput that ml-goodput-measurement 0.2.3 computes from the entries on standard input; nothing is sent.

Runs in an environment of its own, without this project (tests/parity/goodput.py calls it). The library's calculator reads from
its logger, in whose place stands a list.
"""

import datetime
import json
import sys
import tempfile
from typing import Any

JOB = "recorded"


class Entries:
    """A logger that has these entries, in place of Google Cloud's."""

    def __init__(self, entries: list[dict[str, Any]]):
        self.entries = [{"job_name": JOB} | entry for entry in entries]

    def read_cloud_logging_entries(self, *args: Any, **kwargs: Any) -> tuple[list[dict[str, Any]], tuple[Any, str]]:
        return self.entries, (datetime.datetime.now(datetime.UTC), "last")


def main() -> None:
    from ml_goodput_measurement.src import goodput  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as cache:
        calculator = goodput.GoodputCalculator(JOB, "log", Entries(json.load(sys.stdin)), cache_dir=cache)
        calculator.get_job_goodput(include_badput_breakdown=True)
        details = calculator.get_job_goodput_details()
    lost = {}
    for part, seconds in details["badput_time"].items():
        lost |= seconds if isinstance(seconds, dict) else {part.name: seconds}
    json.dump(
        {
            "wall_s": details["total_elapsed_time"],
            "productive_s": sum(details["goodput_time"].values()),
            "disruptions": details["disruption_count"],
            "lost_s": {part: seconds for part, seconds in sorted(lost.items()) if seconds},
        },
        sys.stdout,
        indent=1,
    )


if __name__ == "__main__":
    main()
