"""Measures what a save costs in either tier of checkpoints: CPU seconds of this process, and bytes.

    python -m scripts.lab.tiers gpt.quickstart --folder /dev/shm/tiers
    python -m scripts.lab.tiers gpt.quickstart --layout fully_sharded:2x4 --folder /tmp/tiers --saves 10 --json

A fresh state is saved in turns to the store, a folder beside the local one, and locally; each save is waited for. The middle of
its CPU seconds counts: of all threads, and of those that the training loop waits for, which copy the state off the devices.
"""

import dataclasses
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from configs.experiment import Experiment, LocalTier
from data import paths
from scripts import cli
from trainers.text_table import markdown


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_experiment(parser)
    parser.add_argument("--folder", type=cli.folder, required=True, help="on the disk, or in the memory, that is measured")
    parser.add_argument("--saves", type=int, default=5, metavar="N", help="in each tier")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args, overrides = parser.parse_known_args()
    e = cli.chosen(args, overrides)
    cli.use_devices(e.layout)
    rows = measured(e, args.folder, args.saves)
    if args.json:
        cli.print_json(rows)
    else:
        head = ["tier", "MB", "CPU s of a save", "of them the loop waits for"]
        print("\n".join(markdown(head, [list(row.values()) for row in rows])))
    return 0


def measured(e: Experiment, folder: Path, saves: int) -> list[dict[str, Any]]:
    """Returns a row for each tier; the first save of each is not counted."""
    import jax

    from trainers.checkpoints.manager import Checkpoints
    from trainers.plan import fresh_state, make_plan

    plan = make_plan(e, jax.devices()[: e.layout.devices])
    state = fresh_state(plan)
    seconds: dict[str, list[tuple[float, float]]] = {"store": [], "local": []}
    with paths.scratch(folder) as scratch:
        tier = LocalTier(every=1, folder=str(scratch / "host"))
        checkpoints = Checkpoints(scratch / "run", dataclasses.replace(e.train.checkpoint, local=tier, folder="", keep=1))
        for step in range(1, saves + 2):
            state = dataclasses.replace(state, step=jax.numpy.full_like(state.step, step))
            for name, save in (("store", checkpoints.save), ("local", checkpoints.save_locally)):
                began = _cpu()
                save(plan, state, "data", None)
                copied = _cpu()
                checkpoints.settle()
                seconds[name].append((_cpu() - began, copied - began))
                time.sleep(0.1)  # threads that wait in a loop come to rest
        checkpoints.end_local()
        checkpoints.close()
    size = sum(x.nbytes for x in jax.tree.leaves(state)) / 1e6
    return [
        {
            "tier": name,
            "MB": round(size, 1),
            "cpu_s": round(statistics.median(whole for whole, _ in runs[1:]), 3),
            "cpu_s_in_loop": round(statistics.median(copied for _, copied in runs[1:]), 3),
        }
        for name, runs in seconds.items()
    ]


def _cpu() -> float:
    """Returns the CPU seconds of this process so far, of all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    cli.run(main)
