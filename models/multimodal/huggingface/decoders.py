"""Decoders of `vision-encoder-decoder` in Hugging Face's files: GPT-2 and TrOCR. No JAX."""

from typing import Any

from models.gpt.huggingface import gpt2
from models.interchange import Entry, InterchangeError
from models.interchange.layers import encoder_decoder_layers
from models.interchange.rows import Activation, ModelType, Row, Setting, also, constant, fixed, head_count
from models.interchange.settings import MULTI_HEAD, Fields, Settings, setting, value_at
from models.interchange.tensors import norm, table
from models.m2m100.config import Inputs
from models.m2m100.huggingface import layer_names
from models.multimodal.config import MultimodalConfig
from models.parts.attention.config import Learned, Sinusoidal

_AT = "model.decoder."  # of the tensors of TrOCR's decoder
_FIRST = 2  # row of TrOCR's table of positions that a text's first token has
_PADDING = 1  # TrOCR's, behind which its sinusoids count


def _read_positions(theirs: Settings) -> Fields:
    if setting(theirs, "use_learned_position_embeddings", bool, True):
        rows = setting(theirs, "max_position_embeddings", int, 512)
        return {"positions": Learned, "positions.rows": rows + _FIRST, "positions.first": _FIRST}
    if setting(theirs, "pad_token_id", int, _PADDING) != _PADDING:
        raise InterchangeError(f"config.json: decoder.pad_token_id={theirs['pad_token_id']}: sinusoids only behind {_PADDING}")
    return {"positions": Sinusoidal()}


def _write_positions(c: MultimodalConfig) -> dict[str, Any]:
    learned = c.positions if isinstance(c.positions, Learned) else None
    rows = {"max_position_embeddings": learned.rows - _FIRST} if learned else {}
    return {"use_learned_position_embeddings": learned is not None, "pad_token_id": _PADDING} | rows


def _read_seam(theirs: Settings) -> Fields:
    width = theirs.get("cross_attention_hidden_size")
    return {"towers.seam": "plain" if width is None else "none"}


def _write_seam(c: MultimodalConfig) -> dict[str, Any]:
    return {"cross_attention_hidden_size": c.source_dim if c.towers.seam == "none" else None}


_CROSS = (constant("add_cross_attention", True), constant("is_decoder", True))
_GPT2 = ModelType(
    config=MultimodalConfig,
    name="ViT and GPT-2",
    architectures=("GPT2LMHeadModel",),
    null_is_default=True,
    fields={"towers.seam": "plain", "inputs": None, "positions.class": lambda c: "Learned"} | gpt2.FIELDS,
    rows=(
        *_CROSS,
        Setting("vocab_size", "vocab", int),
        *gpt2.SIZES,
        fixed("tie_word_embeddings", True),
        also("attn_pdrop", "dropout"),
        also("embd_pdrop", "dropout"),
        gpt2.DROPOUT,
    ),
)
_TROCR = ModelType(
    config=MultimodalConfig,
    name="ViT and TrOCR",
    architectures=("TrOCRForCausalLM",),
    null_is_default=True,
    fields=MULTI_HEAD
    | {
        "norm.order": "post",
        "norm.eps": 1e-5,
        "moe": None,
        "inputs.sinusoids": "fairseq",
        "positions.first": lambda c: _FIRST if isinstance(c.positions, Learned) else None,
    },
    initial={"inputs": Inputs},
    rows=(
        *_CROSS,
        Setting("vocab_size", "vocab", int, 50_265),
        Setting("decoder_layers", "layers", int, 12),
        Setting("d_model", "model_dim", int, 1024),
        head_count("decoder_attention_heads", "d_model", 16, 1024),
        Setting("decoder_ffn_dim", "feed_forward.hidden_dim", int, 4096),
        Setting("activation_function", "feed_forward.activation", Activation, "gelu"),
        Setting("scale_embedding", "inputs.scaled", bool, False),
        Setting("layernorm_embedding", "inputs.norm", bool, True),
        Row(_read_positions, _write_positions),
        Row(_read_seam, _write_seam),
        fixed("tie_word_embeddings", True),
        Setting("dropout", "dropout", float, 0.1),
        also("attention_dropout", "dropout"),
        Setting("activation_dropout", "feed_forward.dropout", float, 0.0),
    ),
)
DECODERS = {"gpt2": _GPT2, "trocr": _TROCR}


def kind_of(c: MultimodalConfig) -> str:
    """Returns the model_type of the decoder."""
    return "gpt2" if c.inputs is None else "trocr"


# The table of tokens of each kind of decoder, and the output matrix that repeats it.
TIED = {"gpt2": ("transformer.wte.weight", "lm_head.weight"), "trocr": (f"{_AT}embed_tokens.weight", "output_projection.weight")}


def _gpt2_tensors(c: MultimodalConfig) -> list[Entry]:
    m = c.model_dim
    assert isinstance(c.positions, Learned)
    return [
        table(TIED["gpt2"][0], "embedding.table", (c.vocab, m)),
        table("transformer.wpe.weight", "positions", (c.positions.rows, m)),
        *gpt2.gpt2_layers(c, "decoder.dense", cross=True),
        *norm("transformer.ln_f", "decoder_norm", m),
    ]


def _trocr_tensors(c: MultimodalConfig) -> list[Entry]:
    m, rows = c.model_dim, c.positions.rows if isinstance(c.positions, Learned) else 0
    return [
        table(TIED["trocr"][0], "embedding.table", (c.vocab, m)),
        *([table(f"{_AT}embed_positions.weight", "inputs.positions", (rows, m))] if rows else []),
        *(norm(f"{_AT}layernorm_embedding", "inputs.norm", m) if value_at(c, "inputs.norm") else []),
        *encoder_decoder_layers(c, "decoder", f"{_AT}layers.{{layer}}.", layer_names(mixed=False)[False]),
    ]


BODIES = {"gpt2": _gpt2_tensors, "trocr": _trocr_tensors}
