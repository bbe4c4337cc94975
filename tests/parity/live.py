"""Compares the zoo with `transformers`, both ways, and writes the fixtures that the suite is tested against.

    make parity
    python -m tests.parity.live NAME...    of these cases alone; "texts" is all vocabularies of released families

Import: random models of `transformers` give the same outputs here. Export: random models of ours give the same there. Both
in float32, to 1e-4. `transformers` runs in an environment of its own; files are all that passes between the two.
"""

import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.numpy import load_file, save_file

from data.packages.fetch import FetchError
from data.packages.weights import weights_folder
from data.paths import ROOT, environment
from data.vocabularies.files import PIECES
from data.vocabularies.tokenizers import Tokenizer
from models.errors import nearest
from models.families import FAMILIES, interchange_of
from models.gpt.huggingface.mixtures import MIXTURES
from tests.helpers import released_vocabularies
from tests.helpers.vocabularies import write_pieces
from tests.parity import ours
from tests.parity.cases import CASES, GIVEN
from tests.parity.cases.translators import ODD_TEXT, TRANSLATORS
from tests.parity.vocabularies import VOCABULARIES
from trainers.weights import huggingface, load_any
from trainers.weights import source as weights

FIXTURES = ROOT / "tests/fixtures/parity"
TEXTS = "texts"  # the folder of vocabularies in it
TOLERANCE = 1e-4


def theirs(*args: str | Path, version: int = 5) -> str:
    """Runs the other side; gives back what it prints."""
    command = [environment("parity") / "bin/python", ROOT / "tests/parity/theirs.py", *args]
    path = {"PYTHONPATH": str(environment("parity") / "version4")} if version == 4 else {}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | path).stdout


# Of every model_type that is read; a picture's captioner has none without its two halves, of which TrOCR's decoder is none alone.
_KINDS = sorted(
    {kind for family in map(interchange_of, FAMILIES) if family for kind in family.model_types} - {"vision-encoder-decoder"}
    | {"trocr"}
)

_TOWERS = ("clip_text_model", "clip_vision_model", "siglip_text_model", "siglip_vision_model")


def imported(made: Path, names: Sequence[str]) -> dict[str, float]:
    """How far our outputs are from theirs, for each of their models."""
    differences = {}
    for name in names:
        expected = load_file(made / name / "expected.safetensors")
        given = {k: expected.pop(k) for k in GIVEN if k in expected}
        got = ours.outputs(huggingface.HuggingFace(made / name), given)
        differences[name] = ours.distance(got, expected, given["mask"])
    return differences


def exported(made: Path, to: Path, names: Sequence[str]) -> dict[str, float]:
    """How far their outputs are from ours, for models of the same configs with weights of ours; in shards, too."""
    sources, inputs = {}, {}
    for seed, name in enumerate(names):
        config = ours.deeper(huggingface.HuggingFace(made / name).config)
        sources[name] = weights.Arrays(config, ours.fresh(config, seed))
        huggingface.write_folder(sources[name], to / name, max_shard_bytes=(10**9, 30_000)[seed % 2])
        expected = load_file(made / name / "expected.safetensors")
        inputs[name] = {k: expected[k] for k in GIVEN if k in expected}
        save_file(inputs[name], to / name / "inputs.safetensors")
    for version in (4, 5):
        theirs("run", *(to / name for name in names if CASES[name].version == version), version=version)
    differences = {}
    for name, given in inputs.items():
        got = load_file(to / name / "outputs.safetensors")
        got.pop("hidden_states", None)
        differences[name] = ours.distance(ours.outputs(sources[name], given), got, given["mask"])
    return differences


def vocabularies(to: Path) -> dict[str, bool]:
    """Whether their tokenizer reads our folders' vocabularies as ours does; of those released weights that are fetched."""
    text, same = "Naïve 2 + 1234 protons;  don't  it's \n so", {}
    for name in ("minilm_l6", "smollm2_135m"):
        try:
            source = load_any.open_weights(weights_folder(name))
        except FetchError as error:
            print(f"not compared: {error}")
            continue
        small = dataclasses.replace(source.config, layers=1)
        huggingface.write_folder(weights.Arrays(small, ours.fresh(small, 0), source.vocabulary), to / name)
        tokenizer, ids = Tokenizer(to / name), json.loads(theirs("encode", to / name, text))
        own = tokenizer.encode(text)
        same[name] = ids in (own, [tokenizer.cls_id, *own, tokenizer.sep_id])
    return same


