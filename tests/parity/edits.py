"""Compares the zoo with `transformers` on folders of which one setting was edited: equal outputs, or a refusal here.

    python -m tests.parity.edits NAME...

NAME is a case whose fixture has the weights. Each setting of its config.json, and each that `transformers` has for the model's
type, is changed, left out and set to null, one at a time; a last folder has one that nobody knows. What `transformers` does not
read may be read here: nothing says what it would have computed.
"""

import collections
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from models.errors import UserError
from tests.parity import ours
from tests.parity.cases import CASES, GIVEN
from tests.parity.live import FIXTURES, theirs
from trainers.weights.huggingface import HuggingFace

TOLERANCE = 1e-4
# Other values that `transformers` accepts, of settings that are words.
WORDS = {"gelu": "relu", "relu": "gelu", "silu": "gelu", "gelu_new": "relu", "cls": "mean", "mean": "cls", "float32": "bfloat16"}
# The model itself, how precisely it is computed, and the form of what it returns.
NAMES = {"architectures", "model_type", "dtype", "torch_dtype", "return_dict"}
ABSENT = object()


def edits(config: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (what is edited, the config.json) of every edit."""
    for key in sorted((config.keys() | known.keys()) - NAMES):
        now = config.get(key, known.get(key))
        of_part = _of_part(now) if key.endswith("_config") else {}
        for how, value in {"left out": ABSENT, "null": None, **_others(now), **of_part}.items():
            edited = {k: v for k, v in config.items() if k != key} | ({} if value is ABSENT else {key: value})
            if edited != config:
                yield f"{key} {how}", edited
    yield "an unknown key", dict(config) | {"of_nobody": 3}


def _of_part(now: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a part of a model, such as a tower's, with one of its own edited."""
    changes: dict[str, Any] = {}
    for key in sorted(now.keys() - NAMES):
        changes[f"{key} left out"] = {k: v for k, v in now.items() if k != key}
        changes |= {f"{key} {how}": {**now, key: value} for how, value in {"null": None, **_others(now[key])}.items()}
    return changes


def _others(now: Any) -> dict[str, Any]:
    match now:
        case bool():
            return {"changed": not now}
        case int():
            return {"one more": now + 1, "doubled": 2 * now}
        case float():
            return {"changed": 2 * now + 0.01}
        case str():
            return {"changed": WORDS.get(now, now + "x")}
        case list():
            return {"reversed": now[::-1], "shorter": now[1:]}
        case dict() if all(isinstance(v, dict) for v in now.values()):
            return {"empty": {}} | {
                f"{key}.{k} {how}": now | {key: inner | {k: v}}
                for key, inner in now.items()
                for k, value in inner.items()
                for how, v in _others(value).items()
            }
        case dict():
            return {"empty": {}}
    return {"set": 3}


def inputs(folder: Path, pad: Any) -> dict[str, np.ndarray]:
    """The inputs of a fixture, with padding of this id and no other token like it."""
    stored = load_file(folder / "expected.safetensors")
    given = {k: stored[k] for k in GIVEN if k in stored and k != "prompts"}
    if "images" in given:
        return given
    real = np.where(given["tokens"] < 9, given["tokens"] + 9, given["tokens"])
    given["tokens"] = np.where(given["mask"] > 0, real, pad if type(pad) is int and 0 <= pad < 9 else 0).astype(np.int32)
    return given


def check(name: str, scratch: Path, known: Mapping[str, Mapping[str, Any]]) -> collections.Counter:
    """Counts how the edits of a case end; prints those whose outputs differ."""
    fixture, folders, outputs = FIXTURES / name, {}, {}
    config = json.loads((fixture / "config.json").read_text())
    newest = CASES[name].version == 5  # whose settings the older version passes over
    defaults = known.get(config["model_type"], {}) if newest else {}
    for i, (edit, edited) in enumerate(edits(config, defaults)):
        folder = scratch / f"{name}{i}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(edited))
        (folder / "model.safetensors").symlink_to(fixture / "model.safetensors")
        save_file(inputs(fixture, edited.get("pad_token_id", defaults.get("pad_token_id"))), folder / "inputs.safetensors")
        folders[edit] = folder
    theirs("edited", *folders.values(), version=CASES[name].version)
    ends = collections.Counter()
    for edit, folder in folders.items():
        given = load_file(folder / "inputs.safetensors")
        try:
            source = HuggingFace(folder)
        except UserError as error:
            assert len(str(error).splitlines()) == 1, error
            ends["refused"] += 1
            continue
        if not (folder / "outputs.safetensors").exists():
            ends["read here alone"] += 1
            print(f"{name}: {edit}: not read by transformers")
            continue
        key = source.config, *(given[name].tobytes() for name in sorted(given))
        if key not in outputs:
            outputs[key] = ours.outputs(source, given)
        expected = load_file(folder / "outputs.safetensors")
        for further in ("hidden_states", "aux_loss"):  # a mixture's balance loss
            expected.pop(further, None)
        apart = ours.distance(outputs[key], expected, given["mask"])
        ends["equal" if apart < TOLERANCE else "DIFFERENT"] += 1
        if apart >= TOLERANCE:
            print(f"{name}: {edit}: {apart:.1e} apart")
    return ends


def main(names: list[str]) -> int:
    known = json.loads((FIXTURES / "defaults.json").read_text())
    total = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            ends = check(name, Path(scratch), known)
            print(f"{name:<32}{', '.join(f'{n} {end}' for end, n in sorted(ends.items()))}")
            total += ends
    print(f"{sum(total.values())} folders: {', '.join(f'{n} {end}' for end, n in sorted(total.items()))}")
    return total["DIFFERENT"] > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
