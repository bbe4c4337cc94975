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
    GroupNorm,
    HubertWaveform,
    NearKeys,
    StackedMel,
    TransformerLayer,
    Waveform,
)
from models.interchange import InterchangeError
from models.interchange.rows import ModelType, Row, Setting, allowed, also, choice, constant, fixed
from models.interchange.settings import Fields, Settings, architecture_of, completed, only, setting
from models.parts.attention.config import GatedBuckets


def _architectures(name: str) -> tuple[str, ...]:
    uses = ("ForCTC", "Model", "ForPreTraining") if name in ("Wav2Vec2", "Wav2Vec2Conformer") else ("ForCTC", "Model")
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


_WAVE_ROWS = (
    choice("feat_extract_norm", "front.norm", {"group": "group", "layer": "layer"}, "group"),
    fixed("feat_extract_activation", "gelu"),
    Setting("conv_bias", "front.bias", bool, False),
    Row(_read_channels, lambda c: {"conv_dim": [c.front.channels] * len(WAVE)}),
    fixed("conv_kernel", [size for size, _ in WAVE]),
    fixed("conv_stride", [stride for _, stride in WAVE]),
    allowed("adapter_attn_dim"),
)


def _model_type(
    name: str,
    initial: Fields,
    fields: Fields,
    *stack: Row,
    outputs: int | None = None,
    sizes: tuple[int, int, int, int] = (12, 768, 3072, 12),
    front: tuple[Row, ...] = _WAVE_ROWS,
    dropout: float = 0.1,
) -> ModelType:
    """Returns a kind of model.

    Args:
      stack: the settings of its layers.
      outputs: the number of CTC's outputs where no key says it.
      sizes: the default depth, width, hidden size and heads.
      front: the settings of what makes positions of sound.
      dropout: the default rate.
    """
    rates = ("attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")
    keys = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
    paths, hears = ("layers", "model_dim", "hidden_dim", "heads"), initial.get("front", Waveform)
    return ModelType(
        config=ConformerConfig,
        name=name,
        architectures=_architectures(name),
        null_is_default=True,
        fields={
            "front.stride": lambda c: hears.stride,
            "norm_eps": 1e-5,
            "objective": lambda c: Ctc(vocab=c.vocab) if c.vocab else None,
            **fields,
        },
        initial={"front": hears, **initial},
        rows=(
            *(Setting(key, path, int, size) for key, path, size in zip(keys, paths, sizes, strict=True)),
            fixed("layer_norm_eps", 1e-5),
            *front,
            allowed("add_adapter", False),
            # What hides positions in their training has a vector of its own, which is not here.
            *(constant(key, 0.0) for key in ("mask_time_prob", "mask_feature_prob", "layerdrop")),
            _outputs(name, outputs),
            *stack,
            Setting("hidden_dropout", "dropout", float, dropout),
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
        {"final_norm": lambda c: c.layer.order == "pre", "layer.positions": None, **fields},
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
_WAVLM = _transformer(
    "WavLM",
    {"layer.positions": GatedBuckets},
    {"layer.positions": lambda c: c.layer.positions, "layer.positions.shared": True},
    Setting("num_buckets", "layer.positions.buckets", int, 320),
    Setting("max_bucket_distance", "layer.positions.max_distance", int, 800),
)
_WAV2VEC2_CONFORMER = _model_type(
    "Wav2Vec2Conformer",
    {"layer": ConformerLayer, "layer.norm": BatchNorm()},
    {
        "front.norms_projection": lambda c: True,
        "layer.norm": _batch_norm,
        "layer.bias": False,
        "layer.causal": False,
        "layer.near": None,
        "positions": None,
        "final_norm": True,
    },
    choice("position_embeddings_type", "layer.positions", _POSITIONS, "relative"),
    Setting("conv_depthwise_kernel_size", "layer.kernel", int, 31),
    _activation("swish", "silu"),
    # Of the convolution that is made and never used.
    Row(write=lambda c: {"num_conv_pos_embedding_groups": math.gcd(16, c.model_dim)}),
    fixed("rotary_embedding_base", 10_000),
)


def _read_bands(theirs: Settings) -> Fields:
    width, stride = setting(theirs, "feature_projection_input_dim", int, 160), StackedMel.stride
    if width % stride:
        raise InterchangeError(f"config.json: feature_projection_input_dim={width}: only a multiple of {stride} frames")
    return {"front.bands": width // stride}


def _read_distances(theirs: Settings) -> Fields:
    kind = theirs.get("position_embeddings_type", "relative_key")
    if kind != "relative_key":
        return choice("position_embeddings_type", "layer.positions", _POSITIONS, "relative").read(theirs)
    left, right = (setting(theirs, f"{side}_max_position_embeddings", int, n) for side, n in (("left", 64), ("right", 8)))
    return {"layer.near": NearKeys, "layer.near.left": left, "layer.near.right": right}


def _write_distances(c: ConformerConfig) -> dict[str, Any]:
    assert isinstance(c.layer, ConformerLayer)
    if (near := c.layer.near) is None:
        return choice("position_embeddings_type", "layer.positions", _POSITIONS, "relative").write(c)
    reach = {"left_max_position_embeddings": near.left, "right_max_position_embeddings": near.right}
    return {"position_embeddings_type": "relative_key"} | reach


_WAV2VEC2_BERT = _model_type(
    "Wav2Vec2Bert",
    {"front": StackedMel, "layer": ConformerLayer, "layer.norm": GroupNorm(), "layer.causal": True},
    {"layer.norm": GroupNorm(), "layer.bias": False, "layer.causal": True, "positions": None, "final_norm": False},
    Row(_read_distances, _write_distances),
    Setting("conv_depthwise_kernel_size", "layer.kernel", int, 31),
    Row(lambda theirs: only(theirs, hidden_act=("swish", "silu")) or {}, lambda c: {"hidden_act": "swish"}),
    fixed("rotary_embedding_base", 10_000),
    also("conformer_conv_dropout", "dropout"),
    allowed("use_intermediate_ffn_before_adapter", False),
    sizes=(24, 1024, 4096, 16),
    front=(Row(_read_bands, lambda c: {"feature_projection_input_dim": c.front.stride * c.front.bands}),),
    dropout=0.0,
)

MODEL_TYPES = {
    "wav2vec2": _WAV2VEC2,
    "hubert": _HUBERT,
    "wavlm": _WAVLM,
    "wav2vec2-conformer": _WAV2VEC2_CONFORMER,
    "wav2vec2-bert": _WAV2VEC2_BERT,
}
