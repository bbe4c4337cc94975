"""Dense decoders and mixtures at the same FLOPs a token, on text that is seen once: where papers' claims about experts are tried.

The experiment is gpt.small_decoder; docs/LOG.md has what its size and its rate were chosen by.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs import registry
from models.parts.moe.config import Capacity, CausalRouter, ExpertsConfig, MoeConfig, Top1, TopK
from models.parts.nested import changed
from scripts.reproductions import training
from scripts.reproductions.entry import Row

LOSS = "eval/cross_entropy"
STEPS = 4000
TOKENS = 8 * 256  # of a step
NAME = "gpt.small_decoder"
FOLDER = "small_decoder"  # of the runs, which several reproductions share


def top2(experts: int, *, every: int = 1, hidden: int = 128) -> MoeConfig:
    """Returns a mixture of which a token has two experts, half as wide as the dense layer; none is dropped at random."""
    return _mixture(experts, TopK(choices=2, normalized=True), every, 2.0, hidden)


def top1(experts: int, *, every: int = 1, factor: float = 1.25, hidden: int = 256, **router: Any) -> MoeConfig:
    """Returns Switch Transformer's mixture: one expert a token, as wide as the dense layer; `router` has fields of its router."""
    fields: dict[str, Any] = {"init_std": 0.02} | router
    return _mixture(experts, Top1(**fields), every, factor, hidden)


def _mixture(experts: int, router: CausalRouter, every: int, factor: float, hidden: int) -> MoeConfig:
    return MoeConfig(
        experts=ExpertsConfig(count=experts, hidden_dim=hidden),
        router=router,
        capacity=Capacity(factor=factor, eval_factor=4.0 * router.choices),
        group_size=TOKENS,
        every=every,
    )


def arm(name: str, moe: MoeConfig | None = None, *overrides: str, steps: int = STEPS, **model: Any) -> training.Arm:
    """Returns the decoder with a mixture, or dense; `model` has further fields of it."""
    e = registry.load(NAME)
    e = dataclasses.replace(e, model=changed(e.model, {"moe": moe} | model))
    warmup = f"--optimizer.schedule.warmup={steps // 20}"
    return training.Arm(name, training.shortened(e, steps, warmup, *overrides, evaluations=8, warm=False))


def train(folder: Path, arms: Sequence[training.Arm], seeds: Sequence[int] = training.SEEDS) -> training.Runs:
    """Trains arms in a folder that all comparisons of them share."""
    return training.train(folder.parent / FOLDER, arms, seeds)


def learnt(run: training.Run) -> float:
    """Returns the cross-entropy of the last eighth of training, in nats a token."""
    logged = [value for _, value in run.curve("cross_entropy")]
    last = logged[-max(len(logged) // 8, 1) :]
    return sum(last) / len(last)


def held_out(run: training.Run) -> float:
    """Returns the cross-entropy of all validation documents at the end, in nats a token."""
    return run.last(LOSS)


def claims(label: str, better: Sequence[training.Run], other: Sequence[training.Run], paper: str, differs: str) -> list[Row]:
    """Returns the rows of a loss that is lower than another, in training and held-out, over the seeds that both have."""
    rows = []
    for shown, metric in {"training": learnt, "held-out": held_out}.items():
        differences = [metric(run) - metric(than) for run, than in zip(better, other, strict=False)]
        rows.append(training.claim(f"{label}, {shown}", training.mean(differences), -1, paper, differs))
    return rows


def share_of_steps(label: str, runs: Sequence[training.Run], dense: Sequence[training.Run], paper: str, differs: str) -> Row:
    """Returns the row of the share of the dense model's steps after which its last held-out loss is reached, less 1."""
    pairs = [*zip(runs, dense, strict=False)]  # over the seeds that both have
    shares = [training.step_to(run, LOSS, held_out(other)) / other.curve(LOSS)[-1][0] for run, other in pairs]
    if never := sum(map(math.isinf, shares)):
        differs = f"{never} of {len(shares)} seeds never; they count as all steps; {differs}"
    shares = [min(share, 1.0) for share in shares]
    return training.claim(label, training.less(shares, 1.0), -1, paper, differs)


def routers(runs: Sequence[training.Run], moe: MoeConfig) -> str:
    """Returns how decided the routers are at the end of training, what they drop, and how much an expert has seen."""
    experts, choices = moe.experts.count, moe.decoder_router.choices
    entropy = training.mean(training.values(runs, "moe/router_entropy")).value
    dropped = training.mean(training.values(runs, "moe/dropped")).value
    seen = runs[0].curve(LOSS)[-1][0] * TOKENS * choices / experts
    return (
        f"router entropy {entropy:.2f} of {math.log(experts):.2f} nats, {dropped:.1%} of choices dropped, "
        f"{seen / 1e3:,.0f} thousand tokens an expert"
    )
