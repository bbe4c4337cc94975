"""Growth of costs: step time over batch, length and experts, compile time over layers, host time over devices.

A curve is one small experiment on random tokens in several sizes. Its points are measured by turns, in short windows, so that
other load of the machine affects all of them equally; a figure is a median. A ratio is to the first point.
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
from data.text.config import TextData
from data.translation.config import TranslationData
from models.parts.attention.config import Learned
from models.parts.moe.config import Capacity, ExpertsConfig, MoeConfig, Top1
from models.parts.nested import changed
from models.sharding.layouts import data_parallel
from trainers import step
from trainers.hlo.model_flops import model_flops
from trainers.measure import meter, throughput
from trainers.measure.meter import Meter
from trainers.measure.throughput import Subject
from trainers.plan import Plan, fresh_state, in_model_form, make_plan
from trainers.runtime.processes import versions

Point = dict[str, float]
WINDOW = 2  # steps of one point before the next one's turn
HOST_STEPS = 30  # the same, where a step takes next to no time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """One cost over one size.

    Attributes:
      x: the size that grows, with its unit.
      experiment: makes the experiment of a size.
      measure: measures the points of experiments in a number of rounds.
      columns: a point's figures by name, with description and unit; the goal is about the first.
      goal: returns the largest allowed figure of each experiment, from the experiments and the figure of the first.
      why: the goal's reason, as text.
      absolute: whether the goal is a figure of its own, not a growth.
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
    """Returns gpt.bench_42m, narrower: layers of 256, vocabulary 8,192."""
    e = registry.load("gpt.bench_42m")
    model = changed(
        e.model,
        {
            "positions": Learned(rows=1024),
            "vocab": 8192,
            "layers": layers,
            "model_dim": 256,
            "feed_forward.hidden_dim": 1024,
            "attention.heads": 4,
        },
    )
    execution = dataclasses.replace(e.execution, unroll=1)
    return dataclasses.replace(e, model=model, data=TextData(batch_size=rows, length=length), execution=execution)


def m4(experts: int) -> Experiment:
    """Returns gshard_m4.bench_67m, narrower: four MoE layers; 4,096 source and 4,096 target tokens in groups of 2,048; top-1.

    One of 64 experts still gets 64 tokens and has 80 slots for them: 1.25 x 2048 / 64 in each of two groups. The slots of all
    experts together do not depend on the number of experts; weights, and so the optimizer's work, are in proportion to it.
    """
    e = registry.load("gshard_m4.bench_67m")
    model = changed(
        e.model,
        {
            "source_vocab": 2048,
            "target_vocab": 2048,
            "model_dim": 128,
            "feed_forward.hidden_dim": 256,
            "attention.heads": 4,
            "attention.head_dim": 32,
            "moe": MoeConfig(
                experts=ExpertsConfig(count=experts), router=Top1(), group_size=2048, capacity=Capacity(factor=1.25)
            ),
        },
    )
    return dataclasses.replace(e, model=model, data=TranslationData(batch_size=32))


def tiny_gpt(devices: int) -> Experiment:
    """Returns a data-parallel GPT with next to no device work, but as many arrays as a large one, since layers are stacked."""
    e = registry.tiny(registry.load("gpt.bench_42m"))
    model, data = dataclasses.replace(e.model, layers=1), dataclasses.replace(e.data, batch_size=8)
    return dataclasses.replace(e, model=model, data=data, layout=data_parallel(devices, 1))


# --- measuring -----------------------------------------------------------------------------------------------------


def _opened(experiments: Sequence[Experiment], closing: contextlib.ExitStack) -> list[Subject]:
    return [closing.enter_context(throughput.opened(e)) for e in experiments]


def _ms(m: Meter) -> float:
    return 1000 * m.spread()["step_s_median"]


def step_times(experiments: Sequence[Experiment], rounds: int) -> list[Point]:
    """Measures `step_ms` and `tokens_per_s` of training steps."""
    with contextlib.ExitStack() as closing:
        meters = [s.meter for s in _opened(experiments, closing)]
        meter.measure(meters, rounds * WINDOW, WINDOW)
        return [{"step_ms": _ms(m), "tokens_per_s": 1000 * float(m.outputs[0]["tokens"]) / _ms(m)} for m in meters]


def _optimizer(s: Subject) -> Meter:
    """Returns a meter of the optimizer's update alone, on parameters, gradients and optimizer state of its own."""
    plan = s.plan
    initial = in_model_form(plan, fresh_state(plan))
    grads = plan.split_trained(initial.params)[0]  # values do not matter, shapes and shardings do
    current = jax.tree.map(jnp.copy, (grads, initial.optimizer))

    def update(current, grads):
        params, optimizer = current
        updates, optimizer = plan.tx.update(grads, optimizer, params)
        return (optax.apply_updates(params, updates), optimizer), optax.global_norm(grads)

    program = jax.jit(update, donate_argnums=0)

    def run(batch: step.Batch) -> jax.Array:
        nonlocal current
        current, norm = program(current, grads)
        return norm

    return Meter(run, s.meter.batch)


