"""Converts foreign weights into a release, and ours into a Hugging Face folder, one tensor at a time.

    python -m scripts.convert from-hf FOLDER --to releases/minilm
    python -m scripts.convert from-gguf model.gguf --to releases/smollm2 --layout fully_sharded:8x1
    python -m scripts.convert to-hf releases/minilm --to minilm-hf
    python -m scripts.convert from-peft ADAPTER --base FOLDER --to releases/tuned   # merged
    python -m scripts.convert to-peft runs/tuned --to tuned-adapter

scripts.evaluate, scripts.generate and --train.finetune.init-from take releases, and also foreign folders as they are. The
experiment of a release is an experiment of the family with the configuration that was read. `to-hf` takes a run's workdir or a
release, whose adapters are merged, and any weights that can be read; `to-peft` takes a run's workdir alone.
"""

import dataclasses

from configs.experiment import Lora
from models.interchange import InterchangeError
from models.sharding.layouts import ONE_DEVICE
from scripts import cli


def main() -> int:
    parser = cli.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    sources = {
        "from-hf": "a Hugging Face folder",
        "from-gguf": "a GGUF file, or its folder",
        "from-peft": "an adapter in PEFT's form",
    }
    for name, what in sources.items():
        command = commands.add_parser(name, help=f"reads {what}")
        command.add_argument("source", type=cli.folder, help=what)
        command.add_argument(
            "--experiment", default="", help="the experiment that gives data, optimizer and evaluation; by default its family's"
        )
        command.add_argument(
            "--layout", metavar="NAME[:XxY]", help="the release's layout, e.g. fully_sharded:8x1; by default that experiment's"
        )
        command.add_argument("--to", type=cli.folder, required=True, metavar="DIR", help="a new folder")
        cli.add_precision(command)
        if name == "from-peft":
            command.add_argument("--base", type=cli.folder, metavar="DIR", help="its base; by default the path that it names")
    command = commands.add_parser("to-peft", help="writes a run's adapters in PEFT's form")
    command.add_argument("source", type=cli.folder, help="a run's workdir")
    command.add_argument("--step", type=int, help="the checkpoint; the newest by default")
    command.add_argument("--base", default="", help="the base's name in the adapter; by default what the run started from")
    command.add_argument("--to", type=cli.folder, required=True, metavar="DIR", help="a new folder")
    command = commands.add_parser("to-hf", help="writes a Hugging Face folder")
    command.add_argument(
        "source", type=cli.folder, help="a run's workdir, a release, or the name of released weights that were fetched"
    )
    command.add_argument("--step", type=int, help="the checkpoint of a workdir; the newest by default")
    command.add_argument("--max-shard-gb", type=float, default=5.0, help="the size of the largest file")
    command.add_argument("--to", type=cli.folder, required=True, metavar="DIR", help="a new folder")
    args = parser.parse_args()

    cli.use_devices(ONE_DEVICE)
    from data import progress
    from trainers.checkpoints import checkpoint
    from trainers.weights import gguf, huggingface, init_from, load_any, peft, release
    from trainers.weights.load_any import open_weights

    progress.show()
    if args.command == "to-hf":
        _, weights = load_any.open_model(init_from.located(str(args.source)), args.step)
        print(huggingface.write_folder(weights, args.to, max_shard_bytes=int(args.max_shard_gb * 1e9)))
        return 0
    if args.command == "to-peft":
        release.require_run(args.source)
        e, _, params, _ = checkpoint.read_stored(args.source, args.step)
        base = args.base or str(init_from.located(e.train.finetune.init_from).absolute() if e.train.finetune.init_from else "")
        print(peft.write(e.model, params, e.train.finetune.lora, args.to, base))
        return 0
    source = open_weights(args.source, getattr(args, "base", None))
    expected = {"from-hf": huggingface.HuggingFace, "from-gguf": gguf.Gguf, "from-peft": peft.Peft}[args.command]
    if not isinstance(source, expected):
        raise InterchangeError(f"{args.source} is a {type(source).__name__}, which {args.command} does not read")
    e = load_any.experiment_of(source, args.experiment)
    e = dataclasses.replace(e, execution=cli.computed_in(args.dtype, e.execution, source))
    if args.layout:
        e = dataclasses.replace(e, layout=cli.named_layout(e, args.layout))
    e = e.with_finetune(init_from="", lora=Lora())
    release.write_weights(source, e, args.to, f"converted from {args.source.absolute().name}")
    print(args.to)
    return 0


if __name__ == "__main__":
    cli.run(main)
