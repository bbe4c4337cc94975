"""Measures what each host of a run reads, with several processes on this machine, and computes it for slices of TPU pods.

    python -m scripts.lab.host_bytes gpt.quickstart --layout fully_sharded:4x2         # 1, 2 and 4 processes, and pods
    python -m scripts.lab.host_bytes gpt.quickstart --layout tensor_parallel:2x4 --json

The experiment's data must be prepared. Bytes are those that the kernel gave the process while it read (/proc/self/io), handles
the files of the cache that it holds open. A pod's rows are exact, from the layout and the torus; bytes are those of stored rows.
"""

import argparse
import itertools
import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from configs import registry
from configs.experiment import Experiment
from configs.pods import PODS
from configs.registry import ConfigError
from models.sharding import torus
from scripts import cli
from trainers.runtime.chips import Slice, parse_slice
from trainers.text_table import markdown

_CHILD = "SHARDZOO_HOST_BYTES"  # set for the processes that this command starts


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_experiment(parser)
    parser.add_argument("--processes", type=cli.numbers, default=[1, 2, 4], metavar="N,N", help="how many read together")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="batches that are read")
    parser.add_argument("--chips", type=int, default=2048, metavar="N", help="pods of this size are computed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args, overrides = parser.parse_known_args()
    e = cli.chosen(args, overrides)
    if os.environ.get(_CHILD):
        return _child(args, e)
    if not e.data.cache:
        raise ConfigError(f"{e.name}: its data is random, and no host reads any")
    measured = [row for count in args.processes for row in _measured(count)]
    pods = [pod(registry.load(name), parse_slice(PODS[name].slice)) for name in PODS]
    pods = [row for row in pods if row["chips"] == args.chips]
    if args.json:
        cli.print_json({"measured": measured, "pods": pods})
    else:
        print("\n".join([*_table(measured), "", *_table(pods)]))
    return 0


def _measured(count: int) -> list[dict[str, Any]]:
    """Returns what each of `count` processes reads, which this same command starts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    together = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count)} if count > 1 else {}
    running = []
    for number in range(count):
        environment = os.environ | {_CHILD: "1"} | together | ({"JAX_PROCESS_ID": str(number)} if count > 1 else {})
        command = [sys.executable, "-m", "scripts.lab.host_bytes", *sys.argv[1:]]
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise ConfigError(f"one of {count} processes failed; its own output has the error")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def _child(args: argparse.Namespace, e: Experiment) -> int:
    """Reads batches and prints, as JSON, what this took."""
    cli.use_devices_of_all(e.layout, detect=False)
    import jax

    from data.reading.batches import Batches, batch_shapes
    from data.reading.caches import cache_folder
    from data.reading.examples import Source, open_source
    from trainers.plan import make_plan

    plan = make_plan(e)
    source = open_source(e.data, e.model)
    read: list[int] = []

    class Counted(Source):
        fingerprint = source.fingerprint

        def row(self, index: int) -> Any:
            read.append(index)
            return source.row(index)

    shardings, shapes = plan.batch_shardings(), batch_shapes(e.data)
    needed = {
        row
        for name, shape in shapes.items()
        if (sharding := shardings[name])
        for index in sharding.addressable_devices_indices_map(shape.shape).values()
        if index is not None
        for row in range(*index[0].indices(e.data.batch_size))
    }
    batches = Batches(Counted(), e.data, shardings)
    batches(0)
    before, rows_before = _bytes_read(), len(read)
    for step in range(1, args.steps + 1):
        jax.block_until_ready(batches(step))
    batches.close()
    rows = len(read) - rows_before
    folder = str(cache_folder(e.data).resolve())
    links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    report = {
        "processes": jax.process_count(),
        "process": jax.process_index(),
        "rows_a_batch": e.data.batch_size,
        "rows_read_a_step": len({index % e.data.batch_size for index in read}),
        "rows_not_needed": len({index % e.data.batch_size for index in read} - needed),
        "bytes_a_row": round((_bytes_read() - before) / rows),
        "stored_bytes_a_row": stored_bytes(e),
        "handles": sum(link.startswith(folder) for link in links),
    }
    print(json.dumps(report))
    return 0


def _bytes_read() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def stored_bytes(e: Experiment) -> int:
    """Returns the bytes of a stored row, as large as it can be."""
    features = e.data.stored().values()
    if any(math.prod(f.shape) < 0 for f in features):  # pictures and sounds have no fixed size: what a model gets
        features = e.data.features().values()
    return sum(math.prod(f.shape) * np.dtype(f.dtype).itemsize for f in features)


def pod(e: Experiment, target: Slice) -> dict[str, Any]:
    """Returns what each host of a slice reads in a step, and how much of it its chips need.

    A host has 2 x 2 neighbouring chips. It reads whole rows; where the layout also cuts rows, its chips need a part of them.
    """
    layout, rows = e.layout, e.data.batch_size
    if (target.chips, target.slices) != (layout.devices, layout.slices):
        return {"experiment": e.name, "chips": target.chips}
    mesh = layout.mesh_of_slice
    places = torus.positions(mesh, target.dims, torus.assignment(mesh, target.dims, layout.torus))
    coordinates = np.array(list(itertools.product(*(range(side) for side in target.dims))))
    _, host_of_chip = np.unique(coordinates // [2, 2, 1][: len(target.dims)], axis=0, return_inverse=True)
    host = host_of_chip.ravel()[places].ravel()  # in the order of the mesh
    host = np.concatenate([host + number * (host.max() + 1) for number in range(layout.slices)])
    names = [name for name, _ in layout.mesh]
    index = dict(zip(names, np.indices([size for _, size in layout.mesh]).reshape(len(names), -1), strict=True))
    sizes = dict(layout.mesh)
    row_sets: dict[int, set[int]] = {}
    needed: dict[int, float] = {}
    for feature in e.data.features().values():
        cuts = layout.cut(("batch", *feature.axes), (rows, *feature.shape), component=feature.component)
        numbers = [np.ravel_multi_index([index[a] for a in cut], [sizes[a] for a in cut]) if cut else 0 * host for cut in cuts]
        shards = [layout.num_shards(cut) for cut in cuts]
        size = rows * math.prod(feature.shape) * np.dtype(feature.dtype).itemsize / math.prod(shards)
        for key in {tuple(map(int, key)) for key in zip(host, *numbers, strict=True)}:
            needed[key[0]] = needed.get(key[0], 0) + size
            each = rows // shards[0]
            row_sets.setdefault(key[0], set()).update(range(key[1] * each, (key[1] + 1) * each))
    whole = sum(math.prod(f.shape) * np.dtype(f.dtype).itemsize for f in e.data.features().values())
    read = {number: len(read_rows) for number, read_rows in row_sets.items()}
    return {
        "experiment": e.name,
        "chips": target.chips,
        "hosts": len(read),
        "rows_a_batch": rows,
        "rows_a_host": max(read.values()),
        "hosts_a_row": round(sum(read.values()) / rows, 2),
        "kib_a_host": round(max(read.values()) * stored_bytes(e) / 1024, 1),
        "needed": f"{sum(needed.values()) / (whole * sum(read.values())):.0%}",
    }


def _table(rows: list[dict[str, Any]]) -> list[str]:
    return markdown(list(rows[0]), (list(row.values()) for row in rows)) if rows else ["no pod experiment has as many chips"]


if __name__ == "__main__":
    cli.run(main)
