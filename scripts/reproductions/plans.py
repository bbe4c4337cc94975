"""Modelled steps of pod experiments, kept in a folder so that a table is not compiled twice."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from configs import registry
from data.paths import write_whole
from models.sharding.layout import Layout


def modelled(folder: Path, name: str, layout: Layout | None = None) -> dict[str, Any]:
    """Returns the report of an experiment's step on its own slice (trainers/pods/report.py), from the folder if it is there.

    Compiles for a minute or more otherwise; needs `make setup DEVICE=plan`.

    Args:
      layout: in place of the experiment's own; its name tells the two apart in the folder.
    """
    from configs.pods import PODS
    from trainers.pods import libtpu, report
    from trainers.runtime.chips import parse_slice, set_for

    e, file = registry.load(name), folder / f"{name}{f'.{layout.name}' if layout else ''}.json"
    e = dataclasses.replace(e, layout=layout or e.layout)
    if file.exists():
        return json.loads(file.read_text())
    libtpu.prepare()
    where = parse_slice(PODS[name].slice)
    planned, _ = report.plan(e, where, set_for(e, where.chip))
    del planned["spans"], planned["windows"]
    write_whole(file, json.dumps(planned, default=str))
    return planned
