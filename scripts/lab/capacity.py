"""Scores a trained mixture of experts over the capacity that its experts have at inference, with batch priority and without.

    python -m scripts.lab.capacity --checkpoint runs/moe
    python -m scripts.lab.capacity --checkpoint runs/moe --factors 0.1,0.25,0.5,1,2 --score eval/accuracy --json

A capacity factor of 1 is a slot for each choice of each token if experts are wanted alike; below it tokens pass MoE layers by.
Without batch priority an expert's slots go to the first tokens of a group, with it to those with the largest gates (V-MoE, arXiv
2106.05974, section 4). Weights are the same throughout; slots are rounded down, and an expert has one at least.
"""

import argparse
import dataclasses
from typing import Any

from models.errors import nearest
from models.sharding.layouts import ONE_DEVICE
from scripts import cli
from trainers.text_table import markdown

FACTORS = (0.0625, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 2.0)


def main(arguments: list[str] | None = None) -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("--checkpoint", type=cli.folder, required=True, metavar="DIR", help="a workdir or a release")
    parser.add_argument("--step", type=int, help="the checkpoint of a workdir; the newest by default")
    parser.add_argument("--factors", type=_factors, default=FACTORS, metavar="C,...", help="capacity factors")
    parser.add_argument("--limit", type=int, default=0, help="the most examples to score; 0 takes all")
    parser.add_argument("--score", default="eval/accuracy", help="the score that is printed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(arguments)
    cli.use_devices(ONE_DEVICE)

    e, weights = cli.opened(args.checkpoint, args.step)
    moe: Any = getattr(e.model, "moe", None)
    if moe is None:
        raise cli.ConfigError(f"--checkpoint {args.checkpoint}: {e.name} has no experts")
    kinds = {
        priority: [_score(args, e, weights, _with_slots(moe, factor, batch_priority=priority)) for factor in args.factors]
        for priority in (True, False)
    }
    dropless = _score(args, e, weights, _with_slots(moe, 0.0))
    rows = [
        {"capacity_factor": factor, "batch_priority": first, "first_come": second}
        for factor, first, second in zip(args.factors, kinds[True], kinds[False], strict=True)
    ]
    if args.json:
        cli.print_json({"experiment": e.name, "score": args.score, "dropless": dropless, "rows": rows})
        return 0
    print(f"{e.name}: {args.score.removeprefix('eval/')} {dropless:.4f} with a slot for every choice")
    cells = ([f"{row['capacity_factor']:g}", f"{row['batch_priority']:.4f}", f"{row['first_come']:.4f}"] for row in rows)
    print("\n".join(markdown(["capacity factor", "batch priority", "first come"], cells)))
    return 0


def _factors(text: str) -> list[float]:
    try:
        factors = [float(part) for part in text.split(",")]
    except ValueError:
        factors = []
    if not factors or min(factors) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not capacity factors above 0, as 0.25,0.5,1")
    return factors


def _with_slots(moe: Any, factor: float, **capacity: Any) -> Any:
    """Returns the mixture with this capacity factor at inference, slots not rounded up; 0 is a slot for every choice."""
    capacity |= dict(eval_factor=factor, multiple=0, least=1)
    return dataclasses.replace(moe, capacity=dataclasses.replace(moe.capacity, **capacity))


def _score(args: Any, e: Any, weights: Any, moe: Any) -> float:
    """Returns the score of the weights with other settings of the mixture; raises ConfigError for an unknown score."""
    from data.reading.caches import cache_folder
    from trainers.evaluation.evaluator import open_evaluator
    from trainers.inference.load import load

    e = dataclasses.replace(e, model=dataclasses.replace(e.model, moe=moe), eval=dataclasses.replace(e.eval, limit=args.limit))
    served = load(weights, e.execution, config=e.model)
    cache = cache_folder(e.data)
    scores = open_evaluator(served.model, e, cache, weights.vocabulary or cache)(served.params)
    if args.score not in scores:
        raise cli.ConfigError(f"--score {args.score}{nearest(args.score, sorted(scores))}")
    return scores[args.score]


if __name__ == "__main__":
    cli.run(main)
