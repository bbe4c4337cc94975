"""Tensors of the layers of wav2vec 2.0's Transformers and of Conformers in Hugging Face's files. No JAX."""

from typing import Any

from models.conformer.config import BatchNorm, ConformerConfig, ConformerLayer, ConvolutionalPositions
from models.interchange import Entry
from models.interchange.layers import attention_names, layers
from models.interchange.tensors import dense, matrix, vector
from models.parts.attention.config import GatedBuckets

_TRANSFORMER = {
    "layer_norm": "attention_norm",
    **attention_names("attention", ("q_proj", "k_proj", "v_proj", "out_proj")),
    "final_layer_norm": "ffn_norm",
    "feed_forward.intermediate_dense": "ffn.wi",
    "feed_forward.output_dense": "ffn.wo",
}
_CONFORMER = {
    "self_attn_layer_norm": "attention_norm",
    **attention_names("self_attn", ("linear_q", "linear_k", "linear_v", "linear_out")),
    "final_layer_norm": "norm",
    **{f"ffn{i}_layer_norm": f"ffn{i}_norm" for i in (1, 2)},
    **{f"ffn{i}.intermediate_dense": f"ffn{i}.wi" for i in (1, 2)},
    **{f"ffn{i}.output_dense": f"ffn{i}.wo" for i in (1, 2)},
    "conv_module.layer_norm": "conv_norm",
}


def transformer_layers(c: ConformerConfig, positions: ConvolutionalPositions, at: str) -> list[Entry]:
    m, taps = c.model_dim, positions.taps
    of_taps = f"{at}pos_conv_embed.conv.parametrizations.weight.original"
    shape = (taps, m // positions.groups, m)
    mapped = layers(c.transformer, "encoder", f"{at}layers.{{layer}}.", _TRANSFORMER, layers=c.layers)
    if c.buckets is not None:
        mapped += _gates(c, c.buckets, f"{at}layers.")
    return [
        matrix(f"{of_taps}1", ("places.filter", shape), inputs=2, transposed=False, file=shape[::-1], order=(2, 1, 0)),
        vector(f"{of_taps}0", ("places.lengths", (taps,)), file=(1, 1, taps)),
        vector(f"{at}pos_conv_embed.conv.bias", ("places.bias", (m,))),
        *mapped,
    ]


def _gates(c: ConformerConfig, buckets: GatedBuckets, at: str) -> list[Entry]:
    """Returns the entries of the biases of relative positions, which the first layer holds for all, and of each layer's gates."""
    gates, ours, n = f"{at}{{layer}}.attention.gru_rel_pos", "encoder.attention.gate", c.heads
    places: dict[str, Any] = dict(layers=c.layers)
    return [
        matrix(f"{at}0.attention.rel_attn_embed.weight", ("encoder_bias", (n, buckets.buckets))),
        vector(f"{gates}_const", (f"{ours}_scale", (n,)), file=(1, n, 1, 1), **places),
        *dense(f"{gates}_linear", ours, (c.head_dim, 8), **places),
    ]


def conformer_layers(c: ConformerConfig, settings: ConformerLayer, at: str) -> list[Entry]:
    m, layer = c.model_dim, f"{at}layers.{{layer}}"
    places: dict[str, Any] = dict(layers=c.layers)
    mapped = layers(c.transformer, "encoder", f"{layer}.", _CONFORMER, **places)
    if settings.positions == "relative":
        shape = (c.heads, c.head_dim)
        mapped += dense(f"{layer}.self_attn.linear_pos", "encoder.attention.distances", (m, *shape), bias="", **places)
        for theirs, ours in (("u", "u"), ("v", "v_distance")):
            name, to = f"{layer}.self_attn.pos_bias_{theirs}", f"encoder.attention.{ours}"
            mapped.append(vector(name, (to, shape), file=shape, **places))
    if near := settings.near:
        weight, rows = f"{layer}.self_attn.distance_embedding.weight", near.left + near.right + 1
        mapped.append(matrix(weight, ("encoder.attention.near_keys", (rows, c.head_dim)), transposed=False, **places))
    at, ours = f"{layer}.conv_module", "encoder.conv"
    both = ((f"{ours}.value", (m, m)), (f"{ours}.gate", (m, m)))  # the first half is the value, the second its gate
    batch = isinstance(settings.norm, BatchNorm)
    inner, statistics = "batch_norm" if batch else "depthwise_layer_norm", [("weight", "scale"), ("bias", "bias")]
    statistics += [("running_mean", "mean"), ("running_var", "variance")] if batch else []
    return [
        *mapped,
        matrix(f"{at}.pointwise_conv1.weight", *both, file=(2 * m, m, 1), **places),
        matrix(f"{at}.pointwise_conv2.weight", (f"{ours}.out", (m, m)), file=(m, m, 1), **places),
        matrix(f"{at}.depthwise_conv.weight", (f"{ours}.filter", (settings.kernel, m)), file=(m, 1, settings.kernel), **places),
        *(vector(f"{at}.{inner}.{t}", (f"{ours}.inner_norm.{o}", (m,)), **places) for t, o in statistics),
    ]
