"""Whisper in Hugging Face's files. No JAX."""

from collections.abc import Mapping
from typing import Any

from models.interchange import (
    Entry,
    InterchangeError,
    convolution,
    demand,
    dense,
    kept_apart,
    model_type,
    no_head,
    norm,
    only,
    read_activation,
    setting,
    table,
    write_activation,
)
from models.whisper.config import WhisperConfig
from models.whisper.tokens import BEFORE, END, LANGUAGE, LATEST_START, NO_TIMESTAMPS, START, TASKS, is_multilingual, no_speech

MODEL_TYPES = ("whisper",)
_ARCHITECTURES = {"whisper": ("WhisperForConditionalGeneration",)}
_POSITIONS = 50  # of the encoder in a second
_FRONT = {"sampling_rate": 16_000, "hop_length": 160, "n_fft": 400}  # data/speech/spectra.py
_TABLE, _OUTPUT = "model.decoder.embed_tokens.weight", "proj_out.weight"


def read_config(theirs: Mapping[str, Any]) -> WhisperConfig:
    """Returns the configuration of the model that a config.json describes.

    Raises:
      InterchangeError: a setting is missing, or our model does not support it.
    """
    model_type(theirs, _ARCHITECTURES)
    only(theirs, scale_embedding=(False,), tie_word_embeddings=(True,))
    width, heads = setting(theirs, "d_model", int), _same(theirs, "attention_heads")
    if width % heads:
        raise InterchangeError(f"config.json: d_model={width} is no multiple of encoder_attention_heads={heads}")
    encoder, decoder = (setting(theirs, f"{side}_layers", int) for side in ("encoder", "decoder"))
    return WhisperConfig(
        vocab=setting(theirs, "vocab_size", int),
        mels=setting(theirs, "num_mel_bins", int, 80),
        source_positions=setting(theirs, "max_source_positions", int, 1500),
        max_positions=setting(theirs, "max_target_positions", int, 448),
        layers=encoder + decoder,
        decoder_layers=0 if encoder == decoder else decoder,
        model_dim=width,
        hidden_dim=_same(theirs, "ffn_dim"),
        heads=heads,
        head_dim=width // heads,
        activation=read_activation(setting(theirs, "activation_function", str, "gelu")),
        dropout=setting(theirs, "dropout", float, 0.0),
        hidden_dropout=setting(theirs, "activation_dropout", float, 0.0),
        start_id=setting(theirs, "decoder_start_token_id", int, 50_257),
    )


def _same(theirs: Mapping[str, Any], name: str) -> int:
    """Returns a size that both stacks have."""
    sizes = [setting(theirs, f"{side}_{name}", int) for side in ("encoder", "decoder")]
    if sizes[0] != sizes[1]:
        raise InterchangeError(f"config.json: decoder_{name}={sizes[1]}: only as encoder_{name}={sizes[0]}")
    return sizes[0]


def write_config(c: WhisperConfig) -> dict[str, Any]:
    """Returns the config.json of a model.

    Raises:
      InterchangeError: `transformers` has no class for the model; the message names the fields that differ.
    """
    demand(
        c,
        "Whisper",
        order="pre",
        norm="layer",
        norm_bias=True,
        norm_eps=1e-5,
        positions="none",
        gated=False,
        moe=None,
        attention_scale=True,
        attention_bias=True,
        key_bias=False,
        output_bias="same",
        ffn_bias=True,
        per_dim_scale=False,
        qk_norm=False,
        logit_cap=0.0,
        groups=c.heads,
        head_dim=c.model_dim // c.heads,
    )
    config: dict[str, Any] = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "vocab_size": c.vocab,
        "num_mel_bins": c.mels,
        "d_model": c.model_dim,
        "max_source_positions": c.source_positions,
        "max_target_positions": c.max_positions,
        "activation_function": write_activation(c.activation),
        "dropout": c.dropout,
        "attention_dropout": c.dropout,
        "activation_dropout": c.hidden_dropout,
        "scale_embedding": False,
        "decoder_start_token_id": c.start_id,
        "bos_token_id": c.start_id - 1,
        "eos_token_id": c.start_id - 1,
        "pad_token_id": c.start_id - 1,
    }
    for side, units in (("encoder", c.encoder_groups), ("decoder", c.decoder_groups)):
        config |= {f"{side}_layers": units, f"{side}_ffn_dim": c.hidden_dim, f"{side}_attention_heads": c.heads}
    return config


