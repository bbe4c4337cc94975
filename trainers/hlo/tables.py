"""Tables about an experiment: its parameters, their placement, and the communication of its compiled step."""

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from configs import registry
from configs.experiment import Experiment
from models.families import family_of
from models.sharding.params import ParamInfo
from trainers import step
from trainers.hlo import activations, diagrams
from trainers.hlo.collectives import Collective, collectives, summary, table
from trainers.hlo.parsing import parse
from trainers.plan import Plan, make_plan
from trainers.runtime.chips import planned_chip, set_for
from trainers.text_table import text_table


def describe(e: Experiment) -> dict[str, Any]:
    """Returns sizes and placement of every parameter, as plain values; needs no device and no array.

    Keys: experiment (its JSON form), config (fields by path), layout, parameters (how many), convention (what published counts
    include, where they differ), components (how many of each), tensors (name, component, shape, dtype, axes, spec,
    bytes_per_device, decayed), bytes_per_device (parameters, optimizer), compiler (chip, set and options of the compiler on the
    TPU generation that it is planned for), pictures (lines of text, see trainers/hlo/diagrams.py).
    """
    plan = make_plan(e, abstract=True)
    tensors = [_tensor(info) for info in plan.parameters]
    by_component: Counter[str] = Counter()
    for info in plan.parameters:
        by_component[info.scope.path] += info.size
    return {
        "experiment": registry.to_json(e),
        "config": dict(line.split(": ", 1) for line in registry.lines(e)),
        "layout": {
            "name": e.layout.name,
            "mesh": dict(e.layout.mesh),
            "rules": _rules(plan),
            "pipelines": diagrams.pipelines(e.layout),
        },
        "compiler": _compiler(e),
        "pictures": diagrams.pictures(plan.parameters, e.layout, family_of(e.model).activations),
        "parameters": sum(info.size for info in plan.parameters),
        **({"convention": convention} if (convention := family_of(e.model).convention(e.model)) else {}),
        "components": dict(sorted(by_component.items())),
        "tensors": tensors,
        "padded": padded_dimensions(plan),
        "bytes_per_device": {"parameters": sum(t["bytes_per_device"] for t in tensors), "optimizer": optimizer_bytes(plan)},
    }


def _compiler(e: Experiment) -> dict[str, Any]:
    """Returns the compiler options of a run on the TPU generation that the experiment is planned for."""
    chip = planned_chip(e)
    name = set_for(e, chip)
    return {"chip": chip.name, "set": name, "options": dict(chip.option_set(name))}


def _tensor(info: ParamInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "component": info.scope.path,
        "shape": list(info.shape),
        "dtype": str(np.dtype(info.dtype)),
        "axes": list(info.axes),
        "spec": _spec_text(info.spec()),
        "bytes_per_device": info.bytes_per_device,
        "decayed": info.is_matrix,
    }


def optimizer_bytes(plan: Plan) -> int:
    """Returns the bytes of the optimizer's state on one device."""
    total = 0
    for leaf, spec in plan.optimizer_specs().values():
        cuts = [(axes,) if isinstance(axes, str) else axes or () for axes in (*spec, *[None] * (leaf.ndim - len(spec)))]
        total += plan.experiment.layout.shard_size(leaf.shape, cuts) * np.dtype(leaf.dtype).itemsize
    return total


def step_memory(plan: Plan, compiled: jax.stages.Compiled) -> dict[str, int]:
    """Returns the bytes of a compiled step on one device by category, which add up to the peak that the compiler counts:
    parameters, optimizer (unless its state is in the host's memory), batch, other (outputs that reuse no input), temporary."""
    analysis: Any = compiled.memory_analysis()
    parameters = sum(info.bytes_per_device for info in plan.parameters)
    optimizer = 0 if plan.experiment.execution.offloads_optimizer else optimizer_bytes(plan)
    output = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    batch = analysis.argument_size_in_bytes - parameters - optimizer
    memory = {"parameters": parameters, "optimizer": optimizer, "batch": batch, "other": output}
    return memory | {"temporary": analysis.peak_memory_in_bytes - sum(memory.values())}


