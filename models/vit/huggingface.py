"""ViT in Hugging Face's files. No JAX.

Names are those of released files; version 5 of `transformers` writes others, and reads both, as we do. A folder of `ViTModel` has
no classes: its outputs here are the last layer's vectors, or with a pooler those of the class token, pooled.
"""

import json
import re
from typing import Any

from models.interchange import Entry, Interchange, InterchangeError
from models.interchange.layers import attention_names, layers
from models.interchange.rows import Activation, ModelType, Row, Setting, allowed, also, choice, head_count
from models.interchange.settings import (
    MULTI_HEAD,
    Fields,
    Settings,
    architecture_of,
    label_names,
    only,
    read_labels,
    setting,
    without,
)
from models.interchange.tensors import dense, matrix, norm, vector, without_prefix
from models.parts.attention.config import LearnedPatches
from models.vit.config import TokenPooling, VitConfig

_ARCHITECTURES = ("ViTForImageClassification", "ViTModel")
_HEADS = ("vit.pooler.", "classifier.")
_LONG = {"q": "query", "k": "key", "v": "value"}
# What version 5 calls the parts of a layer, and what released files do.
_NEW = {
    r"^(vit\.)?layers\.": "vit.encoder.layer.",
    r"\.attention\.([qkv])_proj\.": lambda m: f".attention.attention.{_LONG[m[1]]}.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}
_LAYER = {
    "layernorm_before": "attention_norm",
    **attention_names("attention", ("attention.query", "attention.key", "attention.value", "output.dense")),
    "layernorm_after": "ffn_norm",
    "intermediate.dense": "ffn.wi",
    "output.dense": "ffn.wo",
}


def _read_size(theirs: Settings) -> Fields:
    size = theirs.get("image_size")
    pair = size if isinstance(size, list) and len(size) == 2 else [setting(theirs, "image_size", int, 224)] * 2
    return {"patches.height": pair[0], "patches.width": pair[1]}


def _read_outputs(theirs: Settings) -> Fields:
    bare = architecture_of(theirs, _ARCHITECTURES) == "ViTModel"
    width = setting(theirs, "hidden_size", int, 768)
    if setting(theirs, "pooler_output_size", int, width) != width:
        raise InterchangeError(f"config.json: pooler_output_size={theirs['pooler_output_size']}: only hidden_size={width}")
    return {"head.classes": 0 if bare else read_labels(theirs), "head.pooler": bare}


_VIT = ModelType(
    config=VitConfig,
    name="ViT",
    architectures=_ARCHITECTURES,
    null_is_default=True,
    fields=without(MULTI_HEAD, "attention.biases")
    | {
        "norm.order": "pre",
        "positions": LearnedPatches(),
        "pooling": TokenPooling(),
        "head.pooler": lambda c: not c.head.classes,
        "moe": None,
        "patches.bias": True,
    },
    rows=(
        Row(
            _read_size,
            lambda c: {
                "image_size": c.patches.height if c.patches.height == c.patches.width else [c.patches.height, c.patches.width]
            },
        ),
        Setting("num_channels", "patches.channels", int, 3),
        Setting("patch_size", "patches.size", int, 16),
        Setting("hidden_size", "model_dim", int, 768),
        Setting("num_hidden_layers", "layers", int, 12),
        head_count("num_attention_heads", "hidden_size", 12, 768),
        Setting("intermediate_size", "feed_forward.hidden_dim", int, 3072),
        Setting("hidden_act", "feed_forward.activation", Activation, "gelu"),
        Setting("layer_norm_eps", "norm.eps", float, 1e-12),
        Setting("hidden_dropout_prob", "dropout", float, 0.0),
        also("attention_probs_dropout_prob", "dropout"),
        choice("qkv_bias", "attention.biases", {True: "qkvo", False: "o"}, True),
        allowed("pooler_act", "tanh"),
        allowed("problem_type", "single_label_classification"),
        Row(_read_outputs, lambda c: {"architectures": [_ARCHITECTURES[not c.head.classes]]} | label_names(c.head.classes)),
    ),
)


class _HuggingFace(Interchange[VitConfig]):
    def data_fields(self, c: VitConfig, preprocessor: Settings) -> dict[str, Any]:
        """Returns `mean`, `std` and `eval_crop`. Raises InterchangeError where pictures are brought to size in a way, or to a
        size, that is not ours."""
        kinds = ("ViTImageProcessor", "ViTImageProcessorFast", "ViTFeatureExtractor")
        only(
            preprocessor,
            image_processor_type=kinds,
            feature_extractor_type=kinds,
            do_resize=(True,),
            resample=(2,),
            do_rescale=(True,),
            do_pad=(False,),
        )
        if abs(setting(preprocessor, "rescale_factor", float, 1 / 255) * 255 - 1) > 1e-4:
            raise InterchangeError(f"rescale_factor={preprocessor['rescale_factor']}: only 1/255")
        return {"eval_crop": _crop(c, preprocessor), **_normalization(c, preprocessor)}

    def entries(self, c: VitConfig) -> list[Entry]:
        return self.readable_entries(c) if c.head.classes else without_prefix(self.readable_entries(c), "vit.")

    def readable_entries(self, c: VitConfig) -> list[Entry]:
        m, patch = c.model_dim, "vit.embeddings.patch_embeddings.projection"
        pixels: dict[str, Any] = dict(
            file=(m, c.patches.channels, c.patches.size, c.patches.size), order=(2, 3, 1, 0), transposed=False
        )
        places: dict[str, Any] = dict(file=(1, c.places, m), transposed=False)
        return [
            vector("vit.embeddings.cls_token", ("class_token", (m,)), file=(1, 1, m)),
            matrix("vit.embeddings.position_embeddings", ("position_table", (c.places, m)), **places),
            matrix(f"{patch}.weight", ("patches", (c.patches.size**2 * c.patches.channels, m)), **pixels),
            vector(f"{patch}.bias", ("patch_bias", (m,))),
            *layers(c, "encoder.dense", "vit.encoder.layer.{layer}.", _LAYER, layers=c.layers),
            *norm("vit.layernorm", "final_norm", m),
            *(dense("classifier", "head.weight", (m, c.head.classes), bias="head.bias") if c.head.classes else []),
            *(dense("vit.pooler.dense", "head.pooler", (m, m)) if c.head.pooler else []),
        ]

    def untied(self, theirs: Settings) -> dict[str, Any]:
        """Returns no settings: there is no copy."""
        return {}

    def canonical_name(self, c: VitConfig, theirs: str) -> str | None:
        for new, old in _NEW.items():
            theirs = re.sub(new, old, theirs)
        return theirs if theirs.startswith(("vit.", "classifier.")) else f"vit.{theirs}"

    def is_head_tensor(self, theirs: str) -> bool:
        return theirs.startswith(_HEADS)


def _crop(c: VitConfig, theirs: Settings) -> float:
    """Returns the share of a picture's shortest edge that a square in its middle has; 0 takes all of it."""
    size, crop = _sides(theirs.get("size", 224)), 0.0
    if setting(theirs, "do_center_crop", bool, False):
        cut = _sides(theirs.get("crop_size", 224))
        if len(size) != 1 or len(set(cut)) != 1 or cut[0] > size[0]:
            raise InterchangeError(f"crop_size={cut} of size={size}: only a square of a picture's shortest edge")
        size, crop = cut, cut[0] / size[0]
    if size != [c.patches.height, c.patches.width]:
        raise InterchangeError(
            f"size={size}: only the model's, [{c.patches.height}, {c.patches.width}], to which pictures are squeezed"
        )
    return crop


def _normalization(c: VitConfig, theirs: Settings) -> dict[str, tuple[float, ...]]:
    """Returns the mean and the deviation by which colours are shifted and divided, one number where all are alike."""
    normal = setting(theirs, "do_normalize", bool, True)
    numbers = {}
    for name, plain in (("mean", 0.0), ("std", 1.0)):
        values = setting(theirs, f"image_{name}", list, [0.5]) if normal else [plain]
        least = 1e-6 if name == "std" else -1e6
        if len(values) not in (1, c.patches.channels) or not all(type(v) in (int, float) and least < v < 1e6 for v in values):
            raise InterchangeError(
                f"image_{name}={json.dumps(values)[:60]}: only {c.patches.channels} numbers, a deviation above 0"
            )
        numbers[name] = tuple(map(float, values if len(set(values)) > 1 else values[:1]))
    return numbers


def _sides(size: Any) -> list[int]:
    """Returns height and width, or the shortest edge alone, of a preprocessor's size."""
    if isinstance(size, int):
        return [size, size]
    for keys in (("height", "width"), ("shortest_edge",)):
        if isinstance(size, dict) and set(size) == set(keys):
            return [setting(size, key, int) for key in keys]
    raise InterchangeError(f"size={json.dumps(size)[:60]}: only a height and a width, or a shortest edge")


INTERCHANGE = _HuggingFace({"vit": _VIT})
