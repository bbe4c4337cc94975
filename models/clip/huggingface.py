"""CLIP and SigLIP in Hugging Face's files. No JAX.

The image tower is written and read as a ViT's parts, under their names of them; SigLIP 2 of fixed resolution is a SigLIP.
"""

from typing import Any

from models.clip.config import ClipConfig, EndPooling, FilledPooling, SigmoidLoss, SoftmaxLoss, TextTower
from models.errors import shortened
from models.interchange import Entry, Interchange, InterchangeError
from models.interchange.layers import Names, attention_names, layers
from models.interchange.rows import Activation, ModelType, Row, Setting, allowed, constant, head_count
from models.interchange.settings import MULTI_HEAD, Fields, Settings, setting, value_at
from models.interchange.tensors import dense, fused, norm, table, vector
from models.parts.attention.config import LearnedPatches
from models.vit.config import MapPooling, TokenPooling, VitConfig
from models.vit.huggingface import patch_entries
from models.vit.huggingface.settings import size_rows

_LAYER: Names = {
    "layer_norm1": "attention_norm",
    **attention_names("self_attn", ("q_proj", "k_proj", "v_proj", "out_proj")),
    "layer_norm2": "ffn_norm",
    "mlp.fc1": "ffn.wi",
    "mlp.fc2": "ffn.wo",
}
_FIELDS: Fields = MULTI_HEAD | {"norm.order": "pre", "norm.layer_scale": 0.0}


def _tower(width: int, hidden: int, heads: int, activation: str, eps: float) -> tuple[Row, ...]:
    """Returns the rows that both towers have, with their defaults."""
    return (
        Setting("hidden_size", "model_dim", int, width),
        Setting("intermediate_size", "feed_forward.hidden_dim", int, hidden),
        Setting("num_hidden_layers", "layers", int, 12),
        head_count("num_attention_heads", "hidden_size", heads, width),
        Setting("hidden_act", "feed_forward.activation", Activation, activation),
        Setting("layer_norm_eps", "norm.eps", float, eps),
        Setting("attention_dropout", "dropout", float, 0.0),
    )


def _vision(name: str, pooling: TokenPooling | MapPooling, patch: int, activation: str, eps: float, *more: Row) -> ModelType:
    token = isinstance(pooling, TokenPooling)
    return ModelType(
        config=VitConfig,
        name=f"{name}'s image tower",
        null_is_default=True,
        fields=_FIELDS
        | {
            "positions": LearnedPatches(),
            "pooling": pooling,
            "head.classes": 0,
            "head.pooler": False,
            "moe": None,
            "patches.bias": not token,
            "patches.norm": token,
        },
        rows=(
            constant("model_type", f"{name.lower()}_vision_model"),
            *_tower(768, 3072, 12, activation, eps),
            *size_rows(patch),
            *more,
        ),
    )


def _text(name: str, fields: Fields, sizes: tuple[Row, ...], vocab: int, positions: int, *more: Row) -> ModelType:
    return ModelType(
        config=TextTower,
        name=f"{name}'s text tower",
        null_is_default=True,
        fields=_FIELDS | {"positions.first": 0} | fields,
        initial={"pooling": FilledPooling()},
        rows=(
            constant("model_type", f"{name.lower()}_text_model"),
            Setting("vocab_size", "vocab", int, vocab),
            *sizes,
            Setting("max_position_embeddings", "positions.rows", int, positions),
            *more,
        ),
    )


_CLIP_VISION = _vision("CLIP", TokenPooling(), 32, "quick_gelu", 1e-5)
_SIGLIP_VISION = _vision("SigLIP", MapPooling(), 16, "gelu_pytorch_tanh", 1e-6, allowed("vision_use_head", True))
_OLD_END = 2  # stands in old folders for the highest token of a text


def _read_end(theirs: Settings) -> Fields:
    vocab, end = setting(theirs, "vocab_size", int, 49_408), setting(theirs, "eos_token_id", int, 49_407)
    return {"pooling": EndPooling(end_id=vocab - 1 if end == _OLD_END else end)}


def _write_end(c: TextTower) -> dict[str, Any]:
    if (end := value_at(c, "pooling.end_id")) == _OLD_END:
        raise InterchangeError(f"no CLIP of Hugging Face ends its texts with token {end}: text.pooling.end_id; nearest is 3")
    return {"eos_token_id": end}


_CLIP_TEXT = _text(
    "CLIP",
    {"causal": True, "pooling.class": lambda c: "EndPooling"},
    _tower(512, 2048, 8, "quick_gelu", 1e-5),
    49_408,
    77,
    Row(_read_end, _write_end),
)
_SIGLIP_TEXT = _text(
    "SigLIP",
    {"causal": False, "pooling.class": lambda c: "FilledPooling"},
    _tower(768, 3072, 12, "gelu_pytorch_tanh", 1e-6),
    32_000,
    64,
    Setting("pad_token_id", "pooling.pad_id", int, 1),
)


def _side(tower: ModelType, field: str, key: str) -> Row:
    """Returns the row of a tower, whose settings old folders of CLIP have in `{key}_dict` too, which then holds."""

    def read(theirs: Settings) -> Fields:
        given = setting(theirs, f"{key}_dict", dict, None)
        return {field: tower.read(setting(theirs, key, dict, {}) if given is None else given)}

    return Row(read, lambda c: {key: tower.write(getattr(c, field))})


