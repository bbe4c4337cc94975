"""Wav2Vec2 and Wav2Vec2-Conformer in Hugging Face's files. No JAX.

A folder without outputs, and one of pre-training, whose quantizer is not ours, is a tower, without an objective. A Conformer's
folder has a convolution of positions that its model never uses (`pos_conv_embed`): it is not read, and not written.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from models.conformer.config import (
    WAVE,
    BatchNorm,
    ConformerConfig,
    ConformerLayer,
    ConvolutionalPositions,
    Ctc,
    TransformerLayer,
    Waveform,
)
from models.interchange import (
    Entry,
    InterchangeError,
    completed,
    convolution,
    demand,
    dense,
    kept_apart,
    matrix,
    model_type,
    norm,
    only,
    setting,
    vector,
)

_STACKS = {"wav2vec2": "Wav2Vec2", "wav2vec2-conformer": "Wav2Vec2Conformer"}
MODEL_TYPES = tuple(_STACKS)
_ARCHITECTURES = {kind: tuple(f"{name}{use}" for use in ("ForCTC", "Model", "ForPreTraining")) for kind, name in _STACKS.items()}
_HEADS = ("lm_head.", "quantizer.", "project_q.", "project_hid.")
# Their names of kinds of positions; the first model has a convolution, and no setting.
_POSITIONS = {"relative": "relative", "rotary": "rotary_input", None: "none"}


def read_config(theirs: Mapping[str, Any]) -> ConformerConfig:
    """Returns the configuration of the model that a config.json describes.

    Raises:
      InterchangeError: a setting is missing, or our model does not support it.
    """
    kind = model_type(theirs, _ARCHITECTURES)
    architecture = (setting(theirs, "architectures", list, None) or _ARCHITECTURES[kind])[0]
    writes, width = architecture.endswith("ForCTC"), setting(theirs, "hidden_size", int, 768)
    theirs = completed(theirs, {"hidden_act": "gelu"})
    only(
        theirs,
        feat_extract_activation=("gelu",),
        layer_norm_eps=(1e-5,),
        add_adapter=(False,),
        adapter_attn_dim=(),
        conv_kernel=([size for size, _ in WAVE],),
        conv_stride=([stride for _, stride in WAVE],),
        hidden_act=("gelu",) if kind == "wav2vec2" else ("swish", "silu"),
    )
    if writes:
        only(theirs, pad_token_id=(0,))  # CTC's blank, which is 0 here
    channels = setting(theirs, "conv_dim", list, [512] * len(WAVE))
    if len(channels) != len(WAVE) or len(set(channels)) > 1 or type(channels[0]) is not int:
        raise InterchangeError(f"config.json: conv_dim={channels}: only {len(WAVE)} equal numbers"[:200])
    return ConformerConfig(
        layers=setting(theirs, "num_hidden_layers", int, 12),
        model_dim=width,
        hidden_dim=setting(theirs, "intermediate_size", int, 3072),
        heads=setting(theirs, "num_attention_heads", int, 12),
        dropout=setting(theirs, "hidden_dropout", float, 0.1),
        front=Waveform(
            channels=channels[0],
            norm=_one_of(theirs, "feat_extract_norm", {"group": "group", "layer": "layer"}, "group"),
            bias=setting(theirs, "conv_bias", bool, False),
        ),
        objective=Ctc(vocab=_outputs(theirs, kind)) if writes else None,
        **(_transformer(theirs) if kind == "wav2vec2" else _conformer(theirs)),
    )


def _outputs(theirs: Mapping[str, Any], kind: str) -> int:
    """Returns the number of CTC's outputs: `transformers` takes 32 where a Wav2Vec2's is absent, and none where it is null."""
    return 32 if "vocab_size" not in theirs and kind == "wav2vec2" else setting(theirs, "vocab_size", int)


def _one_of(theirs: Mapping[str, Any], key: str, known: Mapping[Any, Any], default: Any) -> Any:
    only(theirs, **{key: tuple(name for name in known if name is not None)})
    return known[theirs.get(key, default)] if theirs.get(key, default) in known else known[default]


def _transformer(theirs: Mapping[str, Any]) -> dict[str, Any]:
    before = setting(theirs, "do_stable_layer_norm", bool, False)
    return dict(
        layer=TransformerLayer(order="pre" if before else "post"),
        final_norm=before,
        positions=ConvolutionalPositions(
            taps=setting(theirs, "num_conv_pos_embeddings", int, 128),
            groups=setting(theirs, "num_conv_pos_embedding_groups", int, 16),
        ),
    )


def _conformer(theirs: Mapping[str, Any]) -> dict[str, Any]:
    only(theirs, rotary_embedding_base=(10_000,))
    layer = ConformerLayer(
        norm=BatchNorm(),
        kernel=setting(theirs, "conv_depthwise_kernel_size", int, 31),
        positions=_one_of(theirs, "position_embeddings_type", _POSITIONS, "relative"),
    )
    return dict(final_norm=True, layer=layer)


def reading(c: ConformerConfig, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of data that a preprocessor_config.json sets: none, but that it may ask for nothing else.

    Raises:
      InterchangeError: its waveforms are not of 16 kHz, mean 0 and variance 1.
    """
    del c
    only(
        theirs,
        feature_extractor_type=("Wav2Vec2FeatureExtractor",),
        feature_size=(1,),
        sampling_rate=(16_000,),
        do_normalize=(True,),
    )
    return {}