def step_and_optimizer_times(experiments: Sequence[Experiment], rounds: int) -> list[Point]:
    """Measures `step_ms`, `optimizer_ms` of the optimizer alone, and `gradients_ms`, their difference: forward and backward pass,
    and the check that all is finite."""
    with contextlib.ExitStack() as closing:
        pairs = [(s.meter, _optimizer(s)) for s in _opened(experiments, closing)]
        meter.measure([m for pair in pairs for m in pair], rounds * WINDOW, WINDOW)
        return [
            {"step_ms": _ms(whole), "gradients_ms": _ms(whole) - _ms(part), "optimizer_ms": _ms(part)} for whole, part in pairs
        ]


def compile_times(experiments: Sequence[Experiment], rounds: int) -> list[Point]:
    """Measures `compile_s` of tracing, lowering and compiling the training step on one device."""
    plans = [make_plan(e, jax.devices()[: e.layout.devices]) for e in experiments]

    def time_compiling(plan: Plan) -> float:
        began = time.perf_counter()
        step.compile_step(plan)
        return time.perf_counter() - began

    time_compiling(plans[0])  # pays the costs that only a process's first compilation has
    rounds_s = [[time_compiling(plan) for plan in plans] for _ in range(rounds)]
    return [{"compile_s": statistics.median(times_s)} for times_s in zip(*rounds_s, strict=True)]


def host_times(experiments: Sequence[Experiment], rounds: int) -> list[Point]:
    """Measures the time of the trainer's thread until a step is dispatched, in milliseconds: `host_ms` of its own CPU time,
    `batch_ms`, the part of that in which it takes the batch from the thread that reads and places it, and `wall_ms`, which
    includes waiting.

    CPU time excludes waiting for that thread, for devices, or for a core that simulated devices are computing on. A step begins
    when the one before it is done. Logging, once every `train.log_every` steps, is not included.
    """
    with contextlib.ExitStack() as closing:
        subjects = _opened(experiments, closing)
        spent: list[list[Point]] = [[] for _ in subjects]
        for _ in range(rounds):
            for s, points in zip(subjects, spent, strict=True):
                points += [_host(s.meter) for _ in range(HOST_STEPS)]
    return [{key: statistics.median(point[key] for point in points) for key in points[0]} for points in spent]


def _host(m: Meter) -> Point:
    """Measures one step, and waits until it is done."""
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
    """Returns goals in proportion to the model's FLOPs."""
    flops = [model_flops(e) for e in experiments]
    return [first * f / flops[0] for f in flops]


def times(growth: float) -> Callable[[Sequence[Experiment], float], list[float]]:
    """Returns a goal of at most `growth` times the first figure."""
    return lambda experiments, first: [growth * first] * len(experiments)


def at_most(value: float) -> Callable[[Sequence[Experiment], float], list[float]]:
    """Returns a goal of at most `value`, independent of the first figure."""
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
            columns={"step_ms": "step, ms", "gradients_ms": "forward and backward, ms", "optimizer_ms": "optimizer, ms"},
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
    """Measures a curve's points: `size`, its columns, `ratio` of the first column to the first point's, and `goal`, in its unit.

    Sizes that need more devices than are available are left out.
    """
    chosen = [(n, curve.experiment(n)) for n in curve.sizes]
    chosen = [(n, e) for n, e in chosen if e.layout.devices <= len(jax.devices())]
    experiments = [e for _, e in chosen]
    measured = curve.measure(experiments, rounds)
    first = measured[0][curve.y]
    goals = curve.goal(experiments, first)
    return [
        {"size": n} | point | {"ratio": point[curve.y] / first, "goal": goal}
        for (n, _), point, goal in zip(chosen, measured, goals, strict=True)
    ]


def report(curves: Sequence[Curve], rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Returns points and claim of each curve as plain values, with the devices and versions that they were measured on.

    Args:
      say: is given each curve as text, once it is measured.
    """
    device = jax.devices()[0]
    result: dict[str, Any] = {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "rounds": rounds,
        "versions": versions(),
        "curves": {},
    }
    for curve in curves:
        points = measure(curve, rounds)
        result["curves"][curve.name] = {"claim": claim(curve, points), "points": points}
        say(f"{table(curve, points)}\n\n{claim(curve, points)}\n")
    return result


# --- text ----------------------------------------------------------------------------------------------------------


def claim(curve: Curve, points: Sequence[Point]) -> str:
    """Returns the measured figure beside its goal: the last point's growth, or the worst point for an absolute goal."""
    first, last = points[0], points[-1]
    span = f"{curve.name} {first['size']} -> {last['size']}"
    if curve.absolute:
        return f"{span}: {max(point[curve.y] for point in points):.2f} ms at most (goal: at most {last['goal']:g} ms{curve.why})"
    return f"{span}: {last['ratio']:.2f}x (goal: at most {last['goal'] / first[curve.y]:.3g}x{curve.why})"


def table(curve: Curve, points: Sequence[Point]) -> str:
    """Returns a table, legible as text and valid as Markdown, with a line for each point."""
    heads = [curve.x, *curve.columns.values(), "ratio"]
    rows = [[str(point["size"]), *(_number(point[k]) for k in curve.columns), f"{point['ratio']:.2f}"] for point in points]
    widths = [max(len(line[i]) for line in (heads, *rows)) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(heads), line(["-" * (width - 1) + ":" for width in widths]), *map(line, rows)])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"
