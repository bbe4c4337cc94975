"""Shows what XLA's CPU compiler does below the rate of its fastest product: each case in a few lines, beside that product.

    python -m scripts.lab.xla_cpu                   # on one CPU, in seconds of processor time, so that load matters little
    python -m scripts.lab.xla_cpu --cases filter,taps --json

A row is a case's GFLOP/s and its share of the fastest square product of NumPy or XLA, measured on the same CPU. The forms that
this project computes instead have rows of their own: "columns" (models/parts/convolution.py) and "heads"
(models/parts/attention/blocks.py).
"""

import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from scripts import cli
from trainers.text_table import text_table

Case = tuple[float, Callable[..., Any], tuple[Any, ...]]  # FLOPs, a function, its arguments
TIMES = 5


def filter_gradient(size: int) -> Case:
    """The gradient of a 3 x 3 filter, as JAX derives it: a convolution whose window is the whole image."""
    x, dy, w = _drawn(2, size, size, 96), _drawn(2, size, size, 96), _drawn(3, 3, 96, 96)
    return _filter_flops(x, w), lambda x, dy: _pulled(_convolved, x, w, dy), (x, dy)


def taps(size: int) -> Case:
    """The same as a product for each tap: both factors are narrow, and each tap's image is copied."""
    import jax.numpy as jnp

    x, dy, w = _drawn(2, size, size, 96), _drawn(2, size, size, 96), _drawn(3, 3, 96, 96)

    def product(x: Any, dy: Any) -> Any:
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        images = (x[:, i : i + size, j : j + size].reshape(-1, 96) for i in range(3) for j in range(3))
        return jnp.stack([image.T @ dy.reshape(-1, 96) for image in images])

    return _filter_flops(x, w), product, (x, dy)


def side_by_side(size: int) -> Case:
    """The same as one product with all taps side by side: the concatenation along the last dimension is slow."""
    import jax.numpy as jnp

    x, dy, w = _drawn(2, size, size, 96), _drawn(2, size, size, 96), _drawn(3, 3, 96, 96)

    def product(x: Any, dy: Any) -> Any:
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        images = (x[:, i : i + size, j : j + size].reshape(-1, 96) for i in range(3) for j in range(3))
        return jnp.concatenate(list(images), axis=1).T @ dy.reshape(-1, 96)

    return _filter_flops(x, w), product, (x, dy)


def columns(size: int) -> Case:
    """The same as this project computes it."""
    from models.parts.convolution import convolve

    x, dy, w = _drawn(2, size, size, 96), _drawn(2, size, size, 96), _drawn(3, 3, 96, 96)
    return _filter_flops(x, w), lambda x, dy: _pulled(functools.partial(convolve, scope=_alone()), x, w, dy), (x, dy)


def transposed(size: int) -> Case:
    """The gradient of a matrix, whose first factor is summed over its rows: XLA's faster library takes no such factor."""
    return 2.0 * 25 * size * 1536 * 384, lambda x, dy: x.T @ dy, (_drawn(25 * size, 1536), _drawn(25 * size, 384))


def logits(size: int) -> Case:
    """Attention with gradients over 24 positions for each unit of size, all logits of six heads at once."""
    return _attention(size, _alone())


def heads(size: int) -> Case:
    """The same as this project computes it on a CPU: one head after the other, logits twice."""
    import jax

    from models.sharding.component import Component, make_mesh

    layout = _alone().layout
    return _attention(size, Component(layout, mesh=make_mesh(layout, jax.devices()[:1])))


CASES = {
    "filter": filter_gradient,
    "taps": taps,
    "side_by_side": side_by_side,
    "columns": columns,
    "transposed": transposed,
    "logits": logits,
    "heads": heads,
}


def _attention(size: int, scope: Any) -> Case:
    import jax
    import jax.numpy as jnp

    from models.parts.attention import blocks
    from models.parts.attention.logits import masked_logits
    from models.parts.attention.mask import AttentionMask

    length = 24 * size
    q, k, v, dy = (_drawn(1, length, 6, 64) for _ in range(4))
    ones_1L = jnp.ones((1, length), jnp.int32)
    products = functools.partial(masked_logits, limit=0.0, max_distance=0)

    def gradients(q: Any, k: Any, v: Any, dy: Any) -> Any:
        mask = AttentionMask.for_rows(ones_1L, ones_1L)
        return jax.vjp(lambda q, k, v: blocks.attend(products, q, k, v, None, mask, scope)[0], q, k, v)[1](dy)

    return 6 * 2.0 * 6 * length**2 * 64, gradients, (q, k, v, dy)


def _alone() -> Any:
    from models.sharding.component import Component
    from models.sharding.layouts import ONE_DEVICE

    return Component(ONE_DEVICE)


def _drawn(*shape: int) -> Any:
    import jax.numpy as jnp
    import numpy as np

    return jnp.asarray(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))


def _convolved(x: Any, w: Any) -> Any:
    import jax

    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _pulled(f: Callable[..., Any], x: Any, w: Any, dy: Any) -> Any:
    import jax

    return jax.vjp(lambda w: f(x, w), w)[1](dy)[0]


def _filter_flops(x: Any, w: Any) -> float:
    return 2.0 * x.size * w.size / x.shape[-1]


def rate(case: Case, times: int = TIMES) -> float:
    """Returns FLOP/s of a case: the median of some runs, in seconds of processor time."""
    import jax

    flops, function, arguments = case
    program = jax.jit(function).lower(*arguments).compile()
    seconds = []
    for _ in range(times + 1):
        began = time.process_time()
        jax.block_until_ready(program(*arguments))
        seconds.append(time.process_time() - began)
    return flops / statistics.median(seconds[1:])


def bound(size: int) -> float:
    """Returns FLOP/s of the fastest square product of NumPy or XLA, in seconds of processor time."""
    import jax.numpy as jnp
    import numpy as np

    x = np.ones((size, size), np.float32)
    fastest = 0.0
    for _ in range(TIMES):
        began = time.process_time()
        np.matmul(x, x)
        fastest = max(fastest, 2.0 * size**3 / (time.process_time() - began))
    return max(fastest, rate((2.0 * size**3, jnp.matmul, (jnp.asarray(x), jnp.asarray(x)))))


def main(arguments: list[str] | None = None) -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--size", type=int, default=64, help="rows of an image")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    names = cli.names("--cases", args.cases, CASES)
    fastest = bound(32 * args.size)
    rates = {name: rate(CASES[name](args.size)) for name in names}
    rows = [{"case": name, "GFLOP/s": value / 1e9, "share": value / fastest} for name, value in rates.items()]
    if args.json:
        cli.print_json({"fastest product, GFLOP/s": fastest / 1e9, "cases": rows})
        return 0
    cells = ([row["case"], f"{row['GFLOP/s']:,.0f}", f"{row['share']:.2f}"] for row in rows)
    print(f"fastest product on one CPU: {fastest / 1e9:,.0f} GFLOP/s")
    print("\n".join(text_table(["case", "GFLOP/s", "share"], cells, range(1, 3))))
    return 0


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    if hasattr(os, "sched_setaffinity"):  # one CPU, before any library starts its threads
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    cli.run(main)
