"""Compares the zoo with `transformers` on folders of models whose settings are drawn at random.

    python -m tests.parity.drawn [--folders N] NAME...

NAME is a case of tests/parity/cases.py; each of N folders, by default 20, has its class, its settings and some of `CHOICES` of
its class in their place. Outputs are compared in float32, to 1e-5 of the largest output.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from models.errors import UserError
from tests.parity import ours
from tests.parity.cases import CASES, GIVEN
from tests.parity.live import theirs
from trainers.weights.huggingface import HuggingFace

TOLERANCE = 1e-5
_ACTIVATIONS = ["gelu", "gelu_new", "relu", "silu", "quick_gelu"]
# Sizes of pictures are those of a few patches; of widths and heads each pair fits.
_PICTURES: dict[str, list[Any]] = {
    "hidden_size,num_attention_heads": [[12, 1], [14, 7], [22, 11], [30, 5], [33, 3], [36, 2]],
    "image_size,patch_size": [[4, 4], [12, 3], [15, 5], [14, 7], [22, 2], [27, 9], [23, 7]],
    "num_hidden_layers": [1, 2, 3, 5],
    "intermediate_size": [7, 13, 24, 31],
    "num_channels": [1, 2, 3],
    "layer_norm_eps": [1e-12, 1e-6, 1e-3],
    "hidden_act": _ACTIVATIONS,
}
_DINOV2 = {key: values for key, values in _PICTURES.items() if key != "intermediate_size"} | {
    "use_swiglu_ffn": [False, True],
    "mlp_ratio": [1, 2, 3, 5],
    "use_mask_token": [False, True],
}
_TEXTS: dict[str, list[Any]] = {
    "vocab_size": [20, 37, 61],
    "num_hidden_layers": [1, 2, 3],
    "intermediate_size": [7, 13, 24],
    "max_position_embeddings": [5, 13, 16],
    "layer_norm_eps": [1e-12, 1e-6, 1e-3],
    "hidden_act": _ACTIVATIONS,
}
_CLIP = (
    {",".join(f"vision_config.{key}" for key in names.split(",")): values for names, values in _PICTURES.items()}
    | {f"text_config.{key}": values for key, values in _TEXTS.items()}
    | {
        "text_config.hidden_size,text_config.num_attention_heads": _PICTURES["hidden_size,num_attention_heads"],
        "projection_dim": [3, 10, 32],
    }
)
# Vectors are as wide as the image tower, to which the text's head maps.
_WIDTHS = "text_config.hidden_size,text_config.num_attention_heads,text_config.projection_size"
_SIGLIP = {names: values for names, values in _CLIP.items() if "hidden_size" not in names and names != "projection_dim"} | {
    _WIDTHS: [[12, 1, 18], [22, 11, 18], [18, 2, 18]],
    "text_config.pad_token_id": [0, 1, 5],
    "vision_config.num_attention_heads": [1, 2, 6, 9],
}
# By model_type, values of settings; several settings that are drawn together are named in one.
CHOICES: dict[str, dict[str, list[Any]]] = {
    "vit": _PICTURES,
    "deit": _PICTURES,
    "beit": _PICTURES | {"layer_scale_init_value": [0.0, 0.5]},
    "dinov2": _DINOV2,
    "clip": _CLIP,
    "siglip": _SIGLIP,
}


def drawn(kind: str, settings: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Returns settings of which some have values of `CHOICES`; a name with a dot is a part's setting."""
    result = json.loads(json.dumps(settings))
    for names, values in CHOICES[kind].items():
        if rng.integers(3) == 0:
            continue
        keys, value = names.split(","), values[rng.integers(len(values))]
        for key, one in zip(keys, value if len(keys) > 1 else [value], strict=True):
            *parts, last = key.split(".")
            inner = result
            for part in parts:
                inner = inner.setdefault(part, {})
            inner[last] = one
    return result


def check(name: str, folders: int, scratch: Path, rng: np.random.Generator) -> float:
    """Prints how a case's folders end; returns the largest difference relative to a folder's largest output."""
    case = CASES[name]
    kind = json.loads(theirs("kind", case.architecture, version=case.version))
    models = {f"{name}_{i}": [case.architecture, drawn(kind, case.settings, rng)] for i in range(folders)}
    (scratch / "models.json").write_text(json.dumps(models))
    theirs("drawn", scratch, scratch / "models.json", version=case.version)
    worst = 0.0
    for folder, (_, settings) in models.items():
        expected = load_file(scratch / folder / "expected.safetensors")
        given = {k: expected.pop(k) for k in GIVEN if k in expected}
        try:
            got = ours.outputs(HuggingFace(scratch / folder), given)
        except UserError as error:
            print(f"{folder}: refused: {error}")
            return np.inf
        largest = max(np.abs(x).max() for x in expected.values())
        apart = ours.distance(got, expected, given["mask"]) / max(largest, 1)
        if apart > TOLERANCE:
            print(f"{folder}: {apart:.1e} apart: {json.dumps(settings)}")
        worst = max(worst, apart)
    print(f"{name:<32}{folders} folders, at most {worst:.1e} apart")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=20)
    parser.add_argument("names", nargs="+", choices=CASES, metavar="NAME")
    args = parser.parse_args()
    rng, worst = np.random.default_rng(0), 0.0
    for name in args.names:
        with tempfile.TemporaryDirectory() as scratch:
            worst = max(worst, check(name, args.folders, Path(scratch), rng))
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
