"""Whisper in Hugging Face's files. No JAX."""

from typing import Any

from models.interchange import Entry, Interchange
from models.interchange.layers import attention_names, encoder_decoder_layers
from models.interchange.rows import ModelType, Setting, also, fixed, sizes, stacks
from models.interchange.settings import MULTI_HEAD, Settings, only
from models.interchange.tensors import convolution, norm, table
from models.whisper.config import WhisperConfig
from models.whisper.tokens import BEFORE, END, LANGUAGE, LATEST_START, NO_TIMESTAMPS, START, TASKS, is_multilingual, no_speech

_POSITIONS = 50  # of the encoder in a second
_FRONT = {"sampling_rate": 16_000, "hop_length": 160, "n_fft": 400}  # data/speech/spectra.py
_TABLE, _OUTPUT = "model.decoder.embed_tokens.weight", "proj_out.weight"
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
_LAYER = {
    "self_attn_layer_norm": "attention_norm",
    **attention_names("self_attn", _PROJECTIONS),
    "encoder_attn_layer_norm": "cross_norm",
    **attention_names("encoder_attn", _PROJECTIONS, "cross_attention"),
    "final_layer_norm": "ffn_norm",
    "fc1": "ffn.wi",
    "fc2": "ffn.wo",
}
_WHISPER = ModelType(
    null_is_default=True,
    config=WhisperConfig,
    name="Whisper",
    architectures=("WhisperForConditionalGeneration",),
    fields=MULTI_HEAD | {"norm.order": "pre", "norm.eps": 1e-5, "attention.biases": "qvo", "moe": None},
    rows=(
        *sizes("gelu", dropout=0.0),
        Setting("num_mel_bins", "mels", int, 80),
        Setting("max_source_positions", "source_positions", int, 1500),
        Setting("max_target_positions", "positions.rows", int, 448),
        fixed("scale_embedding", False),
        Setting("decoder_start_token_id", "decoder.start_id", int, 50_257),
        *(also(f"{name}_token_id", "decoder.start_id", lambda start: start - 1) for name in ("bos", "eos", "pad")),
        stacks("d_model", same_depth=False),
    ),
)


class _HuggingFace(Interchange[WhisperConfig]):
    def companion_files(self, c: WhisperConfig, tokenizer: Any) -> dict[str, dict[str, Any]]:
        """Returns the other files with which `transformers` transcribes: how sound becomes frames, the class of the vocabulary,
        which tokens stand before a text and are never in it. It hears windows of whole seconds alone."""
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
            "decoder_start_token_id": c.decoder.start_id,
            "is_multilingual": is_multilingual(end),
            "max_initial_timestamp_index": LATEST_START,
            "max_length": c.positions.rows,
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

    def data_fields(self, c: WhisperConfig, preprocessor: Settings) -> dict[str, Any]:
        """Returns no fields: a preprocessor_config.json may ask for nothing but our frames."""
        only(
            preprocessor,
            feature_extractor_type=("WhisperFeatureExtractor",),
            feature_size=(c.mels,),
            do_normalize=(False,),
            dither=(0, 0.0),
            chunk_length=(c.source_positions / _POSITIONS,),
            **{key: (value,) for key, value in _FRONT.items()},
        )
        return {}

    def entries(self, c: WhisperConfig) -> list[Entry]:
        m = c.model_dim
        mapped = [
            table(_TABLE, "embedding.table", (c.vocab, m)),
            table("model.decoder.embed_positions.weight", "positions", (c.positions.rows, m)),
            table("model.encoder.embed_positions.weight", "front.positions", (c.source_positions, m)),
            *convolution("model.encoder.conv1", "front.conv1.filter", (3, c.mels, m), bias="front.conv1.bias"),
            *convolution("model.encoder.conv2", "front.conv2.filter", (3, m, m), bias="front.conv2.bias"),
        ]
        for side in ("encoder", "decoder"):
            mapped += encoder_decoder_layers(c, side, f"model.{side}.layers.{{layer}}.", _LAYER)
            mapped += norm(f"model.{side}.layer_norm", f"{side}_norm", m)
        return mapped

    def tied_tensors(self, c: WhisperConfig) -> dict[str, str]:
        return {_OUTPUT: _TABLE}


INTERCHANGE = _HuggingFace({"whisper": _WHISPER})
