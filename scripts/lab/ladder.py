"""Predicts the loss of a run from small ones: trains a ladder of runs, fits a law, and compares the run that it predicts.

    python -m scripts.lab.ladder decoder                # trains the small runs, and writes the law and its prediction
    git commit docs/scaling                             # a prediction counts if it was written down before
    python -m scripts.lab.ladder decoder --target       # trains the large run, and compares
    python -m scripts.lab.ladder                        # writes docs/SCALING.md of what is there

Ladders are decoder, mixture and encoder_decoder. The large run has ten times the FLOPs of the largest small one. Runs lie in
--workdir, and a ladder that was stopped goes on. Runs that the ladder's file has are not trained again.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment
from data.paths import ROOT, write_whole
from data.text.config import SpanTextData
from models.errors import UserError
from models.parts.nested import changed
from scripts import cli
from scripts.reproductions import at_once, small_decoder, training
from scripts.reproductions.record import revision
from trainers.text_table import markdown

FOLDER = ROOT / "docs" / "scaling"
PAGE = ROOT / "docs" / "SCALING.md"


@dataclasses.dataclass(frozen=True)
class Rung:
    """A run of a ladder: its width, its steps of 2,048 tokens, and its experts, 1 of a dense model."""

    width: int
    steps: int
    experts: int = 1


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Small runs and the one that they predict.

    Attributes:
      title: what is trained, in a sentence.
      experiment: returns the experiment of a rung.
      rungs: the small runs.
      target: the large one.
      seeds: of each run; the mean of their losses counts.
    """

    title: str
    experiment: Callable[[Rung], Experiment]
    rungs: Sequence[Rung]
    target: Rung
    seeds: Sequence[int] = (0, 1)


def _decoder(rung: Rung) -> Experiment:
    moe = small_decoder.top2(rung.experts, hidden=2 * rung.width) if rung.experts > 1 else None
    return small_decoder.arm("", moe, steps=rung.steps, **_sizes(rung.width)).experiment


def _encoder_decoder(rung: Rung) -> Experiment:
    """T5 1.1's block, two layers on each side, on spans of the same text; other settings are the decoder's."""
    e, of_text = registry.load("t5.quickstart"), _decoder(rung)
    data = SpanTextData(cache=of_text.data.cache, batch_size=8, length=256)
    model = changed(e.model, {"vocab": 2048 + data.sentinels, "layers": 4, "init_scale": 0.1} | _sizes(rung.width))
    return dataclasses.replace(of_text, name=e.name, model=model, data=data)


