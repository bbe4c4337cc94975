"""Contracts of communication: what the steps of tiny experiments send under their layouts, as tests/contracts.json has it.

    .venv/bin/python -m tests.helpers.contracts                    compiles every case and rewrites the file: minutes
    .venv/bin/python -m tests.helpers.contracts --compare          prints the cases that differ under the installed JAX
    .venv/bin/python -m tests.helpers.contracts gpt.quickstart     rewrites those of some experiments

A case is a row of a TABLE in tests/multi_device: an experiment, a layout and its mesh. Its line has

- `rows`: bytes on one device a step, in double precision, by component, kind of collective, mesh axes and place
  (collectives.summary);
- `sent`: the bytes that a device sends;
- `least`: those of an analytic bound (trainers.pods.bound), which has weights gathered forward and backward, gradients summed
  once, sums and exchanges of activations by the layout's rules; null for rings of keys, which it does not know.
"""

import argparse
import functools
import importlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import tests.conftest  # noqa: F401  # isort: skip  # simulated devices and the compiler's flags, before JAX is used
import jax

from configs.experiment import Experiment
from data.paths import ROOT
from models.sharding.layout import LayoutError
from scripts import cli
from trainers import step
from trainers.hlo import tables
from trainers.hlo.collectives import Collective, summary
from trainers.plan import make_plan
from trainers.pods.bound import Bytes, Work

FILE = ROOT / "tests" / "contracts.json"
PLACES = {True: "in loops", False: "once"}

Line = dict[str, Any]


def key(e: Experiment) -> str:
    return f"{e.name} {e.layout.name}:{'x'.join(str(size) for _, size in e.layout.mesh)}"


def line(e: Experiment, collectives: Sequence[Collective]) -> Line:
    """Returns the line of an experiment whose compiled step has these collectives."""
    rows = {}
    for row in summary(collectives):
        axes = "?" if row["axes"] is None else "*".join(row["axes"]) or "-"
        rows[f"{row['component'] or '-'} {row['kind']} {axes} {PLACES[row['in_loop']]}"] = row["bytes"]
    sent = sum(c.sent * c.times for c in collectives if c.times)
    return {"sent": round(sent), "least": least(e), "rows": rows}


def least(e: Experiment) -> int | None:
    """Returns the bytes of the analytic bound; None for layouts that it does not know, as rings of keys."""
    try:
        with jax.enable_x64(True):
            return round(sum(Work(e).communication(Bytes(e.layout))))
    except LayoutError:
        return None


@functools.cache
def lines() -> dict[str, Line]:
    """The file."""
    return json.loads(FILE.read_text())


def difference(before: Line | None, after: Line) -> dict[str, Any]:
    """Returns (before, after) of each row and sum that changed."""
    flat = [{**(one or {}), **(one or {}).get("rows", {})} for one in (before, after)]
    names = sorted((set(flat[0]) | set(flat[1])) - {"rows"})
    return {name: (flat[0].get(name), flat[1].get(name)) for name in names if flat[0].get(name) != flat[1].get(name)}


def assert_kept(e: Experiment, collectives: Sequence[Collective]) -> None:
    """Fails if a compiled step sends anything else than its line says; passes where there is no line."""
    name = key(e)
    if name in lines():
        changed = difference(lines()[name], line(e, collectives))
        assert not changed, f"{name}: {changed}; if it is meant: .venv/bin/python -m tests.helpers.contracts {e.name}"


def cases() -> Iterator[Experiment]:
    """Yields the experiment of every case of the equality tests, under its layout."""
    from tests.helpers.layouts import laid_out

    for path in sorted((ROOT / "tests" / "multi_device").glob("test_*_layouts.py")):
        module = importlib.import_module(f"tests.multi_device.{path.stem}")
        for row in getattr(module, "TABLE", ()):
            yield laid_out(*row.values)


def compiled(e: Experiment) -> Line:
    with jax.enable_x64(True):
        plan = make_plan(e)
        return line(e, tables.compiled_collectives(plan, step.compile_step(plan)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="*", help="all by default")
    parser.add_argument("--compare", action="store_true", help="print what differs, and write nothing")
    args = parser.parse_args()
    before = lines() if FILE.exists() else {}
    after: dict[str, Line] = {}
    for e in cases():
        name = key(e)
        if args.experiment and e.name not in args.experiment:
            if name in before:
                after[name] = before[name]
            continue
        after[name] = compiled(e)
        if changed := difference(before.get(name), after[name]):
            print(name, json.dumps(changed), flush=True)
    if not args.compare:
        FILE.write_text("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in after.items()) + "\n}\n")
    return 0


if __name__ == "__main__":
    cli.run(main)
