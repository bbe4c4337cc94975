"""The Flax classes of `transformers` 4: small random models as they save them, and what they compute. Plain of the zoo's code.

    USE_TF=0 PYTHONPATH=.venv-parity/version4 .venv/bin/python tests/parity/flax_classes.py TO [NAME...]

Version 4 of `transformers` lies in the environment of `make parity`, JAX and Flax in the zoo's own. A folder for each case has
config.json, flax_model.msgpack and expected.safetensors, as tests/fixtures/flax.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import transformers  # pyright: ignore[reportMissingImports]
from safetensors.numpy import save_file

_TEXT = dict(vocab_size=43, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=10)
_ENCODER = _TEXT | dict(max_position_embeddings=15)
_DECODER = _TEXT | dict(max_position_embeddings=32, num_key_value_heads=3, bos_token_id=None, eos_token_id=None)
_T5 = dict(vocab_size=43, d_model=12, d_kv=5, d_ff=10, num_layers=2, num_heads=3, relative_attention_num_buckets=8)
_SIDES = dict(
    vocab_size=43,
    d_model=12,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=3,
    decoder_attention_heads=3,
    encoder_ffn_dim=10,
    decoder_ffn_dim=10,
    max_position_embeddings=16,
    pad_token_id=0,
    decoder_start_token_id=2,
    bos_token_id=2,
    eos_token_id=1,
    forced_eos_token_id=None,
)
_POSITIONS = {k: v for k, v in _SIDES.items() if k != "max_position_embeddings"}
_WHISPER = _POSITIONS | dict(num_mel_bins=4, max_source_positions=6, max_target_positions=12, begin_suppress_tokens=None)
_VIT = dict(
    hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=10, image_size=12, patch_size=6, num_channels=2
)
_GPT2 = dict(vocab_size=43, n_embd=12, n_layer=2, n_head=3, n_positions=15, bos_token_id=None, eos_token_id=None)
_WAVE = dict(
    vocab_size=9,
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=10,
    conv_dim=[6] * 7,
    feat_extract_norm="layer",
    do_stable_layer_norm=True,
    conv_bias=True,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    pad_token_id=0,
)
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {  # the class, that of its config, and settings
    "bert": ("BertForSequenceClassification", "BertConfig", _ENCODER),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", _ENCODER | dict(type_vocab_size=1, pad_token_id=1)),
    "xlm_roberta": ("XLMRobertaModel", "XLMRobertaConfig", _ENCODER | dict(type_vocab_size=1, pad_token_id=1)),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        dict(vocab_size=43, dim=12, n_layers=2, n_heads=3, hidden_dim=10, max_position_embeddings=15),
    ),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _DECODER),
    "mistral": ("MistralForCausalLM", "MistralConfig", _DECODER | dict(num_key_value_heads=1)),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", _DECODER | dict(head_dim=6, num_key_value_heads=1)),
    "t5": ("T5ForConditionalGeneration", "T5Config", _T5),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", _T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "bart": ("BartForConditionalGeneration", "BartConfig", _SIDES),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", _SIDES),
    "marian": ("MarianMTModel", "MarianConfig", _SIDES),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", _SIDES),
    "vit": ("ViTForImageClassification", "ViTConfig", _VIT | dict(num_labels=5)),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", _WHISPER),
    "wav2vec2": ("Wav2Vec2ForCTC", "Wav2Vec2Config", _WAVE),
    "captioner": ("VisionEncoderDecoderModel", "VisionEncoderDecoderConfig", {}),
}


_clip = jnp.clip  # whose bounds had other names when these classes were written
jnp.clip = lambda x, a_min=None, a_max=None, **bounds: _clip(x, bounds.get("min", a_min), bounds.get("max", a_max))


def _config(kind: str, settings: dict[str, Any]) -> Any:
    if kind == "VisionEncoderDecoderConfig":
        decoder = transformers.GPT2Config(**_GPT2 | dict(n_embd=9, add_cross_attention=True, is_decoder=True))
        made = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(transformers.ViTConfig(**_VIT), decoder)
        made.decoder_start_token_id = made.pad_token_id = 0
        made.tie_word_embeddings = True
        return made
    return getattr(transformers, kind)(**settings)


def _drawn(shapes: Any, rng: np.random.Generator) -> Any:
    """Weights of a size that makes every one of them matter; biases and norms too."""

    def draw(path: Any, x: Any) -> np.ndarray:
        name = path[-1].key
        flat = len([n for n in x.shape if n > 1]) < 2
        value = rng.normal(size=x.shape) / (3 if flat else 12**0.5)
        return (value + (flat and name in ("scale", "weight"))).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def _given(config: Any, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns inputs by the names of the fixtures, and the same by those of the classes."""
    mask = (np.arange(9) < np.array([[9], [6]])).astype(np.int32)
    targets = rng.integers(2, 43, (2, 7)).astype(np.int32)
    start = getattr(config, "decoder_start_token_id", None) or 0
    shifted = np.concatenate([np.full((2, 1), start, np.int32), targets[:, :-1]], 1)
    picture = getattr(config, "encoder", config)
    if hasattr(picture, "patch_size"):
        images = rng.normal(size=(2, 12, 12, 2)).astype(np.float32)
        given, named = {"images": images, "mask": mask}, {"pixel_values": images.transpose(0, 3, 1, 2)}
        if picture is not config:
            return given | {"targets": targets}, named | {"decoder_input_ids": shifted}
        return given, named
    if hasattr(config, "conv_stride"):
        samples = rng.normal(size=(2, 3531)).astype(np.float32)
        return {"samples": samples, "mask": np.ones((2, 10), np.int32)}, {"input_values": samples}
    if hasattr(config, "num_mel_bins"):
        frames = rng.normal(size=(2, 12, 4)).astype(np.float32)
        given = {"frames": frames, "targets": targets, "mask": mask}
        return given, {"input_features": frames.transpose(0, 2, 1), "decoder_input_ids": shifted}
    tokens = rng.integers(2, 43, mask.shape).astype(np.int32)
    pad = getattr(config, "pad_token_id", None) or 0
    tokens = np.where(mask > 0, tokens, pad).astype(np.int32)
    given, named = {"tokens": tokens, "mask": mask}, {"input_ids": tokens, "attention_mask": mask}
    if config.is_encoder_decoder:
        return given | {"targets": targets, "real": np.ones_like(targets)}, named | {"decoder_input_ids": shifted}
    return given, named


def make(name: str, to: Path) -> None:
    """Writes a case's folder."""
    architecture, kind, settings = CASES[name]
    config = _config(kind, settings)
    model = getattr(transformers, f"Flax{architecture}")(config, _do_init=architecture.startswith("Vision"))
    rng = np.random.default_rng(len(name))
    params = _drawn(jax.tree_util.tree_map(lambda x: x, model.params_shape_tree), rng)
    given, named = _given(config, rng)
    out = jax.jit(lambda params: model(**named, params=params))(params)
    key = "logits" if "logits" in out else "last_hidden_state"
    model.save_pretrained(to / name, params=params)
    (to / name / "generation_config.json").unlink(missing_ok=True)
    save_file(given | {key: np.ascontiguousarray(out[key])}, to / name / "expected.safetensors")
    print(name, (to / name / "flax_model.msgpack").stat().st_size, flush=True)


if __name__ == "__main__":
    for case in sys.argv[2:] or CASES:
        make(case, Path(sys.argv[1]))
