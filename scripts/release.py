"""Writes a run's newest checkpoint as a release: weights, vocabularies, experiment, checksums and a model card.

    python -m scripts.release runs/quickstart --to releases/m4-quickstart

scripts.translate and scripts.evaluate take the folder as --checkpoint; training starts from it with
--train.finetune.init-from releases/m4-quickstart.
"""

import json
from pathlib import Path
from typing import Any

from models.sharding.layouts import ONE_DEVICE
from scripts import cli


def scores(workdir: Path, logged: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the scores for the card: the evaluation that scripts.quickstart saved, else the last one of the training loop."""
    saved = workdir / "evaluation.json"
    if saved.exists():
        return json.loads(saved.read_text())["all"]
    lines = [line for line in logged if any(k.startswith("eval/") for k in line)]
    last = lines[-1] if lines else {}
    return {k.removeprefix("eval/"): v for k, v in last.items() if k.startswith("eval/") and k.count("/") == 1}


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("workdir", type=cli.folder, help="the run")
    parser.add_argument("--to", type=cli.folder, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--step", type=int, help="the checkpoint; the newest by default")
    args = parser.parse_args()

    cli.use_devices(ONE_DEVICE)
    from data import progress
    from trainers.monitoring import metrics
    from trainers.weights import release

    progress.show()
    print(release.write(args.workdir, args.to, step=args.step, scores=scores(args.workdir, metrics.read(args.workdir))))
    return 0


if __name__ == "__main__":
    cli.run(main)