def beside(c: WhisperConfig, tokenizer: Any) -> dict[str, dict[str, Any]]:
    """Returns the other files with which `transformers` transcribes, by name: how sound becomes frames, the class of the
    vocabulary, which tokens stand before a text and are never in it. It hears windows of whole seconds alone.

    Args:
      tokenizer: of the folder, with `special` ids by name and `encode`; None where there is none.
    """
    files: dict[str, dict[str, Any]] = {}
    if not c.source_positions % _POSITIONS:
        files["preprocessor_config.json"] = _FRONT | {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": c.mels,
            "chunk_length": c.source_positions // _POSITIONS,
            "padding_side": "right",
            "padding_value": 0.0,
            "processor_class": "WhisperProcessor",
            "return_attention_mask": False,
        }
    if tokenizer is None or START not in tokenizer.special:
        return files
    special, end = tokenizer.special, tokenizer.special[END]
    files["tokenizer_config.json"] = {
        "tokenizer_class": "WhisperTokenizer",
        "processor_class": "WhisperProcessor",
    } | dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), END)
    no_text = set(tokenizer.special_ids) - {end, special[NO_TIMESTAMPS]}
    files["generation_config.json"] = {
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end),
        "begin_suppress_tokens": [*tokenizer.encode(" "), end],
        "decoder_start_token_id": c.start_id,
        "is_multilingual": is_multilingual(end),
        "max_initial_timestamp_index": LATEST_START,
        "max_length": c.max_positions,
        "no_timestamps_token_id": special[NO_TIMESTAMPS],
        "prev_sot_token_id": special.get(BEFORE),
        "return_timestamps": False,
        "suppress_tokens": sorted(no_text | set(no_speech(tokenizer.encode))),
    }
    if is_multilingual(end):
        files["generation_config.json"] |= {
            "lang_to_id": {name: id_ for name, id_ in special.items() if LANGUAGE.fullmatch(name)},
            "task_to_id": {name: special[f"<|{name}|>"] for name in TASKS},
        }
    return files


def reading(c: WhisperConfig, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of data that a preprocessor_config.json sets: none, but that it may ask for nothing else.

    Raises:
      InterchangeError: its frames are not ours.
    """
    only(
        theirs,
        feature_extractor_type=("WhisperFeatureExtractor",),
        feature_size=(c.mels,),
        do_normalize=(False,),
        dither=(0, 0.0),
        chunk_length=(c.source_positions / _POSITIONS,),
        **{key: (value,) for key, value in _FRONT.items()},
    )
    return {}


def entries(c: WhisperConfig) -> list[Entry]:
    """Returns the entries of all tensors that `transformers` saves for such a model."""
    m = c.model_dim
    mapped = [
        table(_TABLE, "embedding.table", (c.vocab, m)),
        table("model.decoder.embed_positions.weight", "positions", (c.max_positions, m)),
        table("model.encoder.embed_positions.weight", "front.positions", (c.source_positions, m)),
        *convolution("model.encoder.conv1", "front.conv1.filter", (3, c.mels, m), bias="front.conv1.bias"),
        *convolution("model.encoder.conv2", "front.conv2.filter", (3, m, m), bias="front.conv2.bias"),
    ]
    for side in ("encoder", "decoder"):
        mapped += _layer(c, side)
        mapped += norm(f"model.{side}.layer_norm", f"{side}_norm", m)
    return mapped


def _layer(c: WhisperConfig, side: str) -> list[Entry]:
    """Returns the entries of a stack's layers."""
    names = {
        "attention": ("self_attn", "self_attn_layer_norm"),
        "cross": ("encoder_attn", "encoder_attn_layer_norm"),
        "ffn": ("fc1", "fc2", "final_layer_norm"),
        "projections": ("q_proj", "k_proj", "v_proj", "out_proj"),
    }
    return layer(c, side, f"model.{side}.layers.{{layer}}", names)


def layer(c: WhisperConfig, side: str, at: str, names: Mapping[str, tuple[str, ...]]) -> list[Entry]:
    """Returns the entries of a stack's layers, with their names of its parts."""
    m, h, n, d = c.model_dim, c.hidden_dim, c.heads, c.head_dim
    ours = f"{side}.dense"
    places: dict[str, Any] = dict(layers=c.encoder_groups if side == "encoder" else c.decoder_groups)

    def attention(theirs: str, to: str) -> list[Entry]:
        *into, out = names["projections"]
        mapped = [
            entry
            for projection, name in zip("qkv", into, strict=True)
            for entry in dense(
                f"{at}.{theirs}.{name}", f"{ours}.{to}.{projection}", (m, n, d), bias="" if projection == "k" else None, **places
            )
        ]
        return [*mapped, *dense(f"{at}.{theirs}.{out}", f"{ours}.{to}.o", (n, d, m), inputs=2, **places)]

    mapped = [
        *norm(f"{at}.{names['attention'][1]}", f"{ours}.attention_norm", m, **places),
        *attention(names["attention"][0], "attention"),
    ]
    if side == "decoder":
        mapped += norm(f"{at}.{names['cross'][1]}", f"{ours}.cross_norm", m, **places)
        mapped += attention(names["cross"][0], "cross_attention")
    up, down, before = names["ffn"]
    return [
        *mapped,
        *norm(f"{at}.{before}", f"{ours}.ffn_norm", m, **places),
        *dense(f"{at}.{up}", f"{ours}.ffn.wi", (m, h), **places),
        *dense(f"{at}.{down}", f"{ours}.ffn.wo", (h, m), **places),
    ]


def copies(c: WhisperConfig) -> dict[str, str]:
    """Returns the tensors that a file may hold besides `readable`, and those that they repeat, by canonical name."""
    del c
    return {_OUTPUT: _TABLE}


def canonical(c: WhisperConfig, theirs: str) -> str | None:
    """Returns the name of a file's tensor in `readable` or `copies`; None for a tensor that is not needed."""
    del c
    return theirs


readable = entries  # the tensors to look for in a folder
untied = kept_apart
is_head_tensor = no_head
