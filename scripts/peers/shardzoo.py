"""The zoo's side of the comparison: its own training step, on the first device, fed by its own loader."""

import contextlib
import sys
from typing import Any

from configs import registry
from scripts import cli
from scripts.peers.serve import Run, serve

open_until_the_end = contextlib.ExitStack()


def prepare(fields: dict[str, Any]) -> tuple[dict[str, Any], Run]:
    e = registry.from_json(fields)
    cli.use_devices(e.layout)
    import jax

    from trainers.measure import throughput
    from trainers.processes import versions

    subject = open_until_the_end.enter_context(throughput.opened(e))
    meter = subject.meter

    def run(steps: int) -> float:
        metrics = {}
        for _ in range(steps):
            metrics = meter.step(meter.batch(meter.at))
            meter.at += 1
        jax.block_until_ready(metrics)
        return float(metrics["loss"])

    description = {
        "parameters": sum(info.size for info in subject.plan.parameters),
        "versions": {"python": sys.version.split()[0]} | versions(),
        "settings": f"remat {e.execution.remat}",
    }
    return description, run


if __name__ == "__main__":
    with open_until_the_end:
        serve(prepare)