def _sizes(width: int) -> dict[str, Any]:
    return {"model_dim": width, "feed_forward.hidden_dim": 4 * width, "attention.heads": 4, "attention.head_dim": width // 4}


# After 250 steps seeds of a run still differ by up to 4 % (docs/LOG.md): shorter runs would say little. Wide runs of few steps
# and narrow ones of many, for the law is asked for a run that has both. Decoders of width 16, whose heads have four dimensions,
# do not follow the law of wider ones: without them it would have been right (docs/LOG.md), so that later ladders have none.
_DECODERS = (
    *(Rung(width, steps) for width in (16, 24, 32, 48) for steps in (500, 1000, 2000)),
    *(Rung(64, steps) for steps in (500, 1000)),
    *(Rung(width, 4000) for width in (24, 32)),
    *(Rung(56, 2000), Rung(88, 1000), Rung(96, 500), Rung(128, 500)),
)
_MIXTURES = tuple(
    Rung(width, steps, experts)
    for width, steps in ((32, 500), (32, 1000), (32, 2000), (48, 500), (48, 1000), (64, 500), (88, 500))
    for experts in (4, 16)
)
_ENCODER_DECODERS = (
    *(Rung(width, steps) for width in (24, 32) for steps in (500, 1000, 2000)),
    *(Rung(40, 2000), Rung(48, 500), Rung(64, 500), Rung(64, 1000), Rung(104, 500)),
)
LADDERS = {
    "decoder": Ladder("Decoders of two layers.", _decoder, _DECODERS, Rung(176, 4000)),
    "mixture": Ladder(
        "Decoders of two layers in which every layer is a mixture, two experts a token.",
        _decoder,
        _MIXTURES,
        Rung(176, 2000, 16),
        seeds=(0,),
    ),
    "encoder_decoder": Ladder(
        "T5 with two layers on each side, on spans of text.", _encoder_decoder, _ENCODER_DECODERS, Rung(184, 2000), seeds=(0,)
    ),
}


def main(arguments: list[str] | None = None) -> int:
    parser = cli.parser(__doc__)
    parser.add_argument(
        "ladder", nargs="?", choices=LADDERS, help="which one; none writes docs/SCALING.md of those that are there"
    )
    parser.add_argument("--target", action="store_true", help="train the large run, whose prediction has been committed")
    parser.add_argument("--workdir", type=cli.folder, default=Path("runs/ladders"), help="folder of runs")
    parser.add_argument("--processes", type=int, default=1, help="train so many runs at a time, the default 1")
    args = parser.parse_args(arguments)
    if args.ladder:
        ladder, folder, file = LADDERS[args.ladder], args.workdir / args.ladder, FOLDER / f"{args.ladder}.json"
        with at_once.processes(args.processes):
            made = measure(folder, ladder, file) if args.target else predict(folder, ladder, file)
        write_whole(file, json.dumps(made, indent=1) + "\n")
        print(section(args.ladder, made))
    write_whole(
        PAGE, page({name: json.loads(file.read_text()) for name in LADDERS if (file := FOLDER / f"{name}.json").exists()})
    )
    return 0


def predict(folder: Path, ladder: Ladder, file: Path) -> dict[str, Any]:
    """Trains the small runs of a ladder; returns them, their law and what it predicts as plain values.

    Args:
      file: has an earlier prediction, or does not exist. Its runs of the same configuration are not trained again, and what it
        predicted of the same large run is not lost.
    """
    from trainers.measure.loss_law import Point, fit

    before = json.loads(file.read_text()) if file.exists() else {"runs": [], "target": {}}
    runs = _trained(folder, ladder, ladder.rungs, before["runs"])
    points = [Point(run["size"], run["tokens"], run["experts"], run["loss"]) for run in runs]
    law = fit(points)
    size, tokens = _size(ladder.experiment(ladder.target)), ladder.target.steps * small_decoder.TOKENS
    without = [fit([*points[:n], *points[n + 1 :]]).loss(size, tokens, ladder.target.experts) for n in range(len(points))]
    target = dataclasses.asdict(ladder.target) | {
        "size": size,
        "tokens": tokens,
        "times": size * tokens / max(point.size * point.tokens for point in points),
        "predicted": law.loss(size, tokens, ladder.target.experts),
        "without_one": [min(without), max(without)],
    }
    target["earlier"] = _earlier(file, before["target"], target)
    return {"runs": runs, "law": dataclasses.asdict(law), "error": law.error(points), "target": target, "commit": revision()}


def measure(folder: Path, ladder: Ladder, file: Path) -> dict[str, Any]:
    """Trains the large run; returns what was predicted, with its loss and the commit that has the prediction.

    Raises:
      UserError: there is no prediction, or it has not been committed.
    """
    if not (commit := _commit(file)):
        raise UserError(f"{file}: a prediction counts if it was written down before: make it without --target, and commit it")
    made = json.loads(file.read_text())
    (run,) = _trained(folder, ladder, [ladder.target])
    return made | {"target": made["target"] | {"loss": run["loss"], "losses": run["losses"], "committed": commit}}


def _trained(
    folder: Path, ladder: Ladder, rungs: Sequence[Rung], recorded: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Returns the size, tokens and held-out losses by seed of some runs, as plain values."""
    from trainers.runlog import config_hash

    arms = {rung: training.Arm("-".join(map(str, dataclasses.astuple(rung))), ladder.experiment(rung)) for rung in rungs}
    known = {run["config"]: run for run in recorded}
    runs = training.train(folder, [arm for arm in arms.values() if config_hash(arm.experiment) not in known], ladder.seeds)
    values = []
    for rung, arm in arms.items():
        config = config_hash(arm.experiment)
        if config not in known:
            losses = [run.last(small_decoder.LOSS) for run in runs[arm.name]]
            sizes = {"size": _size(arm.experiment), "tokens": rung.steps * small_decoder.TOKENS}
            known[config] = dataclasses.asdict(rung) | sizes | {"loss": sum(losses) / len(losses), "losses": losses}
        values.append(known[config] | {"config": config})
    return values


def _earlier(file: Path, before: Mapping[str, Any], target: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what committed files predicted of the same run before, if it was something else, each time with the commit."""
    if any(before.get(field.name) != target[field.name] for field in dataclasses.fields(Rung)):
        return []
    differs = before["predicted"] != target["predicted"] and (commit := _commit(file))
    return [*before["earlier"], *([{"commit": commit, "predicted": before["predicted"]}] if differs else ())]


def _size(e: Experiment) -> float:
    """Returns the multiplications of a token in the forward pass: a sixth of the model FLOPs of its step."""
    from trainers.hlo.model_flops import model_flops

    return model_flops(e) / 6 / small_decoder.TOKENS


def _commit(file: Path) -> str:
    """Returns the commit that has a file as it is, or ""."""
    from trainers.runlog import git

    return "" if git("status", "--porcelain", "--", str(file)) else git("log", "-1", "--format=%h", "--abbrev=8", "--", str(file))


HEAD = """# Losses that small runs predict

`python -m scripts.lab.ladder NAME` trains a ladder of small runs, fits a law to them and writes down what it predicts of a run
with some ten times the FLOPs of the largest; `--target` then trains that run, and refuses a prediction that has not been
committed. The law is of [trainers/measure/loss_law.py](../trainers/measure/loss_law.py):

    L(N, D, E) = L0 + ((A / (N E^g))^(a / b) + B / D)^b

N is the multiplications of a token in the forward pass (its model FLOPs over six), D the training tokens, E the experts. Text,
optimizer, rate and start are those of `gpt.small_decoder`; no text is seen twice. Losses are held-out, in nats a token, means
over seeds; all are measured but those of the law.
"""


def page(made: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns docs/SCALING.md."""
    return "\n".join([HEAD, *(section(name, of_ladder) for name, of_ladder in made.items())])


def section(name: str, made: Mapping[str, Any]) -> str:
    """Returns a ladder's part of the page."""
    from trainers.measure.loss_law import LEAST, Law

    law, target = Law(**made["law"]), made["target"]
    low, high = target["without_one"]
    experts = f", {target['experts']} experts" if target["experts"] > 1 else ""
    size = f"(N E^{law.experts:.3f})" if law.experts else "N"
    a, b, power = math.exp(law.log_a), math.exp(law.log_b), law.size / law.tokens
    lines = [
        f"## {name}",
        "",
        f"{LADDERS[name].title} The law, to {made['error']:.2%} (root mean square over the runs that it is fitted to), at commit "
        f"{made['commit']}{', with no floor, for the runs show none' if law.floor < 1.01 * LEAST else ''}:",
        "",
        f"    L = {law.floor:.3f} + (({a:.3g} / {size})^{power:.3f} + {b:.3g} / D)^{law.tokens:.3f}",
        "",
        *markdown(
            ["width", "experts", "N", "tokens", "loss", "of seeds", "law"],
            (
                [
                    str(run["width"]),
                    str(run["experts"]),
                    f"{run['size']:,.0f}",
                    f"{run['tokens'] / 1e6:.2f} M",
                    f"{run['loss']:.3f}",
                    ", ".join(f"{loss:.3f}" for loss in run["losses"]),
                    f"{law.loss(run['size'], run['tokens'], run['experts']):.3f}",
                ]
                for run in made["runs"]
            ),
        ),
        "",
        f"**Predicted** of width {target['width']}{experts} and {target['tokens'] / 1e6:.2f} million tokens, "
        f"{target['times']:.1f} times the FLOPs: **{target['predicted']:.3f}** ({low:.3f} to {high:.3f} with one of the runs "
        "left out, which is not how far off it may be).",
    ]
    if "loss" in target:
        seeds = ", ".join(f"{loss:.3f}" for loss in target["losses"])
        lines.append(
            f"**Measured**, with the prediction of commit {target['committed']}: {target['loss']:.3f} ({seeds}); the prediction "
            f"is off by **{target['predicted'] / target['loss'] - 1:+.2%}**."
        )
    for other in target["earlier"]:
        off = f", off by {other['predicted'] / target['loss'] - 1:+.2%}" if "loss" in target else ""
        lines.append(f"Predicted before of the same run, by commit {other['commit']}: {other['predicted']:.3f}{off}.")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    cli.run(main)
