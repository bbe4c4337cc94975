"""Compares the zoo with `transformers` on folders whose settings were drawn at random, by import and by export.

    python -m tests.parity.draws KIND... [--folders 24]

KIND is a key of `DRAWN`. Folder number i of a kind is always the same: its name seeds its settings, its weights and its inputs.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from models.errors import nearest
from tests.parity import ours
from tests.parity.cases import GIVEN
from tests.parity.live import theirs
from trainers.weights.huggingface import HuggingFace, write_folder

TOLERANCE = 1e-5
_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_ACTIVATIONS = ("gelu", "relu", "gelu_new", "silu")


def _between(rng: np.random.Generator, least: int, most: int) -> int:
    return int(rng.integers(least, most + 1))


def _encoder(rng: np.random.Generator, stem: str, heads: tuple[str, ...] = _HEADS) -> tuple[str, dict[str, Any]]:
    """Returns a class, whose name begins with `stem`, and odd sizes of an encoder of BERT's kind."""
    head, number = str(rng.choice(heads)), _between(rng, 1, 7)
    return stem + head, dict(
        vocab_size=_between(rng, 20, 120),
        hidden_size=number * _between(rng, -(-8 // number), 9),  # a norm of fewer numbers may multiply what float32 rounds
        num_hidden_layers=_between(rng, 1, 5),
        num_attention_heads=number,
        intermediate_size=_between(rng, 3, 40),
        max_position_embeddings=_between(rng, 15, 40),
        layer_norm_eps=float(rng.choice([1e-12, 1e-6, 1e-5, 1e-3])),
        hidden_act="gelu" if head == "ForMaskedLM" else str(rng.choice(_ACTIVATIONS)),
        **({"num_labels": _between(rng, 1, 9)} if "Classification" in head else {}),
    )


def _types(rng: np.random.Generator) -> dict[str, Any]:
    return dict(type_vocab_size=_between(rng, 1, 4))


def _electra(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    architecture, settings = _encoder(rng, "Electra", (*_HEADS, "ForPreTraining"))
    size = settings["hidden_size"] if rng.random() < 0.3 else _between(rng, 2, 40)
    return architecture, settings | _types(rng) | dict(embedding_size=size)


def _albert(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    architecture, settings = _encoder(rng, "Albert")
    size, groups = _between(rng, 2, 40), _between(rng, 1, 3)
    size += size == settings["hidden_size"]  # which is refused
    layers = groups * _between(rng, 1, 4)
    more = dict(embedding_size=size, num_hidden_groups=groups, num_hidden_layers=layers)
    return architecture, settings | _types(rng) | more


def _mpnet(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    architecture, settings = _encoder(rng, "MPNet")
    return architecture, settings | dict(max_position_embeddings=settings["max_position_embeddings"] + 2)


DRAWN: dict[str, Callable[[np.random.Generator], tuple[str, dict[str, Any]]]] = {
    "electra": _electra,
    "albert": _albert,
    "mpnet": _mpnet,
}


def compare(kind: str, folders: int, scratch: Path) -> tuple[float, float]:
    """Returns the largest differences of folders of theirs here, and of the same written by us there; prints the worst."""
    names, cases = [f"{kind}_{i}" for i in range(folders)], {}
    for name in names:
        rng = np.random.default_rng(list(f"{name} drawn".encode()))
        architecture, settings = DRAWN[kind](rng)
        # With padding in front, what the first place of a row gives is padding's.
        left = rng.random() < 0.5 and not architecture.endswith(("SequenceClassification", "QuestionAnswering"))
        cases[name] = architecture, settings, left
    (scratch / "cases.json").write_text(json.dumps(cases))
    theirs("draw", scratch)
    expected = {name: load_file(scratch / name / "expected.safetensors") for name in names}
    there, back = {}, {}
    for name in names:
        given = {k: expected[name].pop(k) for k in GIVEN if k in expected[name]}
        source = HuggingFace(scratch / name)
        there[name] = ours.distance(ours.outputs(source, given), expected[name], given["mask"])
        write_folder(source, scratch / f"{name}_back")
        assert HuggingFace(scratch / f"{name}_back").config == source.config, name
        save_file(given, scratch / f"{name}_back" / "inputs.safetensors")
    theirs("run", *(scratch / f"{name}_back" for name in names))
    for name in names:
        outputs = load_file(scratch / f"{name}_back" / "outputs.safetensors")
        back[name] = max(float(np.abs(outputs[k] - v).max()) for k, v in expected[name].items())
    worst = max(names, key=lambda name: max(there[name], back[name]))
    print(f"{kind}: {folders} folders, worst is {worst}: {json.dumps(cases[worst])}")
    return max(there.values()), max(back.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="+")
    parser.add_argument("--folders", type=int, default=24)
    args = parser.parse_args()
    far = 0.0
    for kind in args.kind:
        if kind not in DRAWN:
            print(f"no kind {kind!r}{nearest(kind, DRAWN)}", file=sys.stderr)
            return 1
        with tempfile.TemporaryDirectory() as scratch:
            there, back = compare(kind, args.folders, Path(scratch))
        print(f"{kind:<32}{there:>10.1e}{back:>10.1e}", flush=True)
        far = max(far, there, back)
    return int(far > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