def padded_dimensions(plan: Plan) -> list[dict[str, Any]]:
    """Returns the dimensions of parameters, and of activations of a like name ("act_mlp"), that the layout pads."""
    layout, rows = plan.experiment.layout, {}
    for info in plan.parameters:
        table = layout.resolve(info.scope.path)
        for weight, size in zip(info.axes, info.shape, strict=True):
            for name in {weight, f"act_{weight}"}.intersection(layout.pad):
                shards = layout.num_shards(table.get(name, ()))
                if size % shards:
                    rows[name, size, shards] = {
                        "name": name,
                        "size": size,
                        "padded": -(-size // shards) * shards,
                        "shards": shards,
                    }
    return [rows[key] for key in sorted(rows)]


def padding_text(rows: list[dict[str, Any]]) -> list[str]:
    """Returns `padded_dimensions` as a line, none where nothing is padded."""
    texts = (
        f"{r['name']} {r['size']:,} to {r['padded']:,} ({r['padded'] / r['size'] - 1:.2%}) over {r['shards']} shards"
        for r in rows
    )
    return [f"padded: {', '.join(texts)}"] if rows else []


def _rules(plan: Plan) -> dict[str, dict[str, str]]:
    """Returns the rules of each component that has parameters, as text."""
    layout = plan.experiment.layout
    paths = sorted({info.scope.path for info in plan.parameters})
    return {path: {k: "*".join(v) for k, v in layout.resolve(path).items() if v} for path in paths}


def _spec_text(spec: Any) -> str:
    parts = ["-" if axes is None else axes if isinstance(axes, str) else "*".join(axes) for axes in spec]
    return f"({', '.join(parts)})"


def compiled_collectives(plan: Plan, compiled: jax.stages.Compiled) -> list[Collective]:
    """Returns the collectives of a plan's compiled program."""
    return collectives(parse(compiled.as_text() or ""), dict(plan.experiment.layout.mesh), strict=False)


def communication(e: Experiment) -> dict[str, Any]:
    """Returns the communication of the compiled training step: `rows` (collectives.summary) and `expert_gathers`."""
    plan = make_plan(e)
    collectives = compiled_collectives(plan, step.compile_step(plan))
    return {"rows": summary(collectives), "expert_gathers": expert_gathers(e, collectives)}


def expert_gathers(e: Experiment, collectives: Iterable[Collective]) -> int:
    """Returns how many all-gathers bring expert weights or dispatched tokens to devices that hold other experts.

    Expert parallelism must not have any. Such a gather goes over a mesh axis that cuts experts, and leaves as many
    elements as such a tensor has when these axes no longer cut it, and as no dense weight has.
    """
    tensors: list[tuple] = [(i.axes, i.shape, i.scope.path) for i in make_plan(e, abstract=True).parameters]
    expert_tensors = [tensor for tensor in tensors if "expert" in tensor[0]]
    dense = [tensor for tensor in tensors if "expert" not in tensor[0]]
    if not expert_tensors:
        return 0
    dispatched = {a.shape for a in activations.activations(e) if a.kind.exchanged and a.axes[0] and a.axes[3:]}
    for path, shape in itertools.product({path for _, _, path in expert_tensors}, dispatched):
        experts, groups, *slots = shape
        tokens = (experts, groups // e.train.microbatches, *slots)
        for names in ((None, "group", None, "act_embed"), ("act_expert", "expert_group", None, "act_embed")):
            expert_tensors.append((names, tokens, path))

    def sizes(tensors: list, gathered: set[str]) -> set[int]:
        """Returns the numbers of elements on one device when tensors are not cut by `gathered`, and in one layer of a stack."""
        result = set()
        for names, shape, path in tensors:
            cuts = [tuple(axis for axis in axes if axis not in gathered) for axes in e.layout.cut(names, component=path)]
            size = e.layout.shard_size(shape, cuts)
            result |= {size, size // shape[0]} if names[0] == "layers" else {size}
        return result

    def gathers_experts(path: str, gathered: set[str]) -> bool:
        rules = e.layout.resolve(path)
        return not gathered.isdisjoint(rules.get("expert", ()) + rules.get("act_expert", ()))

    count = 0
    for collective in collectives:
        axes = set(dict(e.layout.mesh) if collective.axes is None else collective.axes)
        suspect = sizes([t for t in expert_tensors if gathers_experts(t[2], axes)], axes) - sizes(dense, axes)
        count += collective.kind == "all-gather" and any(shape.size in suspect for shape in collective.shapes)
    return count


def as_text(e: Experiment, description: dict[str, Any]) -> str:
    """Returns `describe` (and `communication`, if it is included) as text."""
    mib = 2**20
    mesh = " x ".join(f"{k} {v}" for k, v in description["layout"]["mesh"].items())
    lines = [registry.page(e.name), "", "Config"]
    lines += [f"  {k}: {v}" for k, v in description["config"].items() if not k.startswith("layout.")]
    lines += ["", f"Layout {description['layout']['name']!r} on {mesh} = {e.layout.devices} devices"]
    for path, rules in description["layout"]["rules"].items():
        lines.append(f"  {path:24} " + "  ".join(f"{k}->{v}" for k, v in sorted(rules.items())))
    lines += ["", "What each axis of the mesh does in each part, and which devices hold which shard"]
    lines += [f"  {line}".rstrip() for line in description["pictures"]]
    compiler = description["compiler"]
    lines += ["", f"Compiler options on TPU {compiler['chip']}, set {compiler['set']!r} (trainers/runtime/chips.py)"]
    lines += [f"  {name}: {value}" for name, value in compiler["options"].items()]
    rows = [
        [t["name"], "x".join(map(str, t["shape"])), " ".join(t["axes"]), t["spec"], f"{t['bytes_per_device'] / mib:,.3f}"]
        for t in description["tensors"]
    ]
    head = ["parameter", "shape", "names", "PartitionSpec", "MiB/device"]
    lines += ["", *(f"  {line}" for line in text_table(head, rows, {4}))]
    lines += ["", *([f"Counted: {description['convention']}"] if "convention" in description else []), "Components"]
    lines += [f"  {k:24} {v:>20,}" for k, v in description["components"].items()]
    memory = description["bytes_per_device"]
    lines += [
        "",
        f"{description['parameters']:,} parameters; per device {memory['parameters'] / mib:,.1f} MiB of parameters, "
        f"{memory['optimizer'] / mib:,.1f} MiB of optimizer state",
    ]
    lines += padding_text(description["padded"])
    if "collectives" in description:
        lines += ["", "Collectives of the compiled training step"]
        lines += [f"  {line}" for line in table(description["collectives"]["rows"])]
        lines.append(f"  all-gathers of expert weights or dispatched tokens: {description['collectives']['expert_gathers']}")
    return "\n".join(lines)
