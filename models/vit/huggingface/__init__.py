"""ViT, DeiT, DINOv2 and BEiT in Hugging Face's files: their tensors. No JAX.

Names are those of released files; version 5 of `transformers` has others in memory, and we read both. A folder of `ViTModel` has
no classes: its outputs here are the last layer's vectors, or with a pooler those of the class token, pooled. settings.py has the
settings of each kind, preprocessor.py those of pictures.
"""

import re
from typing import Any

from models.interchange import Entry, Interchange
from models.interchange.layers import Names, attention_names, layers
from models.interchange.settings import Settings
from models.interchange.tensors import dense, matrix, norm, vector, without_prefix
from models.parts.attention.config import RelativePatches
from models.vit.config import DistilledPooling, VitConfig
from models.vit.huggingface import preprocessor as pictures
from models.vit.huggingface.settings import MODEL_TYPES

_HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.")
_LONG = {"q": "query", "k": "key", "v": "value"}
# What version 5 calls the parts of a layer, and what released files do.
_NEW = {
    r"^layers\.": "encoder.layer.",
    r"\.attention\.([qkv])_proj\.": lambda m: f".attention.attention.{_LONG[m[1]]}.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"(\d)\.relative_position_bias\.": r"\1.attention.attention.relative_position_bias.",
}
_NEW_OF_VIT = {r"\.mlp\.fc1\.": ".intermediate.dense.", r"\.mlp\.fc2\.": ".output.dense."}
_ATTENTION = attention_names("attention", ("attention.query", "attention.key", "attention.value", "output.dense"))
_VIT: Names = {
    "layernorm_before": "attention_norm",
    **_ATTENTION,
    "layernorm_after": "ffn_norm",
    "intermediate.dense": "ffn.wi",
    "output.dense": "ffn.wo",
}
_DINOV2: Names = {"norm1": "attention_norm", **_ATTENTION, "norm2": "ffn_norm"}
_BIASES = "attention.attention.relative_position_bias.relative_position_bias_table"  # of BEiT
_PLAIN: Names = {"mlp.fc1": "ffn.wi", "mlp.fc2": "ffn.wo"}
_GATED: Names = {"mlp.weights_in": ("ffn.wg", "ffn.wi"), "mlp.weights_out": "ffn.wo"}


class _HuggingFace(Interchange[VitConfig]):
    def model_type_of(self, c: VitConfig) -> str:
        if isinstance(c.pooling, DistilledPooling):
            return "deit"
        if isinstance(c.positions, RelativePatches):
            return "beit"
        return "dinov2" if c.norm.layer_scale else "vit"

    def data_fields(self, c: VitConfig, preprocessor: Settings) -> dict[str, Any]:
        return pictures.data_fields(c, preprocessor)

    def entries(self, c: VitConfig) -> list[Entry]:
        kind = self.model_type_of(c)
        return self.readable_entries(c) if c.head.classes else without_prefix(self.readable_entries(c), f"{kind}.")

    def readable_entries(self, c: VitConfig) -> list[Entry]:
        m, kind = c.model_dim, self.model_type_of(c)
        at = f"{kind}.embeddings"
        places: dict[str, Any] = dict(file=(1, c.places, m), transposed=False)
        mapped = [
            vector(f"{at}.cls_token", ("class_token", (m,)), file=(1, 1, m)),
            *patch_entries(c, f"{at}.patch_embeddings.projection"),
            *self._layers(c, kind),
        ]
        if kind == "beit":
            mapped += norm("beit.pooler.layernorm", "head.pooled_norm", m)
        else:
            mapped.append(matrix(f"{at}.position_embeddings", ("position_table", (c.places, m)), **places))
            mapped += norm(f"{kind}.layernorm", "final_norm", m)
        if c.tokens > 1:
            mapped.append(vector(f"{at}.distillation_token", ("teacher_token", (m,)), file=(1, 1, m)))
        if c.head.pooler:
            mapped += dense(f"{kind}.pooler.dense", "head.pooler", (m, m))
        if not c.head.classes:
            return mapped
        shape, taught = (c.pooled_dim, c.head.classes), isinstance(c.pooling, DistilledPooling) and c.pooling.head
        heads = {"cls_classifier": "", "distillation_classifier": "teacher_"} if taught else {"classifier": ""}
        for theirs, ours in heads.items():
            mapped += dense(theirs, f"head.{ours}weight", shape, bias=f"head.{ours}bias")
        return mapped

    def _layers(self, c: VitConfig, kind: str) -> list[Entry]:
        at, ours = f"{kind}.encoder.layer.{{layer}}.", "encoder.dense"
        names = {**_DINOV2, **(_GATED if c.feed_forward.gated else _PLAIN)} if kind == "dinov2" else _VIT
        mapped = layers(c, ours, at, names, layers=c.layers)
        if isinstance(c.positions, RelativePatches):
            biases = c.attention.heads, c.positions.buckets
            mapped.append(matrix(f"{at}{_BIASES}", (f"{ours}.attention.relative_bias", biases), layers=c.layers))
        scales = ("lambda_1", "lambda_2") if kind == "beit" else ("layer_scale1.lambda1", "layer_scale2.lambda1")
        for theirs, name in zip(scales if c.norm.layer_scale else (), ("attention_scale", "ffn_scale"), strict=False):
            mapped.append(vector(f"{at}{theirs}", (f"{ours}.{name}", (c.model_dim,)), layers=c.layers))
        return mapped

    def untied(self, theirs: Settings) -> dict[str, Any]:
        """Returns no settings: there is no copy."""
        return {}

    def canonical_name(self, c: VitConfig, theirs: str) -> str | None:
        kind = self.model_type_of(c)
        if theirs.startswith(_HEADS):
            return theirs
        theirs = theirs.removeprefix(f"{kind}.")
        for new, old in (_NEW if kind == "dinov2" else _NEW | _NEW_OF_VIT).items():
            theirs = re.sub(new, old, theirs)
        computed = theirs.endswith("relative_position_index")
        return None if computed or theirs == "embeddings.mask_token" else f"{kind}.{theirs}"

    def is_head_tensor(self, theirs: str) -> bool:
        return theirs.startswith(_HEADS) or ".pooler.dense." in theirs


def patch_entries(c: VitConfig, theirs: str, ours: str = "") -> list[Entry]:
    """Returns the entries of the projection of patches, a convolution of theirs, and of its biases where it has any.

    Args:
      ours: our name of the model, up to its parts.
    """
    m, size, channels = c.model_dim, c.patches.size, c.patches.channels
    pixels: dict[str, Any] = dict(file=(m, channels, size, size), order=(2, 3, 1, 0), transposed=False)
    weight = matrix(f"{theirs}.weight", (f"{ours}patches", (size**2 * channels, m)), **pixels)
    return [weight, *([vector(f"{theirs}.bias", (f"{ours}patch_bias", (m,)))] if c.patches.bias else [])]


INTERCHANGE = _HuggingFace(MODEL_TYPES)
