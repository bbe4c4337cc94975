"""The candidates of a search: a family's layouts with sizes that suit a slice, their placements on its torus, and the policies of
the backward pass. All of them are valid, as far as is known without tracing the step.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

from configs.experiment import Experiment
from models.execution import Execution
from models.families import family_of
from models.sharding import remat, torus
from models.sharding.layout import Layout, LayoutError, Rules
from models.sharding.layouts import Recipe, also, over_slices
from trainers.hlo import variants
from trainers.hlo.activations import CARRY, activations
from trainers.pods.bound import Work
from trainers.runtime.chips import Slice

OFFLOADS = (remat.LAYER_IN, f"{remat.LAYER_IN}+{remat.OPTIMIZER}")
STAGES, MICROBATCHES = 32, 8  # upper limits: of stages, and of microbatches for each stage


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An experiment with another plan, and a short description of that plan."""

    experiment: Experiment
    text: str


def candidates(e: Experiment, pod: Slice) -> list[Candidate]:
    """Returns all different plans of an experiment that suit a slice; its own come first if it has as many devices."""
    plans, seen, executions = [], set(), _executions(e)
    for layout in _layouts(e, pod):
        if (key := _key(layout, pod)) in seen:
            continue
        seen.add(key)
        for how in executions:
            new = dataclasses.replace(e, execution=how, layout=layout)
            plans.append(Candidate(new, describe(new, pod)))
    return plans


def describe(e: Experiment, pod: Slice) -> str:
    """Returns a short description of a plan: "two_d 256x8 data=yz model=x remat=full"."""
    layout, placement = e.layout, torus.assignment(e.layout.mesh_of_slice, pod.places, e.layout.torus)
    words = [layout.name, "x".join(str(size) for _, size in layout.mesh)]
    for _, pipeline in layout.pipelines[-1:]:
        words += [f"m={pipeline.microbatches}", f"v={pipeline.chunks}"]
    words += [f"{axis}={torus.as_text(parts, pod.places)}" for axis, parts in placement.items() if parts]
    by_component = [f"remat[{path}]={kept}" for path, kept in e.execution.remat_of]
    on_host = [f"offload={e.execution.offload}"] if e.execution.offload != "none" else []
    return " ".join([*words, f"remat={e.execution.remat}", *by_component, *on_host])


def distance(e: Experiment, other: Experiment) -> tuple[bool, float, bool]:
    """Returns the distance of two plans: (another layout, doublings of sizes and microbatches, another `remat`)."""

    def rules(layout: Layout) -> Any:
        schedules = [(path, pipeline.schedule) for path, pipeline in layout.pipelines]
        return layout.rules, layout.components, layout.optimizer, layout.pad, schedules

    def sizes(layout: Layout) -> list[int]:
        settings = (n for _, pipeline in layout.pipelines for n in (pipeline.microbatches, pipeline.chunks))
        return [*(size for _, size in layout.mesh), *settings]

    pairs = itertools.zip_longest(sizes(e.layout), sizes(other.layout), fillvalue=1)
    doublings = sum(abs(math.log2(a / b)) for a, b in pairs)
    return rules(e.layout) != rules(other.layout), doublings, e.execution != other.execution


def _executions(e: Experiment) -> list[Execution]:
    """Returns executions that differ in what the backward pass keeps, and where, the experiment's own first; only what the model
    has."""
    has = {a.name for a in activations(e)}
    policies = (p for p in family_of(e.model).policies if has.issuperset(remat.names(p)))
    on_device = [variants.with_remat(e, policy).execution for policy in policies]
    recomputing = [how for how in on_device if how.remat not in remat.NAMELESS and CARRY in has]
    on_host = [dataclasses.replace(how, offload=offload) for how in recomputing for offload in OFFLOADS]
    return list(dict.fromkeys([e.execution, *on_device, *on_host]))


def _layouts(e: Experiment, pod: Slice) -> Iterator[Layout]:
    own = [e.layout] if (e.layout.devices, e.layout.slices) == (pod.devices, pod.slices) else []
    added = _added_rules(e)
    others = (over_slices(layout, pod.slices) for layout in itertools.chain(_flat(e, pod), _pipelined(e, pod)))
    for layout in itertools.chain(own, others):
        if layout is not e.layout:
            mesh = dict(layout.mesh)
            kept = (item for item in added if all(axis in mesh for _, axes in item[1] for axis in axes))
            layout = dataclasses.replace(layout, components=(*layout.components, *kept))
        for valid in _valid(e, layout):
            yield from _placements(valid, pod)


def _searched(e: Experiment) -> list[Recipe]:
    """Returns the recipes that the family lets a search vary."""
    family = family_of(e.model)
    recipes = family.searched(e.model) if family.searched else family.layouts
    return [recipe for recipe in recipes.values() if recipe.largest]


