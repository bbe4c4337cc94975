"""Settings of ViT, DeiT, DINOv2 and BEiT. No JAX."""

from typing import Any

from models.interchange import InterchangeError
from models.interchange.rows import Activation, ModelType, Row, Setting, allowed, also, choice, constant, fixed, head_count
from models.interchange.settings import (
    MULTI_HEAD,
    Fields,
    Settings,
    architecture_of,
    label_names,
    read_labels,
    setting,
    value_at,
    without,
)
from models.parts.attention.config import LearnedPatches, RelativePatches
from models.vit.config import DistilledPooling, NormedMeanPooling, TokenAndMeanPooling, TokenPooling, VitConfig

TEACHER = "DeiTForImageClassificationWithTeacher"


def size_rows(patch: int = 16) -> tuple[Row, ...]:
    """Returns the rows of a picture's and a patch's size, with the default of the latter."""

    def read(theirs: Settings) -> Fields:
        size = theirs.get("image_size")
        pair = size if isinstance(size, list) and len(size) == 2 else [setting(theirs, "image_size", int, 224)] * 2
        side = setting(theirs, "patch_size", int, patch)
        cut = side > 0 and any(type(pixels) is int and pixels % side for pixels in pair)
        return {"patches.height": pair[0], "patches.width": pair[1], "patches.cut": cut}

    def write(c: VitConfig) -> dict[str, Any]:
        height, width, _ = c.picture
        return {"image_size": height if height == width else [height, width]}

    return (
        Row(read, write),
        Setting("num_channels", "patches.channels", int, 3),
        Setting("patch_size", "patches.size", int, patch),
    )


_QKV = choice("qkv_bias", "attention.biases", {True: "qkvo", False: "o"}, True)


def _rows(*, hidden: Row, patch: int, eps: float, outputs: Row) -> tuple[Row, ...]:
    return (
        *size_rows(patch),
        Setting("hidden_size", "model_dim", int, 768),
        Setting("num_hidden_layers", "layers", int, 12),
        head_count("num_attention_heads", "hidden_size", 12, 768),
        hidden,
        Setting("layer_norm_eps", "norm.eps", float, eps),
        Setting("hidden_dropout_prob", "dropout", float, 0.0),
        also("attention_probs_dropout_prob", "dropout"),
        _QKV,
        allowed("problem_type", "single_label_classification"),
        outputs,
    )


_HIDDEN = Setting("intermediate_size", "feed_forward.hidden_dim", int, 3072)
_ACTIVATION = Setting("hidden_act", "feed_forward.activation", Activation, "gelu")
_COMMON: Fields = without(MULTI_HEAD, "attention.biases") | {
    "norm.order": "pre",
    "positions": LearnedPatches(),
    "moe": None,
    "patches.bias": True,
    "patches.norm": False,
}
_FIELDS: Fields = _COMMON | {"norm.layer_scale": 0.0}

# --- ViT and DeiT ---

_VITS = ("ViTForImageClassification", "ViTModel")
_DEITS = ("DeiTForImageClassification", TEACHER, "DeiTModel")


def _outputs(architectures: tuple[str, ...]) -> Row:
    """Returns the row of what is computed of the last layer's vectors, by the names of classes, a bare model's last."""
    bare = architectures[-1]

    def read(theirs: Settings) -> Fields:
        name = architecture_of(theirs, architectures)
        width = setting(theirs, "hidden_size", int, 768)
        if setting(theirs, "pooler_output_size", int, width) != width:
            raise InterchangeError(f"config.json: pooler_output_size={theirs['pooler_output_size']}: only hidden_size={width}")
        fields: Fields = {"head.classes": 0 if name == bare else read_labels(theirs), "head.pooler": name == bare}
        return fields | ({"pooling": DistilledPooling(head=name == TEACHER)} if bare == "DeiTModel" else {})

    def write(c: VitConfig) -> dict[str, Any]:
        taught = bool(value_at(c, "pooling.head"))
        return {"architectures": [architectures[taught] if c.head.classes else bare]} | label_names(c.head.classes)

    return Row(read, write)


def _vit(name: str, architectures: tuple[str, ...], pooling: type) -> ModelType:
    of_pooling: Fields = {"pooling": TokenPooling()}
    if pooling is DistilledPooling:  # whose field a row reads
        of_pooling = {"pooling.class": lambda c: pooling.__name__}
    return ModelType(
        config=VitConfig,
        name=name,
        architectures=architectures,
        null_is_default=True,
        fields=_FIELDS | of_pooling | {"head.pooler": lambda c: not c.head.classes},
        initial={"pooling": pooling()},
        rows=(
            *_rows(hidden=_HIDDEN, patch=16, eps=1e-12, outputs=_outputs(architectures)),
            _ACTIVATION,
            allowed("pooler_act", "tanh"),
        ),
    )


