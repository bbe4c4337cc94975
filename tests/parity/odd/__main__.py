"""Compares the zoo with `transformers`, both ways, on models whose settings are drawn at random.

    python -m tests.parity.odd NAME... [--count 20]

The same outputs within 1e-5 in float32, relative to the largest where that is above 1, or it exits with an error.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from models.interchange import InterchangeError
from tests.parity import ours
from tests.parity.cases import GIVEN
from tests.parity.live import theirs
from tests.parity.odd import DRAWS, PADDED_IN_FRONT
from trainers.weights import huggingface
from trainers.weights import source as weights

TOLERANCE = 1e-5
# What is said of a whole text is said at its first place, which padding in front has.
WHOLE = ("SequenceClassification", "QuestionAnswering")


def largest(outputs: dict[str, np.ndarray]) -> float:
    """The largest number of outputs, 1 at least."""
    return max(1.0, *(float(np.abs(x).max()) for x in outputs.values() if x.dtype.kind == "f"))


def compare(name: str, count: int, scratch: Path) -> float:
    """Prints how far the outputs of this many drawn models are apart, and which are refused; returns the largest difference."""
    rng = np.random.default_rng(list(name.encode()))
    drawn = {}
    for i in range(count):
        architecture, settings = DRAWS[name](rng)
        left = name in PADDED_IN_FRONT and i % 2 > 0 and not architecture.endswith(WHOLE)
        drawn[f"{name}{i}"] = architecture, settings, left
    (scratch / "cases.json").write_text(json.dumps(drawn))
    theirs("odd", scratch / "cases.json", scratch / "made")
    there, expected, refused = {}, {}, 0
    for i, case in enumerate(drawn):
        expected[case] = load_file(scratch / "made" / case / "expected.safetensors")
        given = {k: expected[case].pop(k) for k in GIVEN if k in expected[case]}
        try:
            source = huggingface.HuggingFace(scratch / "made" / case)
        except InterchangeError as error:
            refused += 1
            print(f"{case}: {error}")
            continue
        far = ours.distance(ours.outputs(source, given), expected[case], given["mask"])
        there[case] = far / largest(expected[case])
        mine = weights.Arrays(source.config, ours.fresh(source.config, i))
        huggingface.write_folder(mine, scratch / "written" / case)
        save_file(given, scratch / "written" / case / "inputs.safetensors")
        save_file(ours.outputs(mine, given), scratch / "written" / case / "ours.safetensors")
    theirs("run", *(scratch / "written" / case for case in there))
    back = {}
    for case in there:
        folder = scratch / "written" / case
        got, given = load_file(folder / "outputs.safetensors"), load_file(folder / "inputs.safetensors")
        back[case] = ours.distance(load_file(folder / "ours.safetensors"), got, given["mask"]) / largest(got)
    print(
        f"{name:<20}{len(there)} models: import {max(there.values()):.1e}, export {max(back.values()):.1e}; {refused} refused",
        flush=True,
    )
    return max(*there.values(), *back.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=DRAWS, metavar="NAME")
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()
    worst = 0.0
    for name in args.names:
        with tempfile.TemporaryDirectory() as scratch:
            worst = max(worst, compare(name, args.count, Path(scratch)))
    return int(not worst < TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
