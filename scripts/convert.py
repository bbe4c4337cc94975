"""Converts foreign weights into a release, and ours into a Hugging Face folder, one tensor at a time.

    python -m scripts.convert from-hf FOLDER --to releases/minilm
    python -m scripts.convert from-gguf model.gguf --to releases/smollm2 --layout fully_sharded:8x1
    python -m scripts.convert to-hf releases/minilm --to minilm-hf

scripts.evaluate, scripts.generate and --train.init-from take releases, and also foreign folders as they are. The experiment of a
release is an experiment of the family with the configuration that was read. `to-hf` takes a run's workdir or a release.
"""

import dataclasses

from configs.experiment import Lora
from models.interchange import InterchangeError
from models.sharding.layouts import ONE_DEVICE
from scripts import cli


def main() -> int:
    parser = cli.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("from-hf", "a Hugging Face folder"), ("from-gguf", "a GGUF file, or its folder")):
        command = commands.add_parser(name, help=f"reads {what}")
        command.add_argument("source", type=cli.folder, help=what)
        command.add_argument(
            "--experiment", default="", help="the experiment that gives data, optimizer and evaluation"
        )
        command.add_argument("--layout", metavar="NAME[:XxY]", help="the release's layout, e.g. fully_sharded:8x1")
        command.add_argument("--to", type=cli.folder, required=True, metavar="DIR", help="a new folder")
    command = commands.add_parser("to-hf", help="writes a Hugging Face folder")
    command.add_argument("source", type=cli.folder, help="a run's workdir or a release")
    command.add_argument("--step", type=int, help="the checkpoint of a workdir; the newest by default")
    command.add_argument("--max-shard-gb", type=float, default=5.0, help="the size of the largest file")
    command.add_argument("--to", type=cli.folder, required=True, metavar="DIR", help="a new folder")
    args = parser.parse_args()

    cli.use_devices(ONE_DEVICE)
    from trainers.weights import gguf, huggingface, open, release
    from trainers.weights.open import open_weights

    if args.command == "to-hf":
        _, weights = open.open_model(args.source, args.step)
        print(huggingface.write_folder(weights, args.to, max_shard_bytes=int(args.max_shard_gb * 1e9)))
        return 0
    source = open_weights(args.source)
    expected = {"from-hf": huggingface.HuggingFace, "from-gguf": gguf.Gguf}[args.command]
    if not isinstance(source, expected):
        raise InterchangeError(f"{args.source} is a {type(source).__name__}, which {args.command} does not read")
    e = open.foreign(source.config, args.experiment)
    if args.layout:
        e = dataclasses.replace(e, layout=cli.named_layout(e, args.layout))
    e = dataclasses.replace(e, train=dataclasses.replace(e.train, init_from="", lora=Lora()))
    release.write_weights(source, e, args.to, f"converted from {args.source.absolute().name}")
    print(args.to)
    return 0


if __name__ == "__main__":
    cli.run(main)
