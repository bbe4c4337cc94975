"""Prices a product of two square matrices on one device of a TPU, as plans do; needs `make setup DEVICE=plan`.

    python -m scripts.lab.products tpu7x                         # bfloat16 and 8 bits, from 2048 to 32768 rows
    python -m scripts.lab.products v5p --sizes 8192 --dtypes bfloat16,float8_e4m3fn --json

A row is a product whose sums are of 32 bits, compiled and not run: FLOP/s by the compiler's cycles and the clock of the
generation, without waiting for the first copies, which published measurements of such products are compared with, and their share
of the bfloat16 peak.
"""

from typing import Any

from scripts import cli
from trainers.pods import libtpu
from trainers.runtime.chips import CHIPS, PodError, Slice, parse_slice
from trainers.text_table import text_table

DTYPES = ("bfloat16", "float8_e4m3fn", "int8")


def main(arguments: list[str] | None = None) -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("generation", choices=CHIPS, help="of the TPU")
    parser.add_argument("--sizes", type=cli.numbers, default=(2048, 4096, 8192, 32768), help="rows, with commas between them")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="of the factors, with commas between them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    dtypes = cli.names("--dtypes", args.dtypes, DTYPES)
    libtpu.prepare()
    pod = parse_slice(f"{args.generation}:{'2x2x1' if CHIPS[args.generation].torus == 3 else '2x2'}")
    rows = [row(pod, dtype, size) for dtype in dtypes for size in args.sizes]
    if args.json:
        cli.print_json(rows)
    else:
        cells = ([r["dtype"], str(r["rows"]), f"{r['TFLOP/s']:,.0f}", f"{r['of the bfloat16 peak']:.2f}"] for r in rows)
        print("\n".join(text_table(list(rows[0]), cells, range(1, 4))))
    return 0


def row(pod: Slice, dtype: str, size: int) -> dict[str, Any]:
    """Returns the price of a product, in plain values; raises PodError for a product that has none."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from trainers.hlo import parsing
    from trainers.pods import topology
    from trainers.pods.price import price

    devices = topology.devices(pod)
    whole = NamedSharding(Mesh(np.array(devices), ("all",)), PartitionSpec())
    factor = jax.ShapeDtypeStruct((size, size), dtype, sharding=whole)
    sums = jnp.int32 if dtype == "int8" else jnp.float32
    program = jax.jit(lambda a, b: jax.lax.dot(a, b, preferred_element_type=sums).astype(jnp.bfloat16)).lower(factor, factor)
    text = program.compile(dict(pod.chip.option_set("overlapped"))).as_text() or ""
    priced = price(parsing.parse(text), pod, [device.coords for device in devices], {"all": len(devices)})
    if priced.problems:
        raise PodError(f"{dtype} of {size} rows on {pod.chip.name}: {priced.problems[0]}")
    done = 2 * size**3 / (priced.exposed["matrix"] + priced.exposed["vector"])
    return {"dtype": dtype, "rows": size, "TFLOP/s": done / 1e12, "of the bfloat16 peak": done / pod.chip.peak}


if __name__ == "__main__":
    cli.run(main)