def texts(made: Path, to: Path) -> dict[str, bool]:
    """Whether the ids of texts in each family's form are equal here, and what `transformers` makes of them with our folders."""
    both = {name: (made / TEXTS / name, to / TEXTS / name) for name in VOCABULARIES}
    for name, (folder, back) in both.items():
        vocabulary = VOCABULARIES[name]
        released_vocabularies.write(vocabulary, folder, FIXTURES)
        shutil.copy(FIXTURES / vocabulary.model / huggingface.ONE_FILE, folder)
        huggingface.write_folder(load_any.open_weights(folder), back)
    for version in (4, 5):
        ran = (folders for name, folders in both.items() if VOCABULARIES[name].version == version)
        theirs(TEXTS, *itertools.chain(*ran), version=version)
    same = {}
    for name, (folder, back) in both.items():
        (folder / huggingface.ONE_FILE).unlink()
        wrote, wrote_back = (json.loads((at / f"{TEXTS}.json").read_text()) for at in (folder, back))
        tokenizer = Tokenizer(folder)
        same[name] = wrote == wrote_back and all(tokenizer.whole(row["text"]) == row["ids"] for row in wrote)
    return same


def translators(made: Path, to: Path) -> dict[str, bool]:
    """Whether ids and translations of each translator are equal here, and its ids in `transformers` from a folder of ours."""
    same = {}
    for name, case in TRANSLATORS.items():
        huggingface.write_folder(load_any.open_weights(made / name), to / name)
        (wanted,) = (w for w in ours.translations(made / name) if (w["text"], w["from"]) == (ODD_TEXT, case.directions[0][0]))
        ids = json.loads(theirs("encode", to / name, ODD_TEXT, wanted["from"], version=case.version))
        same[name] = ids == wanted["ids"] and not ours.mistranslated(made / name)
    return same


def compare(made: Path, written: Path, names: Sequence[str]) -> bool:
    """Prints how far the outputs of these cases are apart; whether all are near enough."""
    for version in (4, 5):
        theirs("make", made, *names, version=version)
    there, back = imported(made, names), exported(made, written, names)
    print(f"{'largest difference of an output':<32}{'import':>10}{'export':>10}")
    for name in names:
        print(f"{name:<32}{there[name]:>10.1e}{back[name]:>10.1e}")
    return max([*there.values(), *back.values()]) <= TOLERANCE


def agreed(same: Mapping[str, bool]) -> bool:
    """Prints which vocabularies are equal on both sides; whether all are."""
    for name, equal in same.items():
        print(f"{name + ', vocabulary':<32}{'equal' if equal else 'DIFFERENT':>20}")
    return all(same.values())


def some(names: Sequence[str]) -> int:
    """Compares some cases, and writes their fixtures."""
    if lost := [name for name in names if name not in (*CASES, TEXTS)]:
        print(f"no case {lost[0]!r}{nearest(lost[0], [*CASES, TEXTS])}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        made, written = Path(scratch) / "made", Path(scratch) / "written"
        cases = [name for name in names if name != TEXTS]
        if (cases and not compare(made, written, cases)) or (TEXTS in names and not agreed(texts(made, written))):
            print(f"more than {TOLERANCE} apart", file=sys.stderr)
            return 1
        shutil.copytree(made, FIXTURES, dirs_exist_ok=True)
    return 0


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        made, written = Path(scratch) / "made", Path(scratch) / "written"
        write_pieces(pieces := Path(scratch) / "pieces")
        near = compare(made, written, list(CASES))
        for version in (4, 5):
            theirs("translators", pieces / PIECES, made, version=version)
        theirs("hear", made / "spectra.safetensors")
        theirs("defaults", made / "defaults.json", *_KINDS, *MIXTURES, *_TOWERS)
        same = agreed(vocabularies(written) | texts(made, written) | translators(made, written))
        if not near or not same:
            print(f"more than {TOLERANCE} apart", file=sys.stderr)
            return 1
        try:
            theirs("embed", weights_folder("minilm_l6"), made / "minilm.safetensors")
        except FetchError as error:
            print(f"left as it is: the fixture of MiniLM's embeddings ({error})")
        shutil.copytree(made, FIXTURES, dirs_exist_ok=True)
    print(f"the fixtures in {FIXTURES.relative_to(ROOT)} were written")
    return 0


if __name__ == "__main__":
    sys.exit(some(sys.argv[1:]) if sys.argv[1:] else main())