def _flat(e: Experiment, pod: Slice) -> Iterator[Layout]:
    for recipe in _searched(e):
        for y in () if recipe.is_pipeline else _sizes(pod, recipe.largest):
            yield recipe(math.prod(pod.places) // y, y)


def _pipelined(e: Experiment, pod: Slice) -> Iterator[Layout]:
    """Yields pipelines with as many microbatches as divide the rows of a data shard."""
    rows = e.data.batch_size // e.train.microbatches // pod.slices
    for recipe in _searched(e):
        if not recipe.is_pipeline:
            continue
        for p, y in itertools.product(_sizes(pod, STAGES)[1:], _sizes(pod, recipe.largest)):
            x, remainder = divmod(math.prod(pod.places), p * y)
            m = max((p * k for k in range(2, MICROBATCHES + 1) if x and rows % (p * k * x) == 0), default=0)
            for v in recipe.chunks if m and not remainder else ():
                layout = recipe(p, x, y)
                settings = {path: dataclasses.replace(s, microbatches=m, chunks=v) for path, s in layout.pipelines}
                yield dataclasses.replace(layout, pipelines=tuple(settings.items()))


def _sizes(pod: Slice, limit: int) -> list[int]:
    """Returns sizes of a mesh axis: powers of two, also times 3 where a side has 12 chips."""
    odd = {d // (d & -d) for d in (1, *pod.dims)}
    devices = math.prod(pod.places)
    return [d for d in range(1, min(devices, limit) + 1) if devices % d == 0 and d // (d & -d) in odd]


def _added_rules(e: Experiment) -> list[tuple[str, Rules]]:
    """Returns the experiment's rules for single components beyond those of its family's layout."""
    sizes = [size for _, size in e.layout.mesh_of_slice]
    for recipe in family_of(e.model).layouts.values():
        if len(recipe.axes) == len(sizes):
            base = over_slices(recipe(*sizes), e.layout.slices)
            if (base.mesh, base.rules) == (e.layout.mesh, e.layout.rules):
                return [item for item in e.layout.components if item not in base.components]
    return []


def _valid(e: Experiment, layout: Layout) -> Iterator[Layout]:
    """Yields the layout if it fits; for a vocabulary that its mesh does not divide, those that pad it and that do not cut it."""
    try:
        Work(dataclasses.replace(e, layout=layout))
        yield layout
        return
    except LayoutError as error:
        if "'vocab'" not in str(error):
            return
    rules, pad = also(layout.rules, vocab=None, act_vocab=None), (*layout.pad, "act_vocab", "vocab")
    for choice in (
        dataclasses.replace(layout, name=f"{layout.name}_padded_vocabulary", pad=pad),
        dataclasses.replace(layout, name=f"{layout.name}_whole_vocabulary", rules=rules),
    ):
        with contextlib.suppress(LayoutError):
            Work(dataclasses.replace(e, layout=choice))
            yield choice


def _placements(layout: Layout, pod: Slice) -> Iterator[Layout]:
    """Yields the layout in its default placement on the torus and in the best placement of another shape, if there are any."""
    sides = dict(zip(torus.LETTERS, pod.places, strict=False))

    def shape(assignment: torus.Assignment) -> list:
        return [sorted((sides[letter], n) for letter, n in assignment[axis]) for axis, _ in layout.mesh_of_slice]

    try:
        default = torus.assignment(layout.mesh_of_slice, pod.places, layout.torus)
        assignments = torus.assignments(layout.mesh_of_slice, pod.places)
    except LayoutError:
        return
    yield layout
    if other := next((assignment for assignment in assignments if shape(assignment) != shape(default)), None):
        placement = tuple((axis, torus.as_text(parts, pod.places)) for axis, parts in other.items() if parts)
        yield dataclasses.replace(layout, torus=placement)


def _key(layout: Layout, pod: Slice) -> Any:
    """Returns a key that is equal for layouts that differ only in names and in mesh axes of a single device."""
    number = {axis: i for i, (axis, _) in enumerate((axis, size) for axis, size in layout.mesh if size > 1)}

    def plain(rules: Rules) -> tuple:
        return tuple((name, tuple(number[axis] for axis in axes if axis in number)) for name, axes in rules)

    def cutting(rules: Rules) -> tuple:
        return tuple((name, axes) for name, axes in plain(rules) if axes)

    placement = torus.assignment(layout.mesh_of_slice, pod.places, layout.torus)
    components = tuple((path, plain(rules)) for path, rules in layout.components)
    mesh = tuple((size, placement[axis]) for axis, size in layout.mesh_of_slice if size > 1)
    rules = cutting(layout.rules), components, cutting(layout.optimizer)
    return mesh, *rules, layout.pipelines, layout.balanced, layout.pad
