"""Sizes of the zoo's models under the names of `transformers`. Depends on the fields of an experiment only."""

from typing import Any


def layers(m: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_hidden_layers": m["layers"],
        "hidden_size": m["model_dim"],
        "intermediate_size": m["feed_forward"]["hidden_dim"],
        "num_attention_heads": m["attention"]["heads"],
    }


def vit(m: dict[str, Any]) -> dict[str, Any]:
    return layers(m) | {
        "image_size": m["patches"]["height"],
        "patch_size": m["patches"]["size"],
        "num_channels": m["patches"]["channels"],
        "num_labels": m["head"]["classes"],
        "layer_norm_eps": m["norm"]["eps"],
    }
