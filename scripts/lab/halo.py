"""Measures what a convolution on an image that is cut in space sends: JAX's own, and that of models/parts/convolution.py.

    python -m scripts.lab.halo                                    # 512 x 512 x 384 on 8 and on 16 simulated devices
    python -m scripts.lab.halo --grids 4x4,16x1 --topology v4:4x4x1 --json

A row is the gradient of one 3 x 3 convolution, compiled and not run, for an image of which every device has an equal part: bytes
that a device sends in permutes and receives in gathers, how many of each there are, and the memory for temporaries. With
--topology, the TPU compiler compiles it for a slice of as many chips as the grids have (`make setup DEVICE=plan`).
"""

import argparse
import math
import sys
from collections import Counter
from typing import Any

from models.sharding.layout import Layout, rules
from scripts import cli
from trainers.text_table import text_table

MIB = 2**20
DILATIONS = (1, 2, 4, 8, 16, 32, 64, 128)


def main(arguments: list[str] | None = None) -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("--grids", type=_grids, default=_grids("8x1,4x2,4x4,16x1"), metavar="RxC,...", help="rows x columns")
    parser.add_argument("--dilations", type=cli.numbers, default=DILATIONS, help="of the convolution, with commas between them")
    parser.add_argument("--size", type=int, default=512, help="rows and columns of the image")
    parser.add_argument("--channels", type=int, default=384, help="of the picture; 384")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="bfloat16 for TPUs, else float32, by default")
    parser.add_argument("--topology", metavar="GEN:AxBxC", help="a TPU slice to compile for, e.g. v4:4x4x1")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    if args.topology:
        from trainers.pods import libtpu

        libtpu.prepare()
    most = max(math.prod(grid) for grid in args.grids)
    if "jax" not in sys.modules:  # a test has its devices already
        cli.use_devices(Layout(name="simulated", mesh=(("all", most),)))
    rows = [row(args, grid, dilation) for grid in args.grids for dilation in args.dilations]
    if args.json:
        cli.print_json({"size": args.size, "channels": args.channels, "topology": args.topology, "rows": rows})
    else:
        print("\n".join(table(rows)))
    return 0


def _grids(text: str) -> list[tuple[int, int]]:
    try:
        return [(int(rows), int(columns)) for rows, columns in (part.split("x") for part in text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not grids of rows and columns, as 4x4,16x1") from None


def devices(args: Any, grid: tuple[int, int]) -> list[Any]:
    """Returns the devices of a grid: simulated ones, or chips of a slice that must be of this number."""
    import jax

    if not args.topology:
        return jax.devices()[: math.prod(grid)]
    from trainers.pods import topology
    from trainers.runtime.chips import parse_slice

    chips = topology.devices(parse_slice(args.topology))
    if len(chips) != math.prod(grid):
        raise cli.ConfigError(f"--grids {grid[0]}x{grid[1]}: {args.topology} has {len(chips)} chips")
    return chips


def row(args: Any, grid: tuple[int, int], dilation: int) -> dict[str, Any]:
    """Returns what both forms send at a dilation, in plain values."""
    from models.parts.convolution import convolve
    from models.sharding.component import Component, make_mesh

    layout = Layout(name="space", mesh=(("rows", grid[0]), ("columns", grid[1])), rules=rules(height="rows", width="columns"))
    scope = Component(layout, mesh=make_mesh(layout, devices(args, grid)))
    alone = Component(Layout(name="alone", mesh=(("all", 1),)))
    result: dict[str, Any] = {"grid": f"{grid[0]}x{grid[1]}", "dilation": dilation}
    for name, place in (("plain", alone), ("ours", scope)):
        result[name] = compiled(args, scope, lambda x, w, p=place: convolve(x, w, p, dilation=dilation))
    return result


def compiled(args: Any, scope: Any, convolution: Any) -> dict[str, Any]:
    """Returns what the gradient of a convolution sends when it is compiled for a mesh."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from trainers.hlo import parsing
    from trainers.hlo.collectives import collectives

    dtype = jnp.dtype(args.dtype or ("bfloat16" if args.topology else "float32"))
    space, whole = (NamedSharding(scope.mesh, spec) for spec in (PartitionSpec(None, "rows", "columns"), PartitionSpec()))
    image = jax.ShapeDtypeStruct((1, args.size, args.size, args.channels), dtype, sharding=space)
    filters = jax.ShapeDtypeStruct((3, 3, args.channels, args.channels), dtype, sharding=whole)

    def gradient(x: Any, w: Any) -> Any:
        return jax.grad(lambda x, w: jnp.sum(jnp.square(convolution(x, w).astype(jnp.float32))), argnums=(0, 1))(x, w)

    program = jax.jit(gradient, out_shardings=(space, whole)).lower(image, filters).compile()
    traffic = collectives(parsing.parse(program.as_text() or ""), dict(scope.mesh.shape))
    moved = [c for c in traffic if c.kind in ("collective-permute", "all-gather", "all-to-all")]
    analysis: Any = program.memory_analysis()
    return {
        # A gather's own part is there already.
        "mib": sum(c.bytes * (1 - 1 / c.size if c.kind == "all-gather" else 1) for c in moved) / MIB,
        "collectives": dict(Counter(c.kind for c in moved)),
        "temporaries_mib": analysis.temp_size_in_bytes / MIB,
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the rows as lines of text, a heading first."""
    head = ["grid", "dilation", *(f"{name} {x}" for name in ("plain", "ours") for x in ("MiB", "permutes", "gathers", "temp"))]
    cells = []
    for row in rows:
        line = [row["grid"], row["dilation"]]
        for name in ("plain", "ours"):
            kinds = row[name]["collectives"]
            permutes = kinds.get("collective-permute", 0)
            gathers = sum(kinds.values()) - permutes
            line += [f"{row[name]['mib']:.1f}", permutes, gathers, f"{row[name]['temporaries_mib']:.0f}"]
        cells.append(line)
    return text_table(head, cells, range(1, len(head)))


if __name__ == "__main__":
    cli.run(main)
