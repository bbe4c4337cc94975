"""GSPMD (arXiv 2105.04663) and its dense decoders, as Lingvo publishes them."""

import dataclasses
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from configs import registry
from models.parts.nested import changed
from models.sharding.pipelines.schedule import Schedule
from scripts.reproductions import training
from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.plans import modelled
from scripts.reproductions.sizes import parameters

PAPER = "GSPMD (arXiv 2105.04663)"


@reproduction(f"Counts of Lingvo's lm/params/synthetic_packed_input.py; {PAPER}, Table 2", "printed", "memory", unit="parameters")
def table_2_sizes() -> Iterator[Row]:
    """Dense decoders of 64 billion to a trillion parameters, in units of 2^30."""
    exact = {"gspmd_128b": "137,702,416,384", "gspmd_1t": "1,100,041,175,040", "lingvo_175b": "174,366,928,896"}
    for name, count in exact.items():
        yield Row(name, count, parameters(f"gpt.{name}"))
    for name, size in {"gspmd_64b": "64", "gspmd_256b": "256", "gspmd_512b": "512"}.items():
        note = "the number of layers is chosen by the size"
        yield Row(f"{name}, in 2^30", size, parameters(f"gpt.{name}") / 2**30, note, stated="memory")


@reproduction("Lingvo's lm/README and DenseBuilder: GSPMD's finalised annotations", unit="dimensions on X and on Y")
def table_1() -> Iterator[Row]:
    """The weights of a dense layer are cut in two dimensions: M on X, heads and H on Y."""
    from trainers.hlo import tables

    paper = {
        "decoder.attention.q": ("X", "Y", None),
        "decoder.attention.k": ("X", "Y", None),
        "decoder.attention.v": ("X", "Y", None),
        "decoder.attention.o": ("Y", None, "X"),
        "decoder.ffn.wi": ("X", "Y"),
        "decoder.ffn.wo": ("Y", "X"),
    }
    e = registry.load("gpt.gspmd_128b")
    letters = {axis: letter for (axis, _), letter in zip(e.layout.mesh, "XY", strict=True)}
    tensors = {t["name"]: t for t in tables.describe(e)["tensors"]}
    for name, want in paper.items():
        cuts = tensors[name]["spec"].strip("()").split(", ")
        ours = tuple(letters.get(cut) for cut in cuts)[-len(want) :]
        yield Row(name, _written(want), _written(ours), f"{e.layout.name} of {dict(e.layout.mesh)}")


def _written(cuts: tuple[str | None, ...]) -> str:
    return " ".join(cut or "-" for cut in cuts)


@reproduction(
    f"{PAPER}, section 3.3; PTD-P (arXiv 2104.04473), section 2.2",
    "derived",
    kind="consistency",
    unit="share of all time that is bubble",
)
def bubbles() -> Iterator[Row]:
    """A pipeline's bubble is (L - 1) / (m + L - 1) of all time by GPipe and (L - 1) / (R m + L - 1) with R rounds, or chunks a
    stage."""
    for stages, rounds, microbatches in ((2, 1, 8), (4, 1, 16), (8, 1, 32), (4, 4, 16), (8, 3, 16), (64, 2, 512)):
        s = Schedule(stages, rounds, microbatches)
        formula = (stages - 1) / (rounds * microbatches + stages - 1)
        idle = sum(not cell for row in s.timeline(backward=False) for cell in row)
        label = f"{stages} stages, {rounds} rounds, {microbatches} microbatches"
        yield Row(label, formula, idle / (stages * s.ticks), "empty cells of this project's timeline, counted")


@reproduction(f"{PAPER}, Table 2", "memory", unit="FLOPS utilisation, recomputation counted", kind="modelled", minutes=12)
def table_2(folder: Path) -> Iterator[Row]:
    """2048 TPU-v3 cores reach 47 to 57 % of their peak on decoders of 64 billion to a trillion parameters."""
    for name, printed in {"128b": "56.5 %", "256b": "54.1 %", "512b": "47.5 %", "1t": "55.6 %"}.items():
        planned = modelled(folder, f"gpt.gspmd_{name}")
        yield Row(f"gspmd_{name}", printed, planned["modelled_hfu"], f"{planned['topology']}, modelled; the paper's ran on v3")


@reproduction(
    f"{PAPER}, section 3.3; PTD-P (arXiv 2104.04473), section 2.2",
    "derived",
    unit="bubble over the time of the work",
    kind="trained",
    minutes=5,
)
def bubbles_measured(folder: Path) -> list[Row]:
    """The time that a pipeline of p stages loses falls as (p - 1) / m with the microbatches, and to 1 / v of it with v chunks a
    stage."""
    from models.families import family_of

    stages, counts = 4, (4, 8, 12)
    e = registry.load("gpt.quickstart")
    model: Any = e.model
    e = dataclasses.replace(
        e,
        model=changed(
            model, {"layers": 8, "model_dim": 64, "feed_forward.hidden_dim": 128, "attention.heads": 4, "attention.head_dim": 16}
        ),
        train=dataclasses.replace(e.train, steps=6, log_every=1, checkpoint=dataclasses.replace(e.train.checkpoint, every=0)),
        eval=dataclasses.replace(e.eval, limit=24, batch_size=24),  # pyright: ignore[reportCallIssue]
        execution=dataclasses.replace(e.execution, remat="full"),
    )
    schedules = {"gpipe": 1, "pipeline_interleaved": 2}
    arms = {}
    for name in schedules:
        for m in counts:
            layout = family_of(model).layouts[name](stages, 1, 1, microbatches=m)
            data = dataclasses.replace(e.data, batch_size=m)  # pyright: ignore[reportCallIssue]
            arms[name, m] = training.arm(f"{name}-{m}", dataclasses.replace(e, layout=layout, data=data))
    runs = training.train(folder, list(arms.values()), seeds=(0,))
    rows = []
    for name, chunks in schedules.items():
        seconds = {m: _step_seconds(runs[arms[name, m].name][0]) for m in counts}
        times = {m: statistics.median(values) for m, values in seconds.items()}
        a_microbatch = (times[counts[-1]] - times[counts[0]]) / (counts[-1] - counts[0])  # what one more costs: no bubble
        for m in counts:
            error = training.mean(seconds[m]).error or 0.0  # over the logged steps of one run
            shared = "all stages share the processor, and an idle stage computes what is thrown away"
            note = f"{times[m]:.3f} s a step, one run, the error is over its steps; {shared}"
            rows.append(
                Row(
                    f"{name}, p={stages}, m={m}",
                    Schedule(stages, chunks, m).bubble,
                    times[m] / (m * a_microbatch) - 1,
                    note,
                    error=error / (m * a_microbatch),
                    series=name,
                    at=m,
                )
            )
    return rows


def _step_seconds(run: training.Run) -> list[float]:
    """Returns the seconds of each logged step but the first two."""
    tokens, rates = dict(run.curve("tokens")), dict(run.curve("tokens_per_s"))
    return [tokens[step] / rate for step, rate in rates.items() if step > 2]
