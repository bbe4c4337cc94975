"""Contracts of communication: what the steps of tiny experiments send under their layouts, as tests/contracts.json has it.

    .venv/bin/python -m tests.helpers.contracts                    compiles every case and rewrites the file: minutes
    .venv/bin/python -m tests.helpers.contracts gpt.quickstart     rewrites the lines of some experiments
    .venv-newest/bin/python -m tests.helpers.contracts             the same for a newer JAX: only lines that differ

A case is a row of a TABLE in tests/multi_device: an experiment, a layout and its mesh. Its line has

- `rows`: bytes on one device a step, in double precision, by component, kind of collective, mesh axes and place
  (collectives.summary), without those in loops whose count the data decide;
- `sent`: the bytes that a device sends;
- `least`: those of an analytic bound (trainers.pods.bound), which has weights gathered forward and backward, gradients summed
  once, sums and exchanges of activations by the layout's rules; null for rings of keys, which it does not know.

Lines are of the JAX for Python 3.11. Another release notes some collectives for another component, so rows are compared without
it; where it sends something else, the line is written again under that release ("differs").
"""

import argparse
import functools
import importlib
import json
from collections import Counter
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
        if row["bytes"] is None:
            continue
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
def stored() -> dict[str, Any]:
    """The file: the `jax` that wrote its lines, `cases` (lines by key), `differs` (by release of another JAX, lines by key)."""
    return json.loads(FILE.read_text())


def difference(before: Line, after: Line, *, by_component: bool) -> dict[str, Any]:
    """Returns (before, after) of each row and sum that changed."""
    flat = [_flat(line, by_component) for line in (before, after)]
    names = sorted(flat[0].keys() | flat[1].keys())
    return {name: (flat[0].get(name), flat[1].get(name)) for name in names if flat[0].get(name) != flat[1].get(name)}


def _flat(line: Line, by_component: bool) -> Counter[str]:
    flat = Counter({name: value for name, value in line.items() if name != "rows"})
    for name, size in line.get("rows", {}).items():
        flat[name if by_component else name.partition(" ")[2]] += size
    return flat


def assert_kept(e: Experiment, collectives: Sequence[Collective]) -> None:
    """Fails if a compiled step sends anything else than its line says; passes where there is no line."""
    name, file = key(e), stored()
    if name in file["cases"]:
        before = file["differs"].get(jax.__version__, {}).get(name, file["cases"][name])
        changed = difference(before, line(e, collectives), by_component=jax.__version__ == file["jax"])
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
    args = parser.parse_args()
    file = stored() if FILE.exists() else {"jax": jax.__version__, "cases": {}, "differs": {}}
    own = jax.__version__ == file["jax"]
    before = file["cases"] if own else file["differs"].get(jax.__version__, {})
    after: dict[str, Line] = {}
    for e in cases():
        name = key(e)
        if args.experiment and e.name not in args.experiment:
            after |= {name: before[name]} if name in before else {}
            continue
        now = compiled(e)
        if changed := difference(file["cases"].get(name, {}), now, by_component=own):
            print(name, json.dumps(changed), flush=True)
        if own or changed:
            after[name] = now
    write(file | {"cases": after} if own else file | {"differs": file["differs"] | {jax.__version__: after}})
    return 0


def write(file: dict[str, Any]) -> None:
    """Writes the file, a case a line."""
    differs = {release: _lines(table) for release, table in file["differs"].items()}
    texts = ", ".join(f"{json.dumps(release)}: {text}" for release, text in differs.items())
    FILE.write_text(f'{{"jax": "{file["jax"]}", "cases": {_lines(file["cases"])}, "differs": {{{texts}}}}}\n')


def _lines(table: dict[str, Line]) -> str:
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(line)}" for name, line in table.items()) + "\n}"


if __name__ == "__main__":
    cli.run(main)