def _read_width(theirs: Settings) -> Fields:
    """Reads the width of SigLIP's vectors, that of its image tower, to which the text's head maps."""
    sides = [setting(theirs, f"{side}_config", dict, {}) for side in ("vision", "text")]
    width, text = (setting(side, "hidden_size", int, 768) for side in sides)
    if (size := setting(sides[1], "projection_size", int, text)) != width:
        raise InterchangeError(f"config.json: text_config.projection_size={size}: only vision_config.hidden_size={width}")
    return {"dim": width}


_CLIP = ModelType(
    config=ClipConfig,
    name="CLIP",
    architectures=("CLIPModel",),
    null_is_default=True,
    fields={"projections": "both", "loss.class": lambda c: "SoftmaxLoss"},
    initial={"loss": SoftmaxLoss()},
    rows=(
        _side(_CLIP_TEXT, "text", "text_config"),
        _side(_CLIP_VISION, "vision", "vision_config"),
        Setting("projection_dim", "dim", int, 512),
        constant("logit_scale_init_value", 2.6592),
    ),
)
_SIGLIP = ModelType(
    config=ClipConfig,
    name="SigLIP",
    architectures=("SiglipModel",),
    null_is_default=True,
    fields={"projections": "text", "loss.class": lambda c: "SigmoidLoss"},
    initial={"loss": SigmoidLoss()},
    rows=(_side(_SIGLIP_TEXT, "text", "text_config"), _side(_SIGLIP_VISION, "vision", "vision_config"), Row(_read_width)),
)


class _HuggingFace(Interchange[ClipConfig]):
    def model_type_of(self, c: ClipConfig) -> str:
        return "siglip" if isinstance(c.text.pooling, FilledPooling) else "clip"

    def write_config(self, c: ClipConfig) -> dict[str, Any]:
        settings = super().write_config(c)
        if self.model_type_of(c) == "siglip":
            settings["text_config"]["projection_size"] = c.dim
        return settings

    def entries(self, c: ClipConfig) -> list[Entry]:
        text, vision = c.text.model_dim, c.vision.pooled_dim
        mapped = [*_vision_entries(c.vision), *_text_entries(c.text)]
        if self.model_type_of(c) == "siglip":
            mapped += dense("text_model.head", "text_projection", (text, c.dim), bias="text_bias")
            return [*mapped, *(vector(name, (name, ()), file=(1,)) for name in ("logit_scale", "logit_bias"))]
        mapped += dense("visual_projection", "vision_projection", (vision, c.dim), bias="")
        mapped += dense("text_projection", "text_projection", (text, c.dim), bias="")
        return [*mapped, vector("logit_scale", ("logit_scale", ()), file=())]

    def untied(self, theirs: Settings) -> dict[str, Any]:
        """Returns no settings: there is no copy."""
        return {}

    def data_fields(self, c: ClipConfig, preprocessor: Settings) -> dict[str, Any]:
        """Raises InterchangeError: pictures with texts are read with other means than CLIP's, and not by cubes."""
        kind = shortened(repr(preprocessor.get("image_processor_type", preprocessor.get("feature_extractor_type"))))
        raise InterchangeError(
            f"image_processor_type={kind}: pictures with texts are not read so here; nearest is to start from it"
        )

    def canonical_name(self, c: ClipConfig, theirs: str) -> str | None:
        return None if theirs.endswith(".position_ids") else theirs


def _vision_entries(c: VitConfig) -> list[Entry]:
    m, ours, at = c.model_dim, "vision_tower.", "vision_model"
    mapped = [
        *patch_entries(c, f"{at}.embeddings.patch_embedding", ours),
        table(f"{at}.embeddings.position_embedding.weight", f"{ours}position_table", (c.places, m)),
        *layers(c, f"{ours}encoder.dense", f"{at}.encoder.layers.{{layer}}.", _LAYER, layers=c.layers),
        *norm(f"{at}.post_layernorm", f"{ours}final_norm", m),
    ]
    if c.tokens:
        mapped.append(vector(f"{at}.embeddings.class_embedding", (f"{ours}class_token", (m,))))
        return [*mapped, *norm(f"{at}.pre_layrnorm", f"{ours}embedding_norm", m)]
    heads, hidden, head = (m, c.attention.heads, c.attention.head_dim), c.feed_forward.hidden_dim, f"{ours}head."
    parts = [(f"{head}attention.{part}", heads) for part in "qkv"]
    return [
        *mapped,
        vector(f"{at}.head.probe", (f"{head}probe", (m,)), file=(1, 1, m)),
        *fused(f"{at}.head.attention", *parts, names=("in_proj_weight", "in_proj_bias")),
        *dense(f"{at}.head.attention.out_proj", f"{head}attention.o", (*heads[1:], m), inputs=2),
        *norm(f"{at}.head.layernorm", f"{head}norm", m),
        *dense(f"{at}.head.mlp.fc1", f"{head}ffn.wi", (m, hidden)),
        *dense(f"{at}.head.mlp.fc2", f"{head}ffn.wo", (hidden, m)),
    ]


def _text_entries(c: TextTower) -> list[Entry]:
    m, ours, at = c.model_dim, "text_tower.", "text_model"
    return [
        table(f"{at}.embeddings.token_embedding.weight", f"{ours}embedding.table", (c.vocab, m)),
        table(f"{at}.embeddings.position_embedding.weight", f"{ours}positions", (c.positions.rows, m)),
        *layers(c, f"{ours}encoder", f"{at}.encoder.layers.{{layer}}.", _LAYER, layers=c.layers),
        *norm(f"{at}.final_layer_norm", f"{ours}final_norm", m),
    ]


INTERCHANGE = _HuggingFace({"clip": _CLIP, "siglip": _SIGLIP})
