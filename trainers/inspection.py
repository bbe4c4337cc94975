"""Tables about an experiment: its parameters, where they lie, and what its compiled step communicates."""

import dataclasses
import itertools
import math
import re
from collections import Counter
from typing import Any

import jax
import numpy as np

from configs import registry
from configs.schema import Experiment
from data.batches import Batches, batch_shapes
from data.rows import open_source
from models.common.moe import capacity
from models.common.sharding import ParamInfo
from trainers import optimizers, state, step


def describe(e: Experiment) -> dict[str, Any]:
    """Sizes and placement of every parameter, as plain values; needs no device and no array.

    Keys: experiment, config (fields by path), layout, parameters (how many), components (how many of each), tensors
    (name, component, shape, dtype, axes, spec, bytes_per_device, decayed), bytes_per_device (parameters, optimizer).
    """
    p = state.plan(e, abstract=True)
    tensors = [_tensor(info) for info in p.parameters]
    by_component: Counter[str] = Counter()
    for info in p.parameters:
        by_component[info.where.path] += info.size
    return {
        "experiment": e.name,
        "config": dict(line.split(": ", 1) for line in registry.lines(e)),
        "layout": {"name": e.layout.name, "mesh": dict(e.layout.mesh), "rules": _rules(p)},
        "parameters": sum(info.size for info in p.parameters),
        "components": dict(sorted(by_component.items())),
        "tensors": tensors,
        "bytes_per_device": {
            "parameters": sum(t["bytes_per_device"] for t in tensors),
            "optimizer": _optimizer_bytes(p),
        },
    }


def _tensor(info: ParamInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "component": info.where.path,
        "shape": list(info.shape),
        "dtype": str(np.dtype(info.dtype)),
        "axes": list(info.axes),
        "spec": _spec_text(info.spec()),
        "bytes_per_device": info.bytes_per_device,
        "decayed": info.is_matrix,
    }


def _optimizer_bytes(p: state.Plan) -> int:
    """Bytes of the optimizer's state on one device."""
    total = 0
    for leaf, spec in optimizers.state_specs(p.state.optimizer, p.infos).values():
        pieces = math.prod(p.experiment.layout.ways((axes,) if isinstance(axes, str) else axes or ()) for axes in spec)
        total += math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize // pieces
    return total


def _rules(p: state.Plan) -> dict[str, dict[str, str]]:
    """The rules in force in each component that has parameters, as text."""
    layout = p.experiment.layout
    paths = sorted({info.where.path for info in p.parameters})
    return {path: {k: "*".join(v) for k, v in layout.resolve(path).items() if v} for path in paths}


def _spec_text(spec: Any) -> str:
    parts = ["-" if axes is None else axes if isinstance(axes, str) else "*".join(axes) for axes in spec]
    return f"({', '.join(parts)})"


def exact(e: Experiment) -> Experiment:
    """The same experiment in double precision; run it inside `jax.enable_x64(True)`."""
    return dataclasses.replace(
        e,
        model=dataclasses.replace(e.model, dtype="float64"),
        train=dataclasses.replace(e.train, master_dtype="float64"),
    )


def trial(e: Experiment, steps: int, devices: list | None = None, initial: Any = None) -> tuple[list[dict], dict]:
    """Runs the first steps: (each one's metrics, the compiled step's collectives).

    Args:
      initial: a State on the host to start from; a fresh one by default.
    """
    p = state.plan(e, devices)
    batches = Batches(open_source(e.data, e.model), e.data, p.batch_shardings())
    compiled = step.compile_step(p, batch_shapes(e.data))
    current = state.create(p) if initial is None else jax.device_put(initial, p.shardings)
    found = []
    for i in range(steps):
        current, metrics = compiled(current, batches(i))
        found.append(jax.tree.map(np.asarray, metrics))
    batches.close()
    return found, count_collectives(compiled.as_text() or "", p)


KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_COLLECTIVE = re.compile(rf"= (\S.*?) ({'|'.join(KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"([a-z]+\d+)\[([\d,]*)\]")


def collectives(e: Experiment) -> dict[str, Any]:
    """What the compiled training step sends between devices: {kind: {"count", "shapes"}}, and `expert_gathers`.

    `expert_gathers` counts all-gathers whose result is as large as expert weights, or dispatched tokens, gathered over any
    mesh axes: what expert parallelism must not do. Loop bodies count once.
    """
    p = state.plan(e)
    return count_collectives(step.compile_step(p, batch_shapes(e.data)).as_text() or "", p)


def count_collectives(hlo: str, p: state.Plan) -> dict[str, Any]:
    """`collectives` of a compiled program's text."""
    shapes: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    counts: Counter[str] = Counter()
    for result, kind in _COLLECTIVE.findall(hlo):
        counts[kind] += 1
        for dtype, dims in _ARRAY.findall(result):
            shapes[kind][f"{dtype}[{dims}]"] += 1
    found: dict[str, Any] = {
        kind: {"count": counts[kind], "shapes": dict(shapes[kind].most_common(8))} for kind in KINDS if counts[kind]
    }
    found["expert_gathers"] = _expert_gathers(shapes["all-gather"], p)
    return found


def _expert_gathers(gathered: Counter[str], p: state.Plan) -> int:
    """How many all-gathers have as many elements as expert weights or dispatched tokens gathered over some mesh axes."""
    e, layout = p.experiment, p.experiment.layout
    model: Any = e.model
    if not getattr(model, "experts", 0):
        return 0
    whole = {info.size // n for info in p.parameters if "expert" in info.axes for n in (1, info.shape[0])}
    lengths = {array.shape[0] for array in e.data.arrays().values() if array.axes == ("length",)}
    for length in lengths:
        groups = e.data.batch_size // e.train.microbatches * length // model.group_size
        slots = capacity(model.capacity_factor, model.group_size, model.experts)
        whole.add(groups * model.experts * slots * model.model_dim)
    # A gather over one of two mesh axes leaves each device with a part of the whole, larger than its own share.
    ways = {
        math.prod(sizes)
        for n in range(len(layout.mesh))
        for sizes in itertools.combinations(dict(layout.mesh).values(), n)
    }
    suspicious = {size // way for size in whole for way in ways if way < layout.devices}
    dense = [info for info in p.parameters if "expert" not in info.axes]
    own = {size // n for info in dense for size in (info.piece, info.size) for n in (1, info.shape[0])}
    count = 0
    for text, n in gathered.items():
        found = _ARRAY.match(text)
        size = math.prod(int(d) for d in found[2].split(",") if d) if found else 0
        count += n if size in suspicious - own else 0  # a dense weight of the same size is no suspect
    return count


def as_text(e: Experiment, found: dict[str, Any]) -> str:
    """`describe` (and `collectives`, if there) for people."""
    mib = 2**20
    mesh = " x ".join(f"{k} {v}" for k, v in found["layout"]["mesh"].items())
    lines = [registry.lookup(e.name).__doc__ or "", "Config"]
    lines += [f"  {k}: {v}" for k, v in found["config"].items() if not k.startswith("layout.")]
    lines += ["", f"Layout {found['layout']['name']!r} on {mesh} = {e.layout.devices} devices"]
    for path, rules in found["layout"]["rules"].items():
        lines.append(f"  {path:24} " + "  ".join(f"{k}->{v}" for k, v in sorted(rules.items())))
    width = max(len(t["name"]) for t in found["tensors"])
    lines += ["", f"  {'parameter':{width}} {'shape':24} {'names':28} {'PartitionSpec':32} {'MiB/device':>11}"]
    for t in found["tensors"]:
        shape, axes = "x".join(map(str, t["shape"])), " ".join(t["axes"])
        lines.append(f"  {t['name']:{width}} {shape:24} {axes:28} {t['spec']:32} {t['bytes_per_device'] / mib:11,.3f}")
    lines += ["", "Components"] + [f"  {k:24} {v:>20,}" for k, v in found["components"].items()]
    memory = found["bytes_per_device"]
    lines += [
        "",
        f"{found['parameters']:,} parameters; per device {memory['parameters'] / mib:,.1f} MiB of parameters, "
        f"{memory['optimizer'] / mib:,.1f} MiB of optimizer state",
    ]
    if "collectives" in found:
        kinds = {k: v for k, v in found["collectives"].items() if k != "expert_gathers"}
        lines += ["", "Collectives of the compiled training step (loop bodies count once)"]
        lines += [f"  {k:20} {v['count']:4}  {'  '.join(v['shapes'])}" for k, v in kinds.items()]
        lines.append(f"  all-gathers of expert weights or dispatched tokens: {found['collectives']['expert_gathers']}")
    return "\n".join(lines)
