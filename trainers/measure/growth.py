"""How cost grows: step time over batch, length and experts, compile time over layers, host time over devices.

A curve is one small experiment on random tokens in several sizes. Its points are measured by turns, in short windows, so that
what else a machine does meets all of them alike; a figure is a median. A ratio is to the first point.
"""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from configs import registry
from configs.experiment import Experiment
from data.reading.batches import batch_shapes
from data.text.config import TextData
from data.translation.config import TranslationData
from models.parts.moe.config import MoeConfig
from models.sharding.layouts import data_parallel
from trainers import step
from trainers.measure import meter, throughput
from trainers.measure.meter import Meter
from trainers.measure.throughput import Subject
from trainers.plan import Plan, fresh_state, make_plan
from trainers.processes import versions
from trainers.programs.model_flops import model_flops

Point = dict[str, float]
WINDOW = 2  # steps of one point before the next one's turn
HOST_STEPS = 30  # likewise, where a step is next to nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """One cost over one size.

    Attributes:
      x: what grows, with its unit.
      experiment: of a size.
      measure: points of experiments, after so many rounds.
      columns: of a point, by name, what it is and its unit; the first is what the goal is about.
      goal: of the experiments, and of what was measured at the first, the most that each may come to.
      why: what the goal follows, for people.
      absolute: the goal is a figure of its own, not a growth.
    """

    name: str
    x: str
    sizes: tuple[int, ...]
    experiment: Callable[[int], Experiment]
    measure: Callable[[Sequence[Experiment], int], list[Point]]
    columns: dict[str, str]
    goal: Callable[[Sequence[Experiment], float], list[float]]
    why: str = ""
    absolute: bool = False

    @property
    def y(self) -> str:
        return next(iter(self.columns))


# --- experiments ---------------------------------------------------------------------------------------------------


def gpt(rows: int, length: int, layers: int = 4) -> Experiment:
    """gpt.bench_42m, narrower: layers of 256, vocabulary 8,192."""
    e = registry.load("gpt.bench_42m")
    model = dataclasses.replace(
        e.model, vocab=8192, layers=layers, model_dim=256, hidden_dim=1024, heads=4, max_positions=1024
    )
    execution = dataclasses.replace(e.execution, unroll=1)
    return dataclasses.replace(e, model=model, data=TextData(batch_size=rows, length=length), execution=execution)


def m4(experts: int) -> Experiment:
    """gshard_m4.bench_67m, narrower: four MoE layers, 4,096 source and as many target tokens in groups of 2,048, one expert each.

    An expert of 64 still gets 64 tokens and has 80 slots for them: 1.25 x 2048 / 64 in each of two groups. All experts together
    have as many slots whatever their number; weights, and with them the optimizer's work, are in proportion to it.
    """
    e = registry.load("gshard_m4.bench_67m")
    model = dataclasses.replace(
        e.model, source_vocab=2048, target_vocab=2048, model_dim=128, hidden_dim=256, heads=4, head_dim=32,
        moe=MoeConfig(experts=experts, gating="top1", group_size=2048, capacity_factor=1.25),
    )  # fmt: skip
    return dataclasses.replace(e, model=model, data=TranslationData(batch_size=32))


def tiny_gpt(devices: int) -> Experiment:
    """A GPT whose device work is next to nothing, data parallel; with the arrays of a large one, since layers are stacked."""
    e = registry.tiny(registry.load("gpt.bench_42m"))
    model, data = dataclasses.replace(e.model, layers=1), dataclasses.replace(e.data, batch_size=8)
    return dataclasses.replace(e, model=model, data=data, layout=data_parallel(devices, 1))


# --- measuring -----------------------------------------------------------------------------------------------------


def _opened(experiments: Sequence[Experiment], closing: contextlib.ExitStack) -> list[Subject]:
    return [closing.enter_context(throughput.opened(e)) for e in experiments]


def _ms(m: Meter) -> float:
    return 1000 * m.spread()["step_s_median"]


def step_times(experiments: Sequence[Experiment], rounds: int) -> list[Point]:
    """`step_ms` and `tokens_per_s` of training steps."""
    with contextlib.ExitStack() as closing:
        meters = [s.meter for s in _opened(experiments, closing)]
        meter.measure(meters, rounds * WINDOW, WINDOW)
        return [{"step_ms": _ms(m), "tokens_per_s": 1000 * float(m.outputs[0]["tokens"]) / _ms(m)} for m in meters]


def _optimizer(s: Subject) -> Meter:
    """What a step does once it has gradients, alone, on parameters, gradients and optimizer state of its own."""
    p = s.plan
    made = fresh_state(p)
    grads = p.split_trained(made.params)[0]  # values do not matter, shapes and places do
    current = jax.tree.map(jnp.copy, (grads, made.optimizer))

    def update(current, grads):
        params, optimizer = current
        updates, optimizer = p.tx.update(grads, optimizer, params)
        return (optax.apply_updates(params, updates), optimizer), optax.global_norm(grads)

    program = jax.jit(update, donate_argnums=0)

    def run(batch: step.Batch) -> jax.Array:
        nonlocal current
        current, norm = program(current, grads)
        return norm

    return Meter(run, s.meter.batch)


def step_and_optimizer_times(experiments: Sequence[Experiment], rounds: int) -> list[Point]:
    """`step_ms`; `optimizer_ms` of the optimizer alone; `gradients_ms`, the difference: forward and backward pass, and the look
    at whether all is finite."""
    with contextlib.ExitStack() as closing:
        pairs = [(s.meter, _optimizer(s)) for s in _opened(experiments, closing)]
        meter.measure([m for pair in pairs for m in pair], rounds * WINDOW, WINDOW)
        return [
            {"step_ms": _ms(whole), "gradients_ms": _ms(whole) - _ms(part), "optimizer_ms": _ms(part)}
            for whole, part in pairs
        ]


def compile_times(experiments: Sequence[Experiment], rounds: int) -> list[Point]:
    """`compile_s` of tracing, lowering and compiling the training step on one device."""
    plans = [make_plan(e, jax.devices()[: e.layout.devices]) for e in experiments]

    def seconds(p: Plan) -> float:
        began = time.perf_counter()
        step.compile_step(p, batch_shapes(p.experiment.data))
        return time.perf_counter() - began

    seconds(plans[0])  # what a process's first compilation alone pays for
    found = [[seconds(p) for p in plans] for _ in range(rounds)]
    return [{"compile_s": statistics.median(of_one)} for of_one in zip(*found, strict=True)]


def host_times(experiments: Sequence[Experiment], rounds: int) -> list[Point]:
    """What the trainer's thread spends on a step until it is dispatched, in milliseconds: `host_ms` of its own CPU time,
    `batch_ms`, the part of that in which it takes the batch from the thread that reads and places it, and `wall_ms`, with all
    that it waits for.

    CPU time leaves out waiting: for that thread, for devices, for a core that simulated devices are computing on. A step begins
    when the one before it is done. Logging, which comes every `train.log_every` steps, is not in it.
    """
    with contextlib.ExitStack() as closing:
        subjects = _opened(experiments, closing)
        spent: list[list[Point]] = [[] for _ in subjects]
        for _ in range(rounds):
            for s, points in zip(subjects, spent, strict=True):
                points += [_host(s.meter) for _ in range(HOST_STEPS)]
    return [{key: statistics.median(p[key] for p in points) for key in points[0]} for points in spent]


def _host(m: Meter) -> Point:
    """Of one step; returns when it is done."""
    wall, cpu = time.perf_counter(), time.thread_time()
    batch = m.batch(m.at)
    placed = time.thread_time()
    output = m.step(batch)
    point = {"host_ms": time.thread_time() - cpu, "batch_ms": placed - cpu, "wall_ms": time.perf_counter() - wall}
    m.at += 1
    jax.block_until_ready(output)
    return {key: 1000 * seconds for key, seconds in point.items()}


# --- curves --------------------------------------------------------------------------------------------------------


def as_flops(experiments: Sequence[Experiment], first: float) -> list[float]:
    """In proportion to the model's FLOPs."""
    flops = [model_flops(e) for e in experiments]
    return [first * f / flops[0] for f in flops]


