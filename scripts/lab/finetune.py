"""Measures fine-tuned MiniLM on Debian's sections over the number of labels: the table in docs/FINETUNE.md.

    python -m scripts.lab.finetune --sizes 1000,5000 --seeds 0,1,2
    python -m scripts.lab.finetune --sizes 20000,0 --json
    python -m scripts.lab.finetune --sizes 5000 --taught

A seed chooses the training examples, and the batches and dropout with them; the test split is the same for all seeds. The
baseline is scripts.lab.baselines text with the same sizes and seeds. With --taught, a teacher labels more examples, and the
minutes include its training and the preparation of the data.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from configs import registry
from configs.registry import ConfigError
from data.labelled.caches import with_seed
from data.packages.weights import fetch_weights
from scripts import cli
from scripts.recipes.prepare import prepare

_PLAIN = "bert.minilm_debian_sections"
EXPERIMENTS = {1000: f"{_PLAIN}_1k", 5000: f"{_PLAIN}_5k", 20_000: f"{_PLAIN}_20k", 0: _PLAIN}  # by training examples
TAUGHT = {5000: "bert.minilm_debian_taught_5k"}


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument(
        "--sizes", type=cli.numbers, default=[1000, 5000], help="numbers of training examples, comma-separated; 0 takes all"
    )
    parser.add_argument("--seeds", type=cli.numbers, default=[0, 1, 2], help="comma-separated")
    parser.add_argument("--taught", action="store_true", help="add examples that a teacher labels")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    args = parser.parse_args()
    experiments = TAUGHT if args.taught else EXPERIMENTS
    for size in args.sizes:
        if size not in experiments:
            raise ConfigError(f"--sizes {size}: there are experiments for {', '.join(map(str, experiments))}")
    fetch_weights("minilm_l6", progress=quiet)
    for size in args.sizes:
        results = [run(experiments[size], seed) for seed in (args.seeds if size else args.seeds[:1])]
        line = {"examples": size or "all", "seeds": len(results)}
        for key in ("accuracy", "macro_f1", "minutes"):
            line[key] = round(statistics.mean(result[key] for result in results), 4)
            line[f"each_{key}"] = [round(result[key], 4) for result in results]
        print(json.dumps(line) if args.json else "  ".join(f"{k} {v}" for k, v in line.items()), flush=True)
    return 0


def run(name: str, seed: int) -> dict[str, float]:
    """Trains an experiment on the seed's examples; returns its test scores and the minutes it took."""
    began = time.monotonic()
    cache, settings = with_seed(registry.load(name).data.cache, seed)
    prepare(cache, settings, progress=quiet)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "scripts.train", name, "--workdir", folder]
        subprocess.run(
            [*command, "--data.cache", cache, "--data.seed", str(seed), "--train.seed", str(seed)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        minutes = (time.monotonic() - began) / 60
        from trainers.monitoring import metrics

        scores = next(line for line in reversed(metrics.read(Path(folder))) if "eval/accuracy" in line)
    return {"accuracy": scores["eval/accuracy"], "macro_f1": scores["eval/macro_f1"], "minutes": minutes}


def quiet(line: str) -> None:
    """Ignores a line of progress."""


if __name__ == "__main__":
    cli.run(main)
