"""Ranks the items of prepared interactions for a user, by the probability that a trained model gives to each: of a click, or of
being the next one.

    python -m scripts.recommend --checkpoint runs/films --user 42
    python -m scripts.recommend --checkpoint DIR --user 42 --top 20 --seen --json

DIR is a run's workdir or a release. A line is printed for each of the best items: probability, item, name. Items that the user
has seen in training are left out without --seen; the circumstances are those of the user's last interaction in training. The
lists of users and items lie in the prepared cache (docs/DATA.md).
"""

from typing import TYPE_CHECKING, Any

from models.sharding.layouts import ONE_DEVICE
from scripts import cli

if TYPE_CHECKING:
    import numpy as np

_ROWS = 256  # items that are scored together


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_checkpoint(parser, "a workdir or a release")
    parser.add_argument("--user", required=True, metavar="ID", help="a user of the training data, as its file writes it")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="so many items")
    parser.add_argument("--seen", action="store_true", help="also items that the user has seen in training")
    parser.add_argument("--json", action="store_true", help="print the items as JSON")
    args = parser.parse_args()
    if args.top < 1:
        raise cli.ConfigError(f"--top {args.top}: expected a number from 1 on")
    cli.use_devices(ONE_DEVICE)
    import numpy as np

    from data.kinds import task_of
    from data.reading.caches import cache_folder, read_manifest
    from data.task import DataError, RanksItems

    e, weights = cli.opened(args.checkpoint, args.step, args.dtype)
    task = task_of(e.data)
    if not isinstance(task, RanksItems):
        raise DataError(f"{e.name}: its data is of kind {e.data.kind!r}, and no interactions of users with items")
    cache = cache_folder(e.data)
    task.check(read_manifest(cache), e.model)
    catalogue = task.catalogue(cache, args.user)
    places = catalogue.candidates(args.seen)
    if not places:
        raise cli.ConfigError(f"--user {args.user}: has seen all {len(catalogue.items):,} items in training; take --seen")
    probabilities = catalogue.probabilities(outputs(e, weights, catalogue.features, list(catalogue.rows(places))), places)
    best = np.argsort(-probabilities, kind="stable")[: args.top]
    items = [
        {"item": catalogue.items[places[at]]["item"], "name": catalogue.items[places[at]]["name"]}
        | {"probability": float(probabilities[at])}
        for at in best.tolist()
    ]
    if args.json:
        cli.print_json({"user": args.user, "items": items})
    else:
        for item in items:
            print(f"{item['probability']:.3f}  {item['item']:12}  {item['name']}".rstrip())
    return 0


def outputs(e: Any, weights: Any, features: Any, rows: list[Any]) -> "np.ndarray":
    """Returns the outputs [N, ...] of a model for N rows of these features; raises ConfigError for a model without outputs."""
    from models.protocol import HasOutputs
    from trainers.inference.load import load
    from trainers.inference.runner import Runner

    served = load(weights, e.execution)
    if not isinstance(served.model, HasOutputs):
        raise cli.ConfigError(f"{e.name}: this model scores no interactions")
    runner = Runner(served.model, features, min(_ROWS, len(rows)), lambda model, batch: model(batch))
    return runner.map(served.params, rows)


if __name__ == "__main__":
    cli.run(main)
