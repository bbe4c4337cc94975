"""Runs an experiment's first steps under every layout of its family and compares: equal losses, different collectives.

    python -m scripts.layouts gshard_m4.quickstart --tiny
    python -m scripts.layouts gshard_m4.quickstart --mesh 2x4 --steps 5

In double precision on random tokens, against the same steps on one device; meshes 2x4, 8x1 and 4x2 by default. Rings and zigzag
order draw dropout in an order of their own: compare them with `--model.dropout 0`.
"""

import dataclasses

from scripts import cli

MESHES = ("2x4", "8x1", "4x2")


def main() -> int:
    p = cli.parser(__doc__)
    p.add_argument("experiment", help="its name, as scripts.show lists them")
    p.add_argument("--mesh", action="append", metavar="XxY", help="a mesh; may be given several times")
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--tiny", action="store_true", help="the same model, shrunk")
    args, overrides = p.parse_known_args()
    args.synthetic, args.layout = True, None
    e = cli.chosen(args, overrides)
    cli.use_devices(cli.named_layout(e, f"data_parallel:{MESHES[0]}"))
    import jax
    import numpy as np

    from models.families import layouts
    from trainers import inspection

    jax.config.update("jax_enable_x64", True)
    e = inspection.exact(e)

    def run(layout: str, devices: list) -> tuple[np.ndarray, dict]:
        named = dataclasses.replace(e, layout=cli.named_layout(e, layout))
        metrics, found = inspection.trial(named, args.steps, devices)
        return np.array([m["loss"] for m in metrics]), found

    want, _ = run("data_parallel:1x1", jax.devices()[:1])
    print(f"one device: losses {'  '.join(f'{x:.12f}' for x in want)}")
    print(f"{'layout':22} {'mesh':5} {'last loss':>18} {'difference':>11}  collectives", flush=True)
    for name in layouts(e.model):
        for mesh in args.mesh or MESHES:
            losses, found = run(f"{name}:{mesh}", jax.devices())
            difference = np.max(np.abs(losses / want - 1))
            counts = "  ".join(f"{k} {found[k]['count']}" for k in inspection.KINDS if k in found)
            print(f"{name:22} {mesh:5} {losses[-1]:18.12f} {difference:11.1e}  {counts}", flush=True)
    return 0


if __name__ == "__main__":
    cli.run(main)
