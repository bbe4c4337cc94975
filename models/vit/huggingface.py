"""ViT in Hugging Face's files. No JAX.

Names are those of released files; version 5 of `transformers` writes others, and reads both, as we do. A folder of `ViTModel` has
no classes: its outputs here are the last layer's vectors, or with a pooler those of the class token, pooled.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from models.interchange import (
    Entry,
    InterchangeError,
    demand,
    matrix,
    model_type,
    only,
    read_activation,
    setting,
    vector,
    write_activation,
)
from models.vit.config import VitConfig

MODEL_TYPES = ("vit",)
_ARCHITECTURES = {"vit": ("ViTForImageClassification", "ViTModel")}
_HEADS = ("vit.pooler.", "classifier.")
# What version 5 calls the parts of a layer, and what released files do.
_NEW = {
    r"^(vit\.)?layers\.": "vit.encoder.layer.",
    r"\.attention\.([qkv])_proj\.": lambda m: f".attention.attention.{_LONG[m[1]]}.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}
_LONG = {"q": "query", "k": "key", "v": "value"}


def read_config(theirs: Mapping[str, Any]) -> VitConfig:
    """Returns the configuration of the model that a config.json describes.

    Raises:
      InterchangeError: a setting is missing, or our model does not support it.
    """
    model_type(theirs, _ARCHITECTURES)
    only(theirs, qkv_bias=(True,), pooler_act=("tanh",), problem_type=("single_label_classification",))
    width, heads = setting(theirs, "hidden_size", int, 768), setting(theirs, "num_attention_heads", int, 12)
    if width % heads:
        raise InterchangeError(f"config.json: hidden_size={width} is no multiple of num_attention_heads={heads}")
    if setting(theirs, "pooler_output_size", int, width) != width:
        raise InterchangeError(f"config.json: pooler_output_size={theirs['pooler_output_size']}: only hidden_size={width}")
    architecture = (setting(theirs, "architectures", list, None) or ["ViTForImageClassification"])[0]
    bare = architecture == "ViTModel"
    size = theirs.get("image_size")
    height, width_ = size if isinstance(size, list) and len(size) == 2 else [setting(theirs, "image_size", int, 224)] * 2
    return VitConfig(
        height=height,
        width=width_,
        channels=setting(theirs, "num_channels", int, 3),
        patch=setting(theirs, "patch_size", int, 16),
        classes=0 if bare else len(setting(theirs, "id2label", dict, {})) or setting(theirs, "num_labels", int, 2),
        pooler=bare,
        layers=setting(theirs, "num_hidden_layers", int, 12),
        model_dim=width,
        hidden_dim=setting(theirs, "intermediate_size", int, 3072),
        heads=heads,
        head_dim=width // heads,
        activation=read_activation(setting(theirs, "hidden_act", str, "gelu")),
        norm_eps=setting(theirs, "layer_norm_eps", float, 1e-12),
        dropout=setting(theirs, "hidden_dropout_prob", float, 0.0),
    )


def reading(c: VitConfig, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of data that a preprocessor_config.json sets: `mean`, `std` and `eval_crop`.

    Raises:
      InterchangeError: pictures are brought to size in a way, or to a size, that is not ours.
    """
    kinds = ("ViTImageProcessor", "ViTImageProcessorFast", "ViTFeatureExtractor")
    only(
        theirs,
        image_processor_type=kinds,
        feature_extractor_type=kinds,
        do_resize=(True,),
        resample=(2,),
        do_rescale=(True,),
        do_pad=(False,),
    )
    if abs(setting(theirs, "rescale_factor", float, 1 / 255) * 255 - 1) > 1e-4:
        raise InterchangeError(f"rescale_factor={theirs['rescale_factor']}: only 1/255")
    size, crop = _sides(theirs.get("size", 224)), 0.0
    if setting(theirs, "do_center_crop", bool, False):
        cut = _sides(theirs.get("crop_size", 224))
        if len(size) != 1 or len(set(cut)) != 1 or cut[0] > size[0]:
            raise InterchangeError(f"crop_size={cut} of size={size}: only a square of a picture's shortest edge")
        size, crop = cut, cut[0] / size[0]
    if size != [c.height, c.width]:
        raise InterchangeError(f"size={size}: only the model's, [{c.height}, {c.width}], to which pictures are squeezed")
    normal = setting(theirs, "do_normalize", bool, True)
    numbers = {}
    for name, plain in (("mean", 0.0), ("std", 1.0)):
        values = setting(theirs, f"image_{name}", list, [0.5]) if normal else [plain]
        least = 1e-6 if name == "std" else -1e6
        if len(values) not in (1, c.channels) or not all(type(v) in (int, float) and least < v < 1e6 for v in values):
            raise InterchangeError(f"image_{name}={json.dumps(values)[:60]}: only {c.channels} numbers, a deviation above 0")
        numbers[name] = tuple(map(float, values if len(set(values)) > 1 else values[:1]))
    return {"eval_crop": crop, **numbers}


def _sides(size: Any) -> list[int]:
    """Returns height and width, or the shortest edge alone, of a preprocessor's size."""
    if isinstance(size, int):
        return [size, size]
    for keys in (("height", "width"), ("shortest_edge",)):
        if isinstance(size, dict) and set(size) == set(keys):
            return [setting(size, key, int) for key in keys]
    raise InterchangeError(f"size={json.dumps(size)[:60]}: only a height and a width, or a shortest edge")


