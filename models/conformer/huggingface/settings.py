"""Settings of wav2vec 2.0's kin in Hugging Face's files. No JAX."""

import math
from typing import Any

from models.conformer.config import (
    WAVE,
    BatchNorm,
    ConformerConfig,
    ConformerLayer,
    ConvolutionalPositions,
    Ctc,
    HubertWaveform,
    TransformerLayer,
    Waveform,
)
from models.interchange import InterchangeError
from models.interchange.rows import ModelType, Row, Setting, allowed, also, choice, constant, fixed
from models.interchange.settings import Fields, Settings, architecture_of, completed, only, setting


def _architectures(name: str) -> tuple[str, ...]:
    uses = ("ForCTC", "Model", "ForPreTraining") if name.startswith("Wav2Vec2") else ("ForCTC", "Model")
    return tuple(f"{name}{use}" for use in uses)


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


def _transformer(name: str, initial: Fields, fields: Fields, *more: Row) -> ModelType:
    """Returns the kind of a Transformer behind a convolution of positions."""
    return _model_type(
        name,
        {"layer": TransformerLayer, "positions": ConvolutionalPositions, **initial},
        {"final_norm": lambda c: c.layer.order == "pre", **fields},
        Row(_read_block, lambda c: {"do_stable_layer_norm": c.layer.order == "pre"}),
        Setting("num_conv_pos_embeddings", "positions.taps", int, 128),
        Setting("num_conv_pos_embedding_groups", "positions.groups", int, 16),
        _activation("gelu"),
        *more,
        outputs=32,
    )


_WAV2VEC2 = _transformer("Wav2Vec2", {}, {})
_HUBERT = _transformer(
    "Hubert",
    {"front": HubertWaveform},
    {},
    Setting("feat_proj_layer_norm", "front.projection_norm", bool, True),
    fixed("conv_pos_batch_norm", False),
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

MODEL_TYPES = {"wav2vec2": _WAV2VEC2, "hubert": _HUBERT, "wav2vec2-conformer": _WAV2VEC2_CONFORMER}
