"""Compares an experiment's first steps under every layout of its family with the same steps on one device.

    python -m scripts.layouts                              every family
    python -m scripts.layouts gpt.palm_8b --layout two_d   one experiment, one layout
    python -m scripts.layouts gshard_m4.quickstart --mesh 8x1 --json
    python -m scripts.layouts gpt.quickstart --layout 2xfully_sharded     two slices of four devices

The model is tiny, in double precision, on random data and eight simulated devices. A row has the differences of losses, of the
first step's gradients and of the parameters after three steps, and the compiled step's collectives. Layouts that a model cannot
have, as a cut in space of a mixture, are named and left out. Exits with 1 if a difference is above 1e-9.
"""

import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from configs.registry import ConfigError
from models.errors import nearest
from models.sharding.layout import split_slices
from models.sharding.layouts import Recipe
from scripts import cli

EXPERIMENTS = (
    "gpt.quickstart",
    "gpt.moe_quickstart",
    "bert.quickstart_pairs",
    "gshard_m4.quickstart",
    "switch.quickstart",
    "nllb.moe_54b",
    "vit.quickstart",
    "vit.moe_quickstart",
    "metnet2.quickstart",
    "whisper.czech",
    "conformer.small_unlabelled",
    "multimodal.pod",
)
MESHES = {1: ("2x4", "2x2x2"), 2: ("2x2", "2x2x1"), 4: ("1x2", "2x1x1")}  # of a slice's devices, by the number of slices
TOLERANCE = {"losses": 1e-9, "gradients": 1e-9, "parameters": 1e-9, "routing": 1e-6}


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("experiment", nargs="*", help="names, FILE.py:FUNCTION or FILE.json; one of each family by default")
    parser.add_argument(
        "--layout",
        action="append",
        metavar="[Nx]NAME",
        help="a layout, or one over N slices; may be given several times; all by default",
    )
    parser.add_argument(
        "--mesh", help="2x4, or 2x2x2 for pipelines, of a slice: runs the layouts with so many mesh axes; by default both"
    )
    parser.add_argument("--steps", type=int, default=3, help="that are compared")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    args = parser.parse_args()
    cli.use_devices(cli.SIMULATED)
    import jax

    from configs import registry
    from models.families import family_of
    from models.sharding.layout import LayoutError
    from trainers.hlo import equality
    from trainers.hlo.collectives import KINDS

    jax.config.update("jax_enable_x64", True)
    chosen = [registry.load(name) for name in args.experiment or EXPERIMENTS]
    known = {name for e in chosen for name in family_of(e.model).layouts}
    check(args.layout or (), known)
    worst = False
    print("" if args.json else f"{'experiment':22} {'layout':22} {'mesh':6} " + " ".join(f"{k:>10}" for k in TOLERANCE))
    for e in chosen:
        e = equality.comparable(registry.tiny(cli.synthetic(e)))
        initial = equality.start(e)
        want = equality.reference(e, args.steps, initial)
        makes = family_of(e.model).layouts
        for name, mesh in selected(makes, args.layout or makes, args.mesh):
            began = time.monotonic()
            named = dataclasses.replace(e, layout=cli.named_layout(e, f"{name}:{mesh}"))
            row = {"experiment": e.name, "layout": name, "mesh": mesh}
            try:
                outcome = equality.trial(named, args.steps, jax.devices(), initial)
            except LayoutError as refusal:  # as context parallelism of a mixture, whose routing groups span positions
                if args.layout:
                    raise
                print(f"{e.name:22} {name:22} {mesh:6} refused: {refusal}", file=sys.stderr, flush=True)
                continue
            differences = equality.differences(outcome, want)
            kinds = Counter(c.kind for c in outcome.collectives)
            worst |= any(differences[k] > limit for k, limit in TOLERANCE.items())
            if args.json:
                seconds = round(time.monotonic() - began, 1)
                print(json.dumps(row | differences | {"collectives": dict(kinds), "seconds": seconds}), flush=True)
            else:
                counts = "  ".join(f"{kind} {kinds[kind]}" for kind in KINDS if kinds[kind])
                numbers = " ".join(f"{differences[k]:10.1e}" for k in TOLERANCE)
                print(f"{e.name:22} {name:22} {mesh:6} {numbers}  {counts}", flush=True)
    return int(worst)


def check(texts: Iterable[str], known: Collection[str]) -> None:
    """Raises ConfigError for a layout that no family has, or over a number of slices that has no mesh here."""
    for text in texts:
        slices, name = split_slices(text)
        if name not in known:
            raise ConfigError(f"no layout {name!r}{nearest(name, known)}")
        if slices not in MESHES:
            raise ConfigError(f"--layout {text!r}: eight devices are cut into {' or '.join(map(str, MESHES))} slices here")


def selected(layouts: Mapping[str, Recipe], names: Collection[str], mesh: str | None) -> Iterator[tuple[str, str]]:
    """Yields (name, mesh) of the layouts of these names, over slices too; of a given mesh only those with its number of axes."""
    for text in names:
        slices, name = split_slices(text)
        if name in layouts:
            axes = len(layouts[name].axes)
            shape = mesh or MESHES[slices][axes - 2]
            if shape.count("x") + 1 == axes:
                yield text, shape


if __name__ == "__main__":
    cli.run(main)
