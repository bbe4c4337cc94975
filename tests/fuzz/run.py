"""Reads mutated files of every kind that others may have made, and counts what happens: one line, or something worse.

    python -m tests.fuzz.run                                          # 200 mutations for each reader
    python -m tests.fuzz.run --readers "GGUF,npz" --count 100000
    python -m tests.fuzz.run --readers npz --first 4711 --count 1     # one mutation again

A mutation depends on its number and the seed alone. Each is read in a process with bounded address space and time. The exit code
is 1 if a mutation had another outcome than "refused" or "accepted" (tests/fuzz/campaign.py).
"""

import dataclasses
import time

from scripts import cli
from tests.fuzz import campaign


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each reader, and its failures by their place in the source."""
    from tests.fuzz.readers import READERS

    parser = cli.parser(__doc__)
    parser.add_argument("--readers", default=",".join(READERS), help="names of readers, comma-separated; all by default")
    parser.add_argument("--count", type=int, default=200, metavar="N", help="mutations for each reader")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first mutation")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations; 0")
    parser.add_argument("--seconds", type=float, default=10, help="that a reader may take for one mutation")
    parser.add_argument("--mib", type=int, default=1024, help="of address space that a reader may ask for, beyond its start")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    limits = campaign.Limits(options.seconds, options.mib)
    report, failed = {}, False
    if not options.json:
        print(f"{'reader':25}", *(f"{outcome:>9}" for outcome in campaign.OUTCOMES), " slowest  memory    time")
    for name in cli.names("--readers", options.readers, READERS):
        began = time.perf_counter()
        tally = campaign.run(READERS[name], options.first, options.count, options.seed, limits)
        spent = time.perf_counter() - began
        failed |= bool(tally.failures)
        report[name] = dataclasses.asdict(tally) | {"failures": list(campaign.described(tally))}
        if not options.json:
            counts = (f"{tally.outcomes[outcome]:9,}" for outcome in campaign.OUTCOMES)
            print(f"{name:25}", *counts, f"{tally.slowest:6.2f} s {tally.memory:5.0f} MiB {spent:5.0f} s", flush=True)
            print(*campaign.described(tally), sep="\n", end="\n" if tally.failures else "")
    if options.json:
        cli.print_json(report)
    return int(failed)


if __name__ == "__main__":
    cli.run(main)
