"""An experiment whose tables have more rows than a batch reads, and its first steps by whole tables."""

import dataclasses
import math
import re
from typing import Any

from configs import registry
from configs.experiment import Experiment
from configs.optimizers import AdaGrad, ByComponent, Constant, OfComponent
from models.dlrm.config import Table
from models.parts.nested import changed
from trainers.hlo import equality
from trainers.optimizers import by_rows

TABLES = (
    *(Table(rows=900, hotness=3), Table(rows=40), Table(rows=1300), Table(rows=300, hotness=2)),
    *(Table(rows=1100, hotness=2), Table(rows=35), Table(rows=200)),
)
NAMES = {f"tables.{group}.table" for group in ("small", "middle", "large")}
RATE = Constant(value=0.1)
ADAGRAD = AdaGrad(schedule=RATE, initial=0.1)
ROW_WISE = dataclasses.replace(ADAGRAD, by_row=True)


def of_tables(rule: Any) -> ByComponent:
    """AdaGrad of the network, another optimizer of all tables."""
    return ByComponent(others=ADAGRAD, components=(OfComponent(path="tables", rule=rule),))


def experiment(rule: Any = ROW_WISE, rows: int = 1) -> Experiment:
    """DLRM in double precision, with two or three tables in each group, each with more rows than the ids of a batch.

    Args:
      rule: of the tables.
      rows: how many times as many rows the tables have.
    """
    tables = tuple(dataclasses.replace(table, rows=table.rows * rows) for table in TABLES)
    e = registry.tiny(registry.load("dlrm.quickstart"))
    settings = {
        "model.tables": tables,
        "model.small": 100 * rows,
        "model.large": 500 * rows,
        "model.bins": (8, 8, 8),
        "data.hotness": tuple(table.hotness for table in tables),
        "data.batch_size": 16,
        "optimizer": of_tables(rule),
    }
    return equality.exact(changed(e, settings))


def whole(monkeypatch: Any) -> None:
    """Has plans from here on change whole tables."""
    monkeypatch.setattr(by_rows, "readers", lambda *_: {})


def copies(text: str, size: int) -> list[str]:
    """The copies and gathers of at least so many numbers in a compiled program."""
    shapes = re.findall(r"= \w+\[([\d,]+)\]\S* (?:copy|all-gather)\(", text)
    return [shape for shape in shapes if math.prod(map(int, shape.split(","))) >= size]
