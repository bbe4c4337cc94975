"""Odd models of pictures, alone and beside texts."""

import functools
import json
from typing import Any

import numpy as np

from tests.parity.cases import CASES
from tests.parity.odd.numbers import Draw, below, one_of

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


def _changed(rng: np.random.Generator, names: tuple[str, ...], choices: dict[str, list[Any]]) -> tuple[str, dict[str, Any]]:
    """Returns one of these cases, of which some settings have other values; a name with a dot is a part's setting, and several
    that are drawn together are named in one."""
    case = CASES[one_of(rng, *names)]
    result = json.loads(json.dumps(case.settings))
    for keys, values in choices.items():
        if below(rng, 3, 0) == 0:
            continue
        value = one_of(rng, *values)
        for key, one in zip(keys.split(","), value if "," in keys else [value], strict=True):
            *parts, last = key.split(".")
            inner = result
            for part in parts:
                inner = inner.setdefault(part, {})
            inner[last] = one
    return case.architecture, result


# By model_type, the cases that are changed, and values of settings.
_CHOICES: dict[str, tuple[tuple[str, ...], dict[str, list[Any]]]] = {
    "vit": (("vit_classification", "vit_features"), _PICTURES),
    "deit": (("deit", "deit_teacher", "deit_features"), _PICTURES),
    "beit": (("beit", "beit_features"), _PICTURES | {"layer_scale_init_value": [0.0, 0.5]}),
    "dinov2": (("dinov2", "dinov2_features"), _DINOV2),
    "clip": (("clip",), _CLIP),
    "siglip": (("siglip",), _SIGLIP),
}
DRAWS: dict[str, Draw] = {
    kind: functools.partial(_changed, names=names, choices=choices) for kind, (names, choices) in _CHOICES.items()
}