# --- DINOv2 ---

_DINOS = ("Dinov2ForImageClassification", "Dinov2Model")
_MOST = 64  # times its width that a layer may be wide


def _hidden_of(width: int, times: int, gated: bool) -> int:
    """Returns the hidden size, of which a gated layer has two thirds, up to a multiple of 8."""
    return (int(width * times * 2 / 3) + 7) // 8 * 8 if gated else width * times


def _read_hidden(theirs: Settings) -> Fields:
    gated = setting(theirs, "use_swiglu_ffn", bool, False)
    width, times = setting(theirs, "hidden_size", int, 768), setting(theirs, "mlp_ratio", int, 4)
    activation = "silu" if gated else _ACTIVATION.read(theirs)["feed_forward.activation"]
    hidden = _hidden_of(width, times, gated)
    return {"feed_forward.gated": gated, "feed_forward.hidden_dim": hidden, "feed_forward.activation": activation}


def _write_hidden(c: VitConfig) -> dict[str, Any]:
    dense = c.feed_forward
    sizes = {_hidden_of(c.model_dim, times, dense.gated): times for times in range(_MOST, 0, -1)}
    if (times := sizes.get(dense.hidden_dim)) is None:
        best = min(sizes, key=lambda size: abs(size - dense.hidden_dim))
        raise InterchangeError(f"no DINOv2 of Hugging Face has feed_forward.hidden_dim={dense.hidden_dim}; nearest is {best}")
    if dense.gated and dense.activation != "silu":
        raise InterchangeError(f"no DINOv2 of Hugging Face has a gated layer of {dense.activation!r}; nearest is 'silu'")
    activation = {} if dense.gated else _ACTIVATION.write(c)
    return {"mlp_ratio": times, "use_swiglu_ffn": dense.gated} | activation


def _read_outputs(theirs: Settings) -> Fields:
    if architecture_of(theirs, _DINOS) == _DINOS[1]:
        return {"head.classes": 0, "pooling": TokenPooling()}
    return {"head.classes": read_labels(theirs), "pooling": TokenAndMeanPooling()}


_DINOV2 = ModelType(
    config=VitConfig,
    name="DINOv2",
    architectures=_DINOS,
    null_is_default=True,
    fields=without(_COMMON, "feed_forward.gated")
    | {"pooling": lambda c: TokenAndMeanPooling() if c.head.classes else TokenPooling(), "head.pooler": False},
    rows=(
        *_rows(
            hidden=Row(_read_hidden, _write_hidden),
            patch=14,
            eps=1e-6,
            outputs=Row(_read_outputs, lambda c: {"architectures": [_DINOS[not c.head.classes]]} | label_names(c.head.classes)),
        ),
        Setting("layerscale_value", "norm.layer_scale", float, 1.0),
        constant("use_mask_token", False),  # of pre-training alone
    ),
)

# --- BEiT ---

_BEITS = ("BeitForImageClassification", "BeitModel")


def _read_beit(theirs: Settings) -> Fields:
    if not setting(theirs, "use_relative_position_bias", bool, False):
        raise InterchangeError("config.json: use_relative_position_bias is false: only true, with a table for each layer")
    pixels, side = setting(theirs, "image_size", int, 224), setting(theirs, "patch_size", int, 16)
    rows = pixels // max(side, 1)
    bare = architecture_of(theirs, _BEITS) == _BEITS[1]
    return {"positions": RelativePatches(rows=rows, columns=rows), "head.classes": 0 if bare else read_labels(theirs)}


_BEIT = ModelType(
    config=VitConfig,
    name="BEiT",
    architectures=_BEITS,
    null_is_default=True,
    fields=without(_COMMON, "positions")
    | {
        "attention.biases": "qvo",
        "positions.class": lambda c: "RelativePatches",
        "patches.width": lambda c: c.patches.height,
        "pooling": NormedMeanPooling(),
        "head.pooler": False,
    },
    rows=(
        *(row for row in _rows(hidden=_HIDDEN, patch=16, eps=1e-12, outputs=Row(_read_beit)) if row is not _QKV),
        _ACTIVATION,
        Setting("layer_scale_init_value", "norm.layer_scale", float, 0.1),
        constant("use_relative_position_bias", True),
        fixed("use_mean_pooling", True),
        allowed("use_shared_relative_position_bias", False),
        allowed("use_absolute_position_embeddings", False),
        Row(write=lambda c: {"architectures": [_BEITS[not c.head.classes]]} | label_names(c.head.classes)),
    ),
)

MODEL_TYPES = {
    "vit": _vit("ViT", _VITS, TokenPooling),
    "deit": _vit("DeiT", _DEITS, DistilledPooling),
    "dinov2": _DINOV2,
    "beit": _BEIT,
}
