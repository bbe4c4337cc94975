"""GPT-2 in Hugging Face's files. No JAX."""

from typing import Any

from models.gpt.config import GptConfig
from models.gpt.huggingface.own_names import OwnNames, shared
from models.interchange import Entry
from models.interchange.layers import layers
from models.interchange.rows import Activation, Row, Setting, allowed, also, head_count
from models.interchange.settings import MULTI_HEAD, Fields, setting, under

_LAYER = {
    "ln_1": "attention_norm",
    "attn.c_attn": ("attention.q", "attention.k", "attention.v"),
    "attn.c_proj": "attention.o",
    "ln_cross_attn": "cross_norm",
    "crossattention.q_attn": "cross_attention.q",
    "crossattention.c_attn": ("cross_attention.k", "cross_attention.v"),
    "crossattention.c_proj": "cross_attention.o",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn.wi",
    "mlp.c_proj": "ffn.wo",
}


# Of all GPT-2s, whether they attend to another model's output or not; dropout is that of the residual branches, the only one that
# we have, and has rows of its own.
SIZES: tuple[Row, ...] = (
    allowed("scale_attn_weights", True),
    allowed("scale_attn_by_inverse_layer_idx", False),
    Setting("n_layer", "layers", int),
    Setting("n_embd", "model_dim", int),
    Row(
        lambda theirs: {"feed_forward.hidden_dim": setting(theirs, "n_inner", int, 4 * setting(theirs, "n_embd", int))},
        lambda c: {"n_inner": c.feed_forward.hidden_dim},
    ),
    head_count("n_head", "n_embd"),
    Setting("n_positions", "positions.rows", int),
    Setting("activation_function", "feed_forward.activation", Activation, "gelu_new"),
    Setting("layer_norm_epsilon", "norm.eps", float, 1e-5),
)
DROPOUT = Setting("resid_pdrop", "dropout", float, 0.1)
FIELDS: Fields = MULTI_HEAD | {"norm.order": "pre", "moe": None}
GPT2 = OwnNames(
    config=GptConfig,
    name="GPT-2",
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    null_is_default=True,
    fields=FIELDS
    | {
        "positions.class": lambda c: "Learned",
        "positions.first": 0,
        **under("output", cap=0.0, bias=False, mtp=0.0, divisor=1.0),
        "embedding_scale": 1.0,
        "prefix": False,
    },
    initial={"dialect": "gpt2"},
    rows=(
        *shared(tied=True),
        *SIZES,
        DROPOUT,
        also("embd_pdrop", "dropout"),
        also("attn_pdrop", "dropout"),
        allowed("add_cross_attention", False),
    ),
    prefix="transformer.",
    embedding="wte",
    positions="wpe",
    stack="h",
    final_norm="ln_f",
    names=lambda c: _LAYER,
    transposed=False,
    buffers=(".attn.bias", ".attn.masked_bias"),
)


def gpt2_layers(c: Any, stack: str, *, cross: bool = False) -> list[Entry]:
    """Returns the entries of a GPT-2's layers: matrices are [in, out] (its Conv1D); queries, keys and values are one tensor.

    Args:
      stack: our name of the layers.
      cross: they attend to another model's output too.
    """
    return layers(c, stack, "transformer.h.{layer}.", _LAYER, cross=cross, layers=c.layers, transposed=False)