def write_config(c: ConformerConfig) -> dict[str, Any]:
    """Returns the config.json of a model.

    Raises:
      InterchangeError: `transformers` has no class for the model; the message names the fields that differ.
    """
    layer, front = c.layer, c.front
    kind = "wav2vec2-conformer" if isinstance(layer, ConformerLayer) else "wav2vec2"
    demand(
        c,
        _STACKS[kind],
        norm_eps=1e-5,
        objective=Ctc(vocab=c.vocab) if c.vocab else None,
        final_norm=layer != TransformerLayer(order="post"),
    )
    if not isinstance(front, Waveform):
        raise InterchangeError(f"no {_STACKS[kind]} of Hugging Face is like this model: front={front} (it has a Waveform)")
    if isinstance(layer, ConformerLayer):
        known = {ours: theirs for theirs, ours in _POSITIONS.items()}
        demand(c, _STACKS[kind], positions=None)
        norm = layer.norm if isinstance(layer.norm, BatchNorm) else BatchNorm()
        demand(layer, _STACKS[kind], norm=norm, bias=False, positions=layer.positions if layer.positions in known else "relative")
        stack = {
            "position_embeddings_type": known[layer.positions],
            "conv_depthwise_kernel_size": layer.kernel,
            "hidden_act": "swish",
            "num_conv_pos_embedding_groups": math.gcd(16, c.model_dim),  # of the convolution that is made and never used
            "rotary_embedding_base": 10_000,
        }
    else:
        positions = c.positions or ConvolutionalPositions()
        demand(c, _STACKS[kind], positions=positions)
        stack = {
            "do_stable_layer_norm": layer.order == "pre",
            "num_conv_pos_embeddings": positions.taps,
            "num_conv_pos_embedding_groups": positions.groups,
            "hidden_act": "gelu",
        }
    rates = ("hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")
    return {
        "architectures": [_ARCHITECTURES[kind][not c.vocab]],
        "model_type": kind,
        "num_hidden_layers": c.layers,
        "hidden_size": c.model_dim,
        "intermediate_size": c.hidden_dim,
        "num_attention_heads": c.heads,
        "layer_norm_eps": c.norm_eps,
        "feat_extract_norm": front.norm,
        "feat_extract_activation": "gelu",
        "conv_bias": front.bias,
        "conv_dim": [front.channels] * len(WAVE),
        "conv_kernel": [size for size, _ in WAVE],
        "conv_stride": [stride for _, stride in WAVE],
        # What hides positions in their training has a vector of its own, which is not here.
        "mask_time_prob": 0.0,
        "mask_feature_prob": 0.0,
        "layerdrop": 0.0,
        "vocab_size": c.vocab or 32,
        "pad_token_id": 0,
        **stack,
        **dict.fromkeys(rates, c.dropout),
    }


