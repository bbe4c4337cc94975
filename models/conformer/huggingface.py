"""Wav2Vec2 and Wav2Vec2-Conformer in Hugging Face's files. No JAX.

A folder without outputs, and one of pre-training, whose quantizer is not ours, is a tower, without an objective. A Conformer's
folder has a convolution of positions that its model never uses (`pos_conv_embed`): it is not read, and not written.
"""

import math
import re
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
from models.interchange import Entry, Interchange, InterchangeError
from models.interchange.layers import attention_names, layers
from models.interchange.rows import ModelType, Row, Setting, allowed, also, choice, constant, fixed
from models.interchange.settings import Fields, Settings, architecture_of, completed, only, setting
from models.interchange.tensors import convolution, dense, matrix, norm, vector, without_prefix

_HEADS = ("lm_head.", "quantizer.", "project_q.", "project_hid.")


def _architectures(name: str) -> tuple[str, ...]:
    return tuple(f"{name}{use}" for use in ("ForCTC", "Model", "ForPreTraining"))


def _read_channels(theirs: Settings) -> Fields:
    channels = setting(theirs, "conv_dim", list, [512] * len(WAVE))
    if len(channels) != len(WAVE) or len(set(channels)) > 1 or type(channels[0]) is not int:
        raise InterchangeError(f"config.json: conv_dim={channels}: only {len(WAVE)} equal numbers"[:200])
    return {"front.channels": channels[0]}


def _outputs(name: str, absent: int | None) -> Row:
    """Returns the row of CTC's outputs, whose number is `absent` where there is no key, but not where it is null."""
    architectures = _architectures(name)

    def read(theirs: Settings) -> Fields:
        if not architecture_of(theirs, architectures).endswith("ForCTC"):
            return {"objective": None}
        only(theirs, pad_token_id=(0,))  # CTC's blank, which is 0 here
        default = absent if absent and "vocab_size" not in theirs else None
        return {"objective": Ctc, "objective.vocab": default or setting(theirs, "vocab_size", int)}

    def write(c: ConformerConfig) -> dict[str, Any]:
        return {"architectures": [architectures[not c.vocab]], "vocab_size": c.vocab or 32, "pad_token_id": 0}

    return Row(read, write)


def _activation(*names: str) -> Row:
    """Returns the row of the activation, which has one of these names; absent it is "gelu", whatever the names."""
    return Row(
        lambda theirs: only(completed(theirs, {"hidden_act": "gelu"}), hidden_act=names) or {}, lambda c: {"hidden_act": names[0]}
    )


def _model_type(name: str, initial: Fields, fields: Fields, *stack: Row, outputs: int | None = None) -> ModelType:
    rates = ("attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")
    return ModelType(
        config=ConformerConfig,
        name=name,
        architectures=_architectures(name),
        null_is_default=True,
        fields={
            "front.stride": lambda c: Waveform.stride,
            "norm_eps": 1e-5,
            "objective": lambda c: Ctc(vocab=c.vocab) if c.vocab else None,
            **fields,
        },
        initial={"front": Waveform, **initial},
        rows=(
            Setting("num_hidden_layers", "layers", int, 12),
            Setting("hidden_size", "model_dim", int, 768),
            Setting("intermediate_size", "hidden_dim", int, 3072),
            Setting("num_attention_heads", "heads", int, 12),
            fixed("layer_norm_eps", 1e-5),
            choice("feat_extract_norm", "front.norm", {"group": "group", "layer": "layer"}, "group"),
            fixed("feat_extract_activation", "gelu"),
            Setting("conv_bias", "front.bias", bool, False),
            Row(_read_channels, lambda c: {"conv_dim": [c.front.channels] * len(WAVE)}),
            fixed("conv_kernel", [size for size, _ in WAVE]),
            fixed("conv_stride", [stride for _, stride in WAVE]),
            allowed("add_adapter", False),
            allowed("adapter_attn_dim"),
            # What hides positions in their training has a vector of its own, which is not here.
            *(constant(key, 0.0) for key in ("mask_time_prob", "mask_feature_prob", "layerdrop")),
            _outputs(name, outputs),
            *stack,
            Setting("hidden_dropout", "dropout", float, 0.1),
            *(also(key, "dropout") for key in rates),
        ),
    )


def _read_block(theirs: Settings) -> Fields:
    before = setting(theirs, "do_stable_layer_norm", bool, False)
    return {"layer.order": "pre" if before else "post", "final_norm": before}


def _batch_norm(c: ConformerConfig) -> BatchNorm:
    """Returns a batch norm, with the configuration's own share of running statistics where it has one."""
    norm = c.layer.norm if isinstance(c.layer, ConformerLayer) else None
    return norm if isinstance(norm, BatchNorm) else BatchNorm()