def write_config(c: VitConfig) -> dict[str, Any]:
    """Returns the config.json of a model.

    Raises:
      InterchangeError: `transformers` has no class for the model; the message names the fields that differ.
    """
    demand(
        c,
        "ViT",
        positions="learned",
        norm="layer",
        norm_bias=True,
        order="pre",
        gated=False,
        attention_bias=True,
        output_bias="same",
        qk_norm=False,
        ffn_bias=True,
        groups=c.heads,
        head_dim=c.model_dim // c.heads,
        per_dim_scale=False,
        logit_cap=0.0,
        attention_scale=True,
        pooling="token",
        class_token="positioned",
        pooler=not c.classes,
        moe=None,
        patch_bias=True,
    )
    names = {str(i): f"LABEL_{i}" for i in range(c.classes)}
    return {
        "architectures": [_ARCHITECTURES["vit"][not c.classes]],
        "model_type": "vit",
        "image_size": c.height if c.height == c.width else [c.height, c.width],
        "num_channels": c.channels,
        "patch_size": c.patch,
        "hidden_size": c.model_dim,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "intermediate_size": c.hidden_dim,
        "hidden_act": write_activation(c.activation),
        "layer_norm_eps": c.norm_eps,
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.dropout,
        "qkv_bias": True,
    } | ({"id2label": names, "label2id": {name: int(i) for i, name in names.items()}} if names else {})


def entries(c: VitConfig) -> list[Entry]:
    """Returns the entries of all tensors that `transformers` saves for such a model."""
    if c.classes:
        return readable(c)
    return [_renamed(entry, entry.theirs.removeprefix("vit.")) for entry in readable(c)]


def _renamed(entry: Entry, name: str) -> Entry:
    return Entry(**{**entry.__dict__, "theirs": name})


def readable(c: VitConfig) -> list[Entry]:
    """Returns the entries of all tensors to look for in a folder with this config."""
    m, h, n, d = c.model_dim, c.hidden_dim, c.heads, c.head_dim
    at, pixels = "vit.encoder.layer.{layer}", c.patch**2 * c.channels
    patch, ours = "vit.embeddings.patch_embeddings.projection", "encoder.dense"

    def dense(theirs: str, to: str, shape: tuple[int, ...], inputs: int = 1) -> list[Entry]:
        return [
            matrix(f"{at}.{theirs}.weight", (f"{ours}.{to}", shape), inputs=inputs, layers=c.layers),
            vector(f"{at}.{theirs}.bias", (f"{ours}.{to}_bias", shape[inputs:]), layers=c.layers),
        ]

    mapped = [
        vector("vit.embeddings.cls_token", ("class_token", (m,)), file=(1, 1, m)),
        matrix("vit.embeddings.position_embeddings", ("position_table", (c.places, m)), transposed=False, file=(1, c.places, m)),
        matrix(
            f"{patch}.weight",
            ("patches", (pixels, m)),
            transposed=False,
            file=(m, c.channels, c.patch, c.patch),
            order=(2, 3, 1, 0),
        ),
        vector(f"{patch}.bias", ("patch_bias", (m,))),
        *_norm(f"{at}.layernorm_before", f"{ours}.attention_norm", m, c.layers),
        *dense("attention.attention.query", "attention.q", (m, n, d)),
        *dense("attention.attention.key", "attention.k", (m, n, d)),
        *dense("attention.attention.value", "attention.v", (m, n, d)),
        *dense("attention.output.dense", "attention.o", (n, d, m), inputs=2),
        *_norm(f"{at}.layernorm_after", f"{ours}.ffn_norm", m, c.layers),
        *dense("intermediate.dense", "ffn.wi", (m, h)),
        *dense("output.dense", "ffn.wo", (h, m)),
        *_norm("vit.layernorm", "final_norm", m),
    ]
    outputs = [("classifier", "weight", "bias", c.classes)] if c.classes else []
    outputs += [("vit.pooler.dense", "pooler", "pooler_bias", m)] if c.pooler else []
    for theirs, weight, bias, size in outputs:
        mapped.append(matrix(f"{theirs}.weight", (f"head.{weight}", (m, size))))
        mapped.append(vector(f"{theirs}.bias", (f"head.{bias}", (size,))))
    return mapped


def _norm(theirs: str, ours: str, size: int, layers: int = 0) -> list[Entry]:
    names = {"weight": "scale", "bias": "bias"}
    return [vector(f"{theirs}.{t}", (f"{ours}.{o}", (size,)), layers=layers) for t, o in names.items()]


def untied(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that change where a copy differs: there is none."""
    del theirs
    return {}


def copies(c: VitConfig) -> dict[str, str]:
    """Returns the tensors that a file may hold besides `readable`, and those that they repeat: none."""
    del c
    return {}


def canonical(c: VitConfig, theirs: str) -> str | None:
    """Returns the name of a file's tensor in `readable`."""
    del c
    for new, old in _NEW.items():
        theirs = re.sub(new, old, theirs)
    return theirs if theirs.startswith(("vit.", "classifier.")) else f"vit.{theirs}"


def is_head_tensor(theirs: str) -> bool:
    """Returns whether a tensor belongs to a head, which may be missing, or be another model's."""
    return theirs.startswith(_HEADS)
