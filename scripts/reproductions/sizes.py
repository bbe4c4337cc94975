"""Counts of parameters and FLOPs of experiments at full size, without an array, and published counts beside them."""

import dataclasses
import functools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment
from models.sharding.layouts import ONE_DEVICE
from scripts.reproductions.entry import Entry, Row, entry


def parameters(name: str) -> int:
    """Returns the number of parameters of an experiment."""
    return sum(parts(name).values())


def parts(name: str) -> dict[str, int]:
    """Returns the number of elements of each parameter of an experiment, by name."""
    return _parts_of(registry.load(name))


def parameters_of(e: Experiment) -> int:
    """Returns the number of parameters of an experiment that has no name of its own."""
    return sum(_parts_of(e).values())


@functools.cache
def _parts_of(e: Experiment) -> dict[str, int]:
    from trainers.plan import make_plan

    plan = make_plan(dataclasses.replace(e, layout=ONE_DEVICE), abstract=True)
    return {info.name: info.size for info in plan.parameters}


def step_flops(name: str) -> float:
    """Returns the model FLOPs of a training step, recomputation not counted (PaLM's definition)."""
    return _flops_of(registry.load(name))


@functools.cache
def _flops_of(e: Experiment) -> float:
    from trainers.hlo.model_flops import model_flops

    return model_flops(e)


def _rows(groups: list[Mapping[str, Any]]) -> Iterator[Row]:
    """Yields a row for each line of the groups of a table of printed_sizes.toml."""
    for group in groups:
        family, without = group.get("family"), group.get("without")
        for label, paper in group["rows"].items():
            counts = parts(f"{family}.{label}" if family else label)
            count = sum(n for name, n in counts.items() if not (without and name.startswith(without)))
            yield Row(label, paper, count, group.get("differs", ""), group.get("stated", ""))


def _printed(name: str, table: Mapping[str, Any]) -> Entry:
    settings = {"claim": table["claim"], "unit": "parameters", "minutes": table.get("minutes", 0.5)}
    return entry(name, lambda: _rows(table["groups"]), table["source"], table.get("stated", ()), **settings)


PRINTED_SIZES = [
    _printed(f"{module}.{name}", table)
    for module, tables in tomllib.loads(Path(__file__).with_name("printed_sizes.toml").read_text()).items()
    for name, table in tables.items()
]
