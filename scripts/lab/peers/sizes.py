"""Sizes of the zoo's models under the names of `transformers`. Depends on the fields of an experiment only."""

from typing import Any


def layers(m: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_hidden_layers": m["layers"],
        "hidden_size": m["model_dim"],
        "intermediate_size": m["hidden_dim"],
        "num_attention_heads": m["heads"],
    }


def vit(m: dict[str, Any]) -> dict[str, Any]:
    return layers(m) | {
        "image_size": m["height"],
        "patch_size": m["patch"],
        "num_channels": m["channels"],
        "num_labels": m["classes"],
        "layer_norm_eps": m["norm_eps"],
    }