def entries(c: ConformerConfig) -> list[Entry]:
    """Returns the entries of all tensors that we write for such a model."""
    if c.vocab:
        return readable(c)
    prefix = _prefix(c)
    return [Entry(**{**entry.__dict__, "theirs": entry.theirs.removeprefix(prefix)}) for entry in readable(c)]


def _prefix(c: ConformerConfig) -> str:
    return "wav2vec2_conformer." if isinstance(c.layer, ConformerLayer) else "wav2vec2."


def readable(c: ConformerConfig) -> list[Entry]:
    """Returns the entries of all tensors to look for in a folder with this config."""
    assert isinstance(c.front, Waveform)
    m, n, at, mapped = c.model_dim, c.front.channels, _prefix(c), []
    for i, (size, _) in enumerate(WAVE):
        layer, inputs = f"{at}feature_extractor.conv_layers.{i}", n if i else 1
        biases = f"front.bias{i}" if c.front.bias else ""
        mapped += convolution(f"{layer}.conv", f"front.filter{i}", (size, inputs, n), bias=biases)
        if c.front.norm == "layer" or i == 0:
            mapped += norm(f"{layer}.layer_norm", f"front.norm{i}", n)
    mapped += norm(f"{at}feature_projection.layer_norm", "front.norm", n)
    mapped += dense(f"{at}feature_projection.projection", "front.weight", (n, m), bias="front.bias")
    stack = f"{at}encoder."
    if isinstance(c.layer, ConformerLayer):
        mapped += _conformer_layers(c, c.layer, stack)
    else:
        mapped += _transformer_layers(c, c.positions or ConvolutionalPositions(), stack)
    mapped += norm(f"{stack}layer_norm", "final_norm" if c.final_norm else "first_norm", m)
    return mapped + (dense("lm_head", "head.weight", (m, c.vocab), bias="head.bias") if c.vocab else [])


def _attention(c: ConformerConfig, at: str, names: tuple[str, str, str, str]) -> list[Entry]:
    """Returns the entries of the four projections, by their names of them."""
    m, n, d = c.model_dim, c.heads, c.head_dim
    *into, out = (f"{at}.{name}" for name in names)
    mapped = dense(out, "encoder.attention.o", (n, d, m), inputs=2, layers=c.layers)
    for theirs, ours in zip(into, "qkv", strict=True):
        mapped += dense(theirs, f"encoder.attention.{ours}", (m, n, d), layers=c.layers)
    return mapped


