"""Begins an experiment, a family of models or a kind of data of your own: writes files that run as they are.

    shardzoo new my_experiment --like gpt.quickstart    my_experiment.py, whose experiment is derived from the other one
    shardzoo new my_family --family                     my_family/, a small family with experiments
    shardzoo new my_kind --kind                         my_kind/, a small kind of data with experiments

They are written into the working folder, and no file there is replaced. docs/EXPERIMENTS.md and docs/ADD_A_MODEL.md go on
from there.
"""

import importlib.util
import keyword
import re
import string
from pathlib import Path

from configs import files, registry
from configs.registry import ConfigError
from data.kinds import KINDS
from data.paths import new_folder, write_whole
from models.families import FAMILIES
from scripts import cli

SKELETONS = Path(__file__).parent / "skeletons"
_IMPORTED = ("Experiment", "registry")  # by the file of an experiment, whose function would hide them


def experiment(name: str, like: str) -> str:
    """Returns the text of a file with an experiment that is derived from another."""
    e = registry.load(like)
    parts = [line.partition(":")[0] for line in registry.lines(e.model)]
    return string.Template((SKELETONS / "experiment.txt").read_text(encoding="utf-8")).substitute(
        name=name,
        file=f"{name}.py",
        like=files.absolute(like),
        steps=e.train.steps,
        part=next((path for path in parts if "." in path and not path.endswith(".class")), parts[0]),
        cache=e.data.cache,
        batch=e.data.batch_size,
        seed=e.train.seed,
    )


def package(name: str, skeleton: str) -> dict[str, str]:
    """Returns the texts of a package's files by name: those of a skeleton, under another name."""
    camel = "".join(word.capitalize() for word in name.split("_"))
    return {
        path.name: re.sub("Skeleton", camel, path.read_text(encoding="utf-8")).replace("skeleton", name)
        for path in sorted((SKELETONS / skeleton).iterdir())
        if path.is_file()
    }


def check_name(name: str) -> None:
    """Raises ConfigError for a name that no module can have, or that another one has."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise ConfigError(f"{name!r} is no name of a Python module: letters, digits and underscores")
    for path in (Path(name), Path(f"{name}.py")):
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} exists, and nothing is replaced: choose another name, or move it away")
    if name in (*FAMILIES, *KINDS, *_IMPORTED) or importlib.util.find_spec(name):
        raise ConfigError(f"{name!r} is the name of another module, family or kind of data: choose another one")


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("name", help="of the file and its experiment, of the family or of the kind of data")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--like", metavar="EXPERIMENT", help="an experiment that is derived from this one")
    what.add_argument("--family", action="store_true", help="a family of models")
    what.add_argument("--kind", action="store_true", help="a kind of data")
    args = parser.parse_args()
    check_name(args.name)
    if args.like:
        write_whole(Path(f"{args.name}.py"), experiment(args.name, args.like))
        print(f"{args.name}.py is written; now: shardzoo train {args.name}.py:{args.name} --workdir runs/{args.name}")
        return 0
    with new_folder(Path(args.name)) as folder:
        for file, text in package(args.name, "family" if args.family else "kind").items():
            (folder / file).write_text(text, encoding="utf-8")
    first = "small" if args.family else "sample"
    more = "" if args.family else " --prepare"
    print(f"{args.name}/ is written; now: shardzoo train {args.name}/experiments.py:{first} --workdir runs/{args.name}{more}")
    return 0


if __name__ == "__main__":
    cli.run(main)