def times(growth: float) -> Callable[[Sequence[Experiment], float], list[float]]:
    """At most so many times the first."""
    return lambda experiments, first: [growth * first] * len(experiments)


def at_most(value: float) -> Callable[[Sequence[Experiment], float], list[float]]:
    """A figure of its own, whatever the first came to."""
    return lambda experiments, first: [value] * len(experiments)


STEP = {"step_ms": "step, ms", "tokens_per_s": "tokens/s"}
CURVES = {
    curve.name: curve
    for curve in (
        Curve(
            name="batch",
            x="rows of 128 tokens",
            sizes=(1, 2, 4, 8, 16, 32),
            experiment=lambda rows: gpt(rows, 128),
            measure=step_times,
            columns=STEP,
            goal=as_flops,
            why=", as the model's FLOPs",
        ),
        Curve(
            name="length",
            x="tokens of a row, 2,048 in all",
            sizes=(64, 128, 256, 512, 1024),
            experiment=lambda length: gpt(2048 // length, length),
            measure=step_times,
            columns=STEP,
            goal=as_flops,
            why=", as the model's FLOPs",
        ),
        Curve(
            name="experts",
            x="experts of a layer",
            sizes=(8, 16, 32, 64),
            experiment=m4,
            measure=step_and_optimizer_times,
            columns={
                "step_ms": "step, ms",
                "gradients_ms": "forward and backward, ms",
                "optimizer_ms": "optimizer, ms",
            },
            goal=times(1.25),
        ),
        Curve(
            name="layers",
            x="layers",
            sizes=(2, 4, 8, 16, 32),
            experiment=lambda layers: gpt(8, 128, layers),
            measure=compile_times,
            columns={"compile_s": "compiling, s"},
            goal=times(1.1),
            why=", flat",
        ),
        Curve(
            name="devices",
            x="devices",
            sizes=(2, 4, 8),  # one CPU device computes in the host's thread
            experiment=tiny_gpt,
            measure=host_times,
            columns={"host_ms": "host, ms", "batch_ms": "taking the batch, ms", "wall_ms": "with waiting, ms"},
            goal=at_most(2.0),
            absolute=True,
        ),
    )
}


def measure(curve: Curve, rounds: int) -> list[Point]:
    """The curve's points: `size`, its columns, `ratio` of the first column to the first point's, and `goal`, in its unit.

    Sizes that need more devices than there are, are left out.
    """
    chosen = [(n, curve.experiment(n)) for n in curve.sizes]
    chosen = [(n, e) for n, e in chosen if e.layout.devices <= len(jax.devices())]
    experiments = [e for _, e in chosen]
    found = curve.measure(experiments, rounds)
    first = found[0][curve.y]
    goals = curve.goal(experiments, first)
    return [
        {"size": n} | point | {"ratio": point[curve.y] / first, "goal": goal}
        for (n, _), point, goal in zip(chosen, found, goals, strict=True)
    ]


def report(curves: Sequence[Curve], rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Points and claim of each curve as plain values, with the devices and versions that they were measured on.

    Args:
      say: is given each curve for people, once it is measured.
    """
    device = jax.devices()[0]
    found: dict[str, Any] = {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "rounds": rounds,
        "versions": versions(),
        "curves": {},
    }
    for curve in curves:
        points = measure(curve, rounds)
        found["curves"][curve.name] = {"claim": claim(curve, points), "points": points}
        say(f"{table(curve, points)}\n\n{claim(curve, points)}\n")
    return found


# --- for people ----------------------------------------------------------------------------------------------------


def claim(curve: Curve, points: Sequence[Point]) -> str:
    """What was measured beside what it should be: of growth that of the last point, of an absolute goal the worst."""
    first, last = points[0], points[-1]
    what = f"{curve.name} {first['size']} -> {last['size']}"
    if curve.absolute:
        return (
            f"{what}: {max(p[curve.y] for p in points):.2f} ms at most (goal: at most {last['goal']:g} ms{curve.why})"
        )
    return f"{what}: {last['ratio']:.2f}x (goal: at most {last['goal'] / first[curve.y]:.3g}x{curve.why})"


def table(curve: Curve, points: Sequence[Point]) -> str:
    """A table that is read as text and as Markdown, a line a point."""
    heads = [curve.x, *curve.columns.values(), "ratio"]
    rows = [[str(p["size"]), *(_number(p[k]) for k in curve.columns), f"{p['ratio']:.2f}"] for p in points]
    widths = [max(len(line[i]) for line in (heads, *rows)) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(heads), line(["-" * (width - 1) + ":" for width in widths]), *map(line, rows)])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"