_POSITIONS = {"relative": "relative", "rotary": "rotary_input", None: "none"}
_WAV2VEC2 = _model_type(
    "Wav2Vec2",
    {"layer": TransformerLayer, "positions": ConvolutionalPositions},
    {"final_norm": lambda c: c.layer.order == "pre"},
    Row(_read_block, lambda c: {"do_stable_layer_norm": c.layer.order == "pre"}),
    Setting("num_conv_pos_embeddings", "positions.taps", int, 128),
    Setting("num_conv_pos_embedding_groups", "positions.groups", int, 16),
    _activation("gelu"),
    outputs=32,
)
_WAV2VEC2_CONFORMER = _model_type(
    "Wav2Vec2Conformer",
    {"layer": ConformerLayer, "layer.norm": BatchNorm()},
    {"layer.norm": _batch_norm, "layer.bias": False, "positions": None, "final_norm": True},
    choice("position_embeddings_type", "layer.positions", _POSITIONS, "relative"),
    Setting("conv_depthwise_kernel_size", "layer.kernel", int, 31),
    _activation("swish", "silu"),
    # Of the convolution that is made and never used.
    Row(write=lambda c: {"num_conv_pos_embedding_groups": math.gcd(16, c.model_dim)}),
    fixed("rotary_embedding_base", 10_000),
)


def _prefix(c: ConformerConfig) -> str:
    return "wav2vec2_conformer." if isinstance(c.layer, ConformerLayer) else "wav2vec2."


class _HuggingFace(Interchange[ConformerConfig]):
    def model_type_of(self, c: ConformerConfig) -> str:
        return "wav2vec2-conformer" if isinstance(c.layer, ConformerLayer) else "wav2vec2"

    def data_fields(self, c: ConformerConfig, preprocessor: Settings) -> dict[str, Any]:
        """Returns no fields: a preprocessor_config.json may ask for nothing but waveforms of 16 kHz, mean 0 and variance 1."""
        only(
            preprocessor,
            feature_extractor_type=("Wav2Vec2FeatureExtractor",),
            feature_size=(1,),
            sampling_rate=(16_000,),
            do_normalize=(True,),
        )
        return {}

    def entries(self, c: ConformerConfig) -> list[Entry]:
        return self.readable_entries(c) if c.vocab else without_prefix(self.readable_entries(c), _prefix(c))

    def readable_entries(self, c: ConformerConfig) -> list[Entry]:
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

    def canonical_name(self, c: ConformerConfig, theirs: str) -> str | None:
        unused = "pos_conv_embed" if isinstance(c.layer, ConformerLayer) else "masked_spec_embed"
        if unused in theirs or theirs.endswith(("num_batches_tracked", "masked_spec_embed", "embed_positions.inv_freq")):
            return None
        for old, new in (("weight_g", "parametrizations.weight.original0"), ("weight_v", "parametrizations.weight.original1")):
            theirs = re.sub(rf"pos_conv_embed\.conv\.{old}$", f"pos_conv_embed.conv.{new}", theirs)
        return theirs if theirs.startswith((_prefix(c), *_HEADS)) else f"{_prefix(c)}{theirs}"

    def is_head_tensor(self, theirs: str) -> bool:
        return theirs.startswith(_HEADS)


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


def _transformer_layers(c: ConformerConfig, positions: ConvolutionalPositions, at: str) -> list[Entry]:
    m, taps = c.model_dim, positions.taps
    of_taps = f"{at}pos_conv_embed.conv.parametrizations.weight.original"
    shape = (taps, m // positions.groups, m)
    return [
        matrix(f"{of_taps}1", ("places.filter", shape), inputs=2, transposed=False, file=shape[::-1], order=(2, 1, 0)),
        vector(f"{of_taps}0", ("places.lengths", (taps,)), file=(1, 1, taps)),
        vector(f"{at}pos_conv_embed.conv.bias", ("places.bias", (m,))),
        *layers(c.transformer, "encoder", f"{at}layers.{{layer}}.", _TRANSFORMER, layers=c.layers),
    ]


def _conformer_layers(c: ConformerConfig, settings: ConformerLayer, at: str) -> list[Entry]:
    m, layer = c.model_dim, f"{at}layers.{{layer}}"
    places: dict[str, Any] = dict(layers=c.layers)
    mapped = layers(c.transformer, "encoder", f"{layer}.", _CONFORMER, **places)
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
        matrix(f"{at}.pointwise_conv1.weight", *both, file=(2 * m, m, 1), **places),
        matrix(f"{at}.pointwise_conv2.weight", (f"{ours}.out", (m, m)), file=(m, m, 1), **places),
        matrix(f"{at}.depthwise_conv.weight", (f"{ours}.filter", (settings.kernel, m)), file=(m, 1, settings.kernel), **places),
        *(vector(f"{at}.batch_norm.{t}", (f"{ours}.inner_norm.{o}", (m,)), **places) for t, o in statistics),
    ]


INTERCHANGE = _HuggingFace({"wav2vec2": _WAV2VEC2, "wav2vec2-conformer": _WAV2VEC2_CONFORMER})
