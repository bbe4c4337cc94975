"""ViT in the .npz files of AugReg (How to train your ViT?, arXiv 2106.10270), as google-research/vision_transformer reads them.
No JAX.

A file has no configuration: sizes are those of its arrays, and what no array shows is what all of these models have.
"""

import math
from collections.abc import Mapping

from models.interchange import ArrayFiles, Entry, InterchangeError, Shape
from models.interchange.settings import Settings
from models.interchange.tensors import matrix, norm, vector
from models.parts.attention.config import GroupedQuery
from models.parts.transformer_config import Dense
from models.vit.config import Classifier, Patches, VitConfig

_AT = "Transformer/encoderblock_{layer}"
_ATTENTION = "MultiHeadDotProductAttention_1"
_PATCHES, _PLACES = "embedding/kernel", "Transformer/posembed_input/pos_embedding"
_UP = "MlpBlock_3/Dense_0/kernel"


class _Npz(ArrayFiles[VitConfig]):
    def read_config(self, shapes: Mapping[str, Shape], settings: Settings) -> VitConfig:
        """Returns the configuration of the model whose arrays have these shapes. Raises InterchangeError where an array that
        tells a size is missing, or has other dimensions."""

        def sizes(name: str, dimensions: int) -> Shape:
            if len(shape := shapes.get(name, ())) != dimensions:
                raise InterchangeError(f"no ViT: {name} {'is missing' if name not in shapes else f'has shape {shape}'}")
            return shape

        first = _AT.format(layer=0)
        side, _, channels, width = sizes(_PATCHES, 4)
        _, heads, head_dim = sizes(f"{first}/{_ATTENTION}/query/kernel", 3)
        _, places, _ = sizes(_PLACES, 3)
        grid = math.isqrt(places - 1)
        if grid**2 != places - 1:
            raise InterchangeError(f"no ViT: {_PLACES} has {places} places, which are no square of patches and a class token")
        _, hidden = sizes(f"{first}/{_UP}", 2)
        prefix = _AT.partition("{")[0]
        return VitConfig(
            patches=Patches(height=grid * side, width=grid * side, channels=channels, size=side),
            head=Classifier(
                classes=sizes("head/kernel", 2)[1] if "head/kernel" in shapes else 0, pooler="pre_logits/kernel" in shapes
            ),
            layers=len({name.split("/")[1] for name in shapes if name.startswith(prefix)}),
            model_dim=width,
            attention=GroupedQuery(heads=heads, head_dim=head_dim, biases="qkvo"),
            feed_forward=Dense(hidden_dim=hidden, activation="gelu_tanh", bias=True),
        )

    def entries(self, c: VitConfig) -> list[Entry]:
        m, h, n, d, layers = c.model_dim, c.feed_forward.hidden_dim, c.attention.heads, c.attention.head_dim, c.layers
        ours, names = "encoder.dense", ("scale", "bias")

        def dense(theirs: str, to: str, shape: Shape, inputs: int = 1) -> list[Entry]:
            return [
                matrix(
                    f"{_AT}/{theirs}/kernel", (f"{ours}.{to}", shape), inputs=inputs, layers=layers, transposed=False, file=shape
                ),
                vector(f"{_AT}/{theirs}/bias", (f"{ours}.{to}_bias", shape[inputs:]), layers=layers, file=shape[inputs:]),
            ]

        mapped = [
            vector("cls", ("class_token", (m,)), file=(1, 1, m)),
            matrix(_PLACES, ("position_table", (c.places, m)), transposed=False, file=(1, c.places, m)),
            matrix(
                _PATCHES,
                ("patches", (c.patches.size**2 * c.patches.channels, m)),
                transposed=False,
                file=(c.patches.size, c.patches.size, c.patches.channels, m),
            ),
            vector("embedding/bias", ("patch_bias", (m,))),
            *norm(f"{_AT}/LayerNorm_0", f"{ours}.attention_norm", m, layers=layers, names=names),
            *dense(f"{_ATTENTION}/query", "attention.q", (m, n, d)),
            *dense(f"{_ATTENTION}/key", "attention.k", (m, n, d)),
            *dense(f"{_ATTENTION}/value", "attention.v", (m, n, d)),
            *dense(f"{_ATTENTION}/out", "attention.o", (n, d, m), inputs=2),
            *norm(f"{_AT}/LayerNorm_2", f"{ours}.ffn_norm", m, layers=layers, names=names),
            *dense("MlpBlock_3/Dense_0", "ffn.wi", (m, h)),
            *dense("MlpBlock_3/Dense_1", "ffn.wo", (h, m)),
            *norm("Transformer/encoder_norm", "final_norm", m, names=names),
        ]
        outputs = [("head", "weight", "bias", c.head.classes)] if c.head.classes else []
        outputs += [("pre_logits", "pooler", "pooler_bias", m)] if c.head.pooler else []
        for theirs, weight, bias, size in outputs:
            mapped.append(matrix(f"{theirs}/kernel", (f"head.{weight}", (m, size)), transposed=False))
            mapped.append(vector(f"{theirs}/bias", (f"head.{bias}", (size,))))
        return mapped


INTERCHANGE = _Npz()
