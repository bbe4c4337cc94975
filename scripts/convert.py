"""Converts weights of any form into a release, and ours into forms of others, one tensor at a time.

    python -m scripts.convert from SOURCE --to releases/minilm             # says what SOURCE is, and converts it
    python -m scripts.convert from SOURCE --to releases/minilm --dry-run   # says what it would do
    python -m scripts.convert from ADAPTER --base FOLDER --to releases/tuned   # merged
    python -m scripts.convert to-hf releases/minilm --to minilm-hf
    python -m scripts.convert to-t5x releases/t5 --to checkpoint_0
    python -m scripts.convert to-maxtext releases/llama --to checkpoints/0
    python -m scripts.convert to-peft runs/tuned --to tuned-adapter

SOURCE is a Hugging Face folder (safetensors or Flax's msgpack), a GGUF file, a file of arrays (.npz), a checkpoint of T5X or
MaxText, an adapter in PEFT's form, a run or a release: docs/WEIGHTS.md has the table. scripts.evaluate, scripts.generate and
--train.finetune.init-from take all of them as they are. The experiment of a release is that of a run or release, and else an
experiment of the family with the configuration that was read. `to-hf`, `to-t5x` and `to-maxtext` take whatever `from` takes,
and merge adapters; `to-peft` takes a run's workdir alone.
"""

import argparse
import dataclasses
import math
from pathlib import Path

from configs.experiment import Lora
from models.sharding.layouts import ONE_DEVICE
from scripts import cli

_FORMS = {"to-hf": "a Hugging Face folder", "to-t5x": "a T5X checkpoint", "to-maxtext": "a MaxText checkpoint"}


def main() -> int:
    args = _parser().parse_args()
    cli.use_devices(ONE_DEVICE)
    from data import progress
    from trainers.audit import log as audit
    from trainers.weights import checkpoint_folders, huggingface, init_from, load_any

    progress.show()
    if args.command == "from":
        return _to_release(args)
    if args.command == "to-peft":
        return _to_peft(args)
    _, weights = load_any.open_model(init_from.located(str(args.source)), args.step)
    match args.command:
        case "to-hf":
            print(huggingface.write_folder(weights, args.to, max_shard_bytes=int(args.max_shard_gb * 1e9)))
        case "to-t5x":
            print(checkpoint_folders.write_t5x(weights, args.to))
        case _:
            print(checkpoint_folders.write_maxtext(weights, args.to, scanned=not args.unscanned))
    audit.record("converted", form=args.command, path=str(args.to.resolve()), command=audit.command())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("from", help="recognises weights of any form, and writes them as a release")
    command.add_argument("source", type=cli.folder, help="a file or a folder, or the name of released weights that were fetched")
    command.add_argument(
        "--dry-run", action="store_true", help="says what the source is and what would be written, and writes nothing"
    )
    command.add_argument(
        "--experiment", default="", help="the experiment that gives data and evaluation; by default its own or its family's"
    )
    command.add_argument(
        "--layout", metavar="NAME[:XxY]", help="the release's layout, e.g. fully_sharded:8x1; by default that experiment's"
    )
    command.add_argument("--base", type=cli.folder, metavar="DIR", help="an adapter's base; by default the path that it names")
    command.add_argument("--step", type=int, help="the checkpoint of a workdir; the newest by default")
    command.add_argument("--to", type=cli.folder, required=True, metavar="DIR", help="a new folder")
    cli.add_precision(command)
    command = commands.add_parser("to-peft", help="writes a run's adapters in PEFT's form")
    command.add_argument("source", type=cli.folder, help="a run's workdir")
    command.add_argument("--step", type=int, help="the checkpoint; the newest by default")
    command.add_argument("--base", default="", help="the base's name in the adapter; by default what the run started from")
    command.add_argument("--to", type=cli.folder, required=True, metavar="DIR", help="a new folder")
    for name, what in _FORMS.items():
        command = commands.add_parser(name, help=f"writes {what}")
        command.add_argument(
            "source", type=cli.folder, help="a run's workdir, a release, or the name of released weights that were fetched"
        )
        command.add_argument("--step", type=int, help="the checkpoint of a workdir; the newest by default")
        command.add_argument("--to", type=cli.folder, required=True, metavar="DIR", help="a new folder")
        if name == "to-hf":
            command.add_argument("--max-shard-gb", type=float, default=5.0, help="the size of the largest file")
        if name == "to-maxtext":
            command.add_argument("--unscanned", action="store_true", help="each layer has arrays of its own (scan_layers=False)")
    return parser


def _to_release(args: argparse.Namespace) -> int:
    from trainers.weights import init_from, load_any, release

    path: Path = init_from.located(str(args.source))
    e, weights = load_any.open_model(path, args.step, args.experiment, args.base)
    e = dataclasses.replace(e, execution=cli.computed_in(args.dtype, e.execution, weights))
    if args.layout:
        e = dataclasses.replace(e, layout=cli.named_layout(e, args.layout))
    e = e.with_finetune(init_from="", lora=Lora())
    if args.dry_run:
        release.check_new(weights, e, args.to)
        numbers = sum(map(math.prod, weights.shapes.values()))
        form, family = load_any.title(path, weights), weights.config.family
        print(f"{path} is {form}, of family {family}: {numbers:,} numbers in {weights.stored}")
        print(f"would write the release {args.to}: experiment {e.name}, layout {e.layout.name}, {4 * numbers:,} bytes of float32")
        return 0
    release.write_weights(weights, e, args.to, f"converted from {path.absolute().name}")
    print(args.to)
    return 0


def _to_peft(args: argparse.Namespace) -> int:
    from trainers.audit import log as audit
    from trainers.checkpoints import checkpoint
    from trainers.weights import init_from, peft, release

    release.require_run(args.source)
    e, _, params, _ = checkpoint.read_stored(args.source, args.step)
    base = args.base or str(init_from.located(e.train.finetune.init_from).absolute() if e.train.finetune.init_from else "")
    print(peft.write(e.model, params, e.train.finetune.lora, args.to, base))
    audit.record("converted", form=args.command, path=str(args.to.resolve()), command=audit.command())
    return 0


if __name__ == "__main__":
    cli.run(main)
