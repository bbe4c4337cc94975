"""The zoo's side of the comparison: its own training step, on the first device, fed by its own loader."""

import sys
from typing import Any

from configs import registry
from scripts import cli
from scripts.peers.serve import Run, serve


def prepare(fields: dict[str, Any]) -> tuple[dict[str, Any], Run]:
    e = registry.from_json(fields)
    cli.use_devices(e.layout)
    import jax

    from data.batches import Batches, batch_shapes
    from data.rows import open_source
    from trainers import checkpoint, state, step

    p = state.plan(e, jax.devices()[: e.layout.devices])
    batches = Batches(open_source(e.data, e.model), e.data, p.batch_shardings())
    compiled = step.compile_step(p, batch_shapes(e.data))
    current, at = state.create(p), 0

    def run(steps: int) -> float:
        nonlocal current, at
        metrics = {}
        for _ in range(steps):
            current, metrics = compiled(current, batches(at))
            at += 1
        jax.block_until_ready(current)
        return float(metrics["loss"])

    description = {
        "parameters": sum(info.size for info in p.parameters),
        "versions": {"python": sys.version.split()[0]} | checkpoint.versions(),
        "settings": f"remat {e.model.remat}",
    }
    return description, run


if __name__ == "__main__":
    serve(prepare)
