"""Fetches and prepares a data set: `python -m scripts.prepare_data m4_quickstart [--json]`."""

import argparse
import difflib
import json
import sys

from data.packages import FetchError
from data.prepare import PREPARED, prepare


def main(arguments: list[str] | None = None) -> int:
    """Prepares what the command line names. Returns 0; 1 where it could not be prepared; 2 for a wrong name."""
    parser = argparse.ArgumentParser(prog="python -m scripts.prepare_data", description=__doc__)
    parser.add_argument("name", help=f"one of {', '.join(PREPARED)}")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON; progress goes to stderr")
    options = parser.parse_args(arguments)
    if options.name not in PREPARED:
        nearest = difflib.get_close_matches(options.name, PREPARED, n=1, cutoff=0.0)[0]
        print(f"unknown data set {options.name!r}; did you mean {nearest!r}?", file=sys.stderr)
        return 2
    try:
        folder = prepare(options.name, **PREPARED[options.name], progress=lambda line: print(line, file=sys.stderr))
    except (FetchError, ValueError) as error:
        print(f"{options.name}: {error}", file=sys.stderr)
        return 1
    manifest = json.loads((folder / "manifest.json").read_text())
    totals = {
        "cache": manifest["cache"],
        "folder": str(folder),
        "languages": len(manifest["languages"]),
        **{
            count: sum(language[count] for language in manifest["languages"].values())
            for count in ("pairs", "rows", "source_tokens", "target_tokens", "dropped")
        },
        "fingerprint": manifest["fingerprint"],
    }
    print(json.dumps(totals) if options.json else "\n".join(f"{name}: {value}" for name, value in totals.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