def _transformer_layers(c: ConformerConfig, positions: ConvolutionalPositions, at: str) -> list[Entry]:
    m, h, taps, layer = c.model_dim, c.hidden_dim, positions.taps, f"{at}layers.{{layer}}"
    places: dict[str, Any] = dict(layers=c.layers)
    of_taps = f"{at}pos_conv_embed.conv.parametrizations.weight.original"
    shape = (taps, m // positions.groups, m)
    return [
        matrix(f"{of_taps}1", ("places.filter", shape), inputs=2, transposed=False, file=shape[::-1], order=(2, 1, 0)),
        vector(f"{of_taps}0", ("places.lengths", (taps,)), file=(1, 1, taps)),
        vector(f"{at}pos_conv_embed.conv.bias", ("places.bias", (m,))),
        *norm(f"{layer}.layer_norm", "encoder.attention_norm", m, **places),
        *_attention(c, f"{layer}.attention", ("q_proj", "k_proj", "v_proj", "out_proj")),
        *norm(f"{layer}.final_layer_norm", "encoder.ffn_norm", m, **places),
        *dense(f"{layer}.feed_forward.intermediate_dense", "encoder.ffn.wi", (m, h), **places),
        *dense(f"{layer}.feed_forward.output_dense", "encoder.ffn.wo", (h, m), **places),
    ]


def _conformer_layers(c: ConformerConfig, settings: ConformerLayer, at: str) -> list[Entry]:
    m, h, layer = c.model_dim, c.hidden_dim, f"{at}layers.{{layer}}"
    places: dict[str, Any] = dict(layers=c.layers)
    mapped = [
        *norm(f"{layer}.self_attn_layer_norm", "encoder.attention_norm", m, **places),
        *_attention(c, f"{layer}.self_attn", ("linear_q", "linear_k", "linear_v", "linear_out")),
        *norm(f"{layer}.final_layer_norm", "encoder.norm", m, **places),
    ]
    for i in (1, 2):
        mapped += norm(f"{layer}.ffn{i}_layer_norm", f"encoder.ffn{i}_norm", m, **places)
        mapped += dense(f"{layer}.ffn{i}.intermediate_dense", f"encoder.ffn{i}.wi", (m, h), **places)
        mapped += dense(f"{layer}.ffn{i}.output_dense", f"encoder.ffn{i}.wo", (h, m), **places)
    if settings.positions == "relative":
        shape = (c.heads, c.head_dim)
        mapped += dense(f"{layer}.self_attn.linear_pos", "encoder.attention.distances", (m, *shape), bias="", **places)
        for theirs, ours in (("u", "u"), ("v", "v_distance")):
            name, to = f"{layer}.self_attn.pos_bias_{theirs}", f"encoder.attention.{ours}"
            mapped.append(vector(name, (to, shape), file=shape, **places))
    at, ours = f"{layer}.conv_module", "encoder.conv"
    both = ((f"{ours}.value", (m, m)), (f"{ours}.gate", (m, m)))  # the first half is the value, the second its gate
    statistics = (("weight", "scale"), ("bias", "bias"), ("running_mean", "mean"), ("running_var", "variance"))
    return [
        *mapped,
        *norm(f"{at}.layer_norm", "encoder.conv_norm", m, **places),
        matrix(f"{at}.pointwise_conv1.weight", *both, file=(2 * m, m, 1), **places),
        matrix(f"{at}.pointwise_conv2.weight", (f"{ours}.out", (m, m)), file=(m, m, 1), **places),
        matrix(f"{at}.depthwise_conv.weight", (f"{ours}.filter", (settings.kernel, m)), file=(m, 1, settings.kernel), **places),
        *(vector(f"{at}.batch_norm.{t}", (f"{ours}.inner_norm.{o}", (m,)), **places) for t, o in statistics),
    ]


def canonical(c: ConformerConfig, theirs: str) -> str | None:
    """Returns the name of a file's tensor in `readable`; None for one that the model does not use."""
    unused = "pos_conv_embed" if isinstance(c.layer, ConformerLayer) else "masked_spec_embed"
    if unused in theirs or theirs.endswith(("num_batches_tracked", "masked_spec_embed", "embed_positions.inv_freq")):
        return None
    for old, new in (("weight_g", "parametrizations.weight.original0"), ("weight_v", "parametrizations.weight.original1")):
        theirs = re.sub(rf"pos_conv_embed\.conv\.{old}$", f"pos_conv_embed.conv.{new}", theirs)
    return theirs if theirs.startswith((_prefix(c), *_HEADS)) else f"{_prefix(c)}{theirs}"


def copies(c: ConformerConfig) -> dict[str, str]:
    """Returns the tensors that a file may hold besides `readable`, and those that they repeat: none."""
    del c
    return {}


def is_head_tensor(theirs: str) -> bool:
    """Returns whether a tensor belongs to a head, which may be missing, or be another model's."""
    return theirs.startswith(_HEADS)


untied = kept_apart
