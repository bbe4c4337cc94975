"""Fetches and prepares a data set, or fetches released weights.

    python -m scripts.prepare_data m4_quickstart [--json]
    python -m scripts.prepare_data flowers --from ~/pictures/flowers           # a folder for each class
    python -m scripts.prepare_data svhn --from tfds:svhn_cropped --test 0.1    # what TFDS has prepared
    python -m scripts.prepare_data rain --from radar.nc --variables rate       # a gridded series
    python -m scripts.prepare_data talks --from ~/talks --teacher whisper_base # sounds, written down where their table is not
    python -m scripts.prepare_data c4_1024 --beam "--direct_num_workers=8"     # by Apache Beam (docs/DATA.md)
    python -m scripts.prepare_data talks --from talks.jsonl --vocabulary DIR   # conversations, in the chat template of DIR

With --from, NAME is what the data set of your own is to be called, and the further options are fields of its settings. The name
`reference` prepares the texts that scripts.chat looks things up in.
"""

import argparse
import dataclasses
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from configs.overrides import override
from configs.registry import ConfigError
from data import progress
from data.config import CacheConfig
from data.packages.weights import VOCABULARIES, WEIGHTS, fetch_weights
from data.prepare import PREPARED, own_settings, settings_from
from data.reading.caches import read_manifest
from models.errors import nearest
from scripts import cli
from scripts.recipes.prepare import prepare
from trainers.inference.tools import reference


def main(arguments: list[str] | None = None) -> int:
    """Prepares the data set or the weights of the command line; raises ConfigError for an unknown name, with the nearest one."""
    parser = cli.parser(__doc__, epilog=f"further options with --from, and their defaults:\n{own_options()}")
    parser.add_argument("name", help=f"a data set: {', '.join(PREPARED)}; {reference.NAME}; or weights: {', '.join(WEIGHTS)}")
    parser.add_argument(
        "--vocabulary",
        metavar="DIR|FILE|NAME",
        help="whose vocabulary encodes it: the folder of a checkpoint, a tokenizer.json or a SentencePiece model; or the name of "
        f"a released one: {', '.join(VOCABULARIES)}",
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="SOURCE",
        help="make it of your own data: a folder, a file or a pattern of files; what each kind takes is listed below",
    )
    parser.add_argument(
        "--kind", default="", help="the kind of data, where a source fits several; by default the only one that fits"
    )
    parser.add_argument(
        "--columns",
        default="",
        metavar="NAME=COLUMN,...",
        help="columns of a table that are called otherwise: text=body,label=topic",
    )
    parser.add_argument(
        "--beam",
        metavar="OPTIONS",
        type=shlex.split,
        help='read a data set of TFDS by Apache Beam with its own options, as "--runner=DirectRunner --direct_num_workers=4"',
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON; progress goes to stderr")
    options, overrides = parser.parse_known_args(arguments)
    if overrides and not options.source:
        parser.parse_args(arguments)  # names what it does not know
    progress.show(not options.json)
    vocabulary = None if options.vocabulary in (None, *VOCABULARIES) else vocabulary_path(options.vocabulary)
    if options.source:
        if options.name in {*PREPARED, *WEIGHTS, reference.NAME} or not re.fullmatch(r"\w[\w.-]*", options.name):
            raise ConfigError(f"{options.name!r}: expected a name of your own, of letters and digits, for the data of --from")
        settings = override(own_of(options), overrides, ["from", "json", "vocabulary", "beam", "kind", "columns"])
        folder = prepare(options.name, settings, vocabulary=vocabulary, progress=say, beam=options.beam)
        summary = summarise(folder)
    elif options.name in WEIGHTS:
        folder = fetch_weights(options.name, progress=say)
        summary = {"weights": options.name, "folder": str(folder)}
    elif options.name in PREPARED:
        folder = prepare(options.name, vocabulary=vocabulary, progress=say, beam=options.beam)
        summary = summarise(folder)
    elif options.name == reference.NAME:
        folder = reference.prepare(progress=say)
        summary = {"snippets": json.loads((folder / reference.RECORD).read_text())["snippets"], "folder": str(folder)}
    else:
        raise ConfigError(f"no data set {options.name!r}{nearest(options.name, [*PREPARED, reference.NAME, *WEIGHTS])}")
    print(json.dumps(summary) if options.json else "\n".join(f"{name}: {value}" for name, value in summary.items()))
    return 0


def own_of(options: argparse.Namespace) -> CacheConfig:
    """Returns the settings of the user's own data that the command line names, before their fields are overridden."""
    settings = settings_from(options.source, options.columns, kind=options.kind)
    if options.vocabulary is None:
        return settings
    return settings.encoded_with(options.vocabulary if options.vocabulary in VOCABULARIES else "")


def vocabulary_path(text: str) -> Path:
    """Returns the folder or the file of a vocabulary; raises ConfigError with the nearest name if there is none."""
    path = cli.folder(text)
    if not path.exists():
        raise ConfigError(f"--vocabulary {text!r}: no such folder or file{nearest(text, VOCABULARIES)}")
    return path


def own_options() -> str:
    """Returns what each kind of a user's own data is made of, and its options with their defaults: the fields of its settings."""
    lines = []
    for cls in own_settings():
        lines += textwrap.wrap(f"{cls.kind}: {cls.made_of}", 100, initial_indent="  ", subsequent_indent="    ")
        lines += [*textwrap.wrap(", ".join(_options(cls)), 100, initial_indent="    ", subsequent_indent="    ")]
    return "\n".join(lines)


def _options(cls: type, prefix: str = "") -> Iterator[str]:
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.default):
            yield from _options(type(field.default), f"{prefix}{field.name}.")
        elif field.name not in ("source", "sources", "columns", "tokenizer"):  # options of the command
            yield f"--{prefix}{field.name} {field.default!r}"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def summarise(cache: Path) -> dict[str, Any]:
    """Returns a cache's manifest in a few numbers, with how many examples are held out."""
    manifest = read_manifest(cache)
    name = "languages" if "languages" in manifest else "parts"
    counts = {name: len(manifest[name])}
    for part in manifest[name].values():
        for what, count in part.items():
            counts[what] = counts.get(what, 0) + count
    for path in sorted(cache.glob("*.jsonl"), reverse=True):  # validation, then test
        with path.open("rb") as lines:
            counts[path.stem] = sum(1 for _ in lines)
    return {"cache": manifest["cache"], **counts, "fingerprint": manifest["fingerprint"], "folder": str(cache)}


if __name__ == "__main__":
    cli.run(main)
