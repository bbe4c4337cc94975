"""GPT-2 in Hugging Face's files. No JAX."""

from collections.abc import Mapping
from typing import Any

from models.gpt.config import GptConfig
from models.interchange import (
    Entry,
    InterchangeError,
    demand,
    matrix,
    norm,
    only,
    read_activation,
    setting,
    table,
    vector,
    write_activation,
)

ARCHITECTURES = {"gpt2": ("GPT2LMHeadModel", "GPT2Model")}
PREFIX = "transformer."  # of all tensors but the output matrix, in files that have one
BODY = ("wte.", "wpe.", "h.", "ln_f.")
TABLE = "transformer.wte.weight"


def read(theirs: Mapping[str, Any]) -> GptConfig:
    """Returns the configuration of a GPT-2 that reads its own text alone.

    Raises:
      InterchangeError: a setting is missing, or our model does not support it.
    """
    only(theirs, add_cross_attention=(False,))
    return read_gpt2(theirs)


def read_gpt2(theirs: Mapping[str, Any]) -> GptConfig:
    """Returns the configuration of a GPT-2, whether it attends to another model's output or not; its dropout is that of the
    residual branches, the only one that we have."""
    only(theirs, scale_attn_weights=(True,), scale_attn_by_inverse_layer_idx=(False,))
    width, heads = setting(theirs, "n_embd", int), setting(theirs, "n_head", int)
    if width % heads:
        raise InterchangeError(f"config.json: n_embd={width} is no multiple of n_head={heads}")
    return GptConfig(
        vocab=setting(theirs, "vocab_size", int),
        layers=setting(theirs, "n_layer", int),
        model_dim=width,
        hidden_dim=setting(theirs, "n_inner", int, 4 * width),
        heads=heads,
        head_dim=width // heads,
        positions="learned",
        max_positions=setting(theirs, "n_positions", int),
        norm="layer",
        norm_bias=True,
        norm_eps=setting(theirs, "layer_norm_epsilon", float, 1e-5),
        activation=read_activation(setting(theirs, "activation_function", str, "gelu_new")),
        attention_bias=True,
        ffn_bias=True,
        tied=setting(theirs, "tie_word_embeddings", bool, True),
        dropout=setting(theirs, "resid_pdrop", float, 0.1),
        dialect="gpt2",
    )


def write(c: GptConfig) -> dict[str, Any]:
    """Returns the settings of a model in config.json, those of all decoders left out.

    Raises:
      InterchangeError: it is no GPT-2; the message names the fields that differ.
    """
    demand(
        c,
        "GPT-2",
        order="pre",
        positions="learned",
        norm="layer",
        norm_bias=True,
        gated=False,
        attention_bias=True,
        ffn_bias=True,
        key_bias=True,
        output_bias="same",
        qk_norm=False,
        groups=c.heads,
        head_dim=c.model_dim // c.heads,
        logit_cap=0.0,
        softmax_cap=0.0,
        kinds=(),
        sinks=False,
        attention_scale=True,
        attention_scalar=0.0,
        embedding_scale=1.0,
        moe=None,
        latent=None,
    )
    return {
        "n_layer": c.layers,
        "n_embd": c.model_dim,
        "n_inner": c.hidden_dim,
        "n_head": c.heads,
        "n_positions": c.max_positions,
        "activation_function": write_activation(c.activation),
        "layer_norm_epsilon": c.norm_eps,
        "resid_pdrop": c.dropout,
        "embd_pdrop": c.dropout,
        "attn_pdrop": c.dropout,
    }


def entries(c: GptConfig) -> list[Entry]:
    """Returns the entries of all tensors but the output matrix."""
    return [
        table(TABLE, "embedding.table", (c.vocab, c.model_dim)),
        table("transformer.wpe.weight", "position_embedding.table", (c.max_positions, c.model_dim)),
        *gpt2_layers(c, "decoder"),
        *norm("transformer.ln_f", "final_norm", c.model_dim),
    ]


def gpt2_layers(c: GptConfig, stack: str, *, cross: bool = False) -> list[Entry]:
    """Returns the entries of a GPT-2's layers: matrices are [in, out] (its Conv1D); queries, keys and values are one tensor.

    Args:
      stack: our name of the layers.
      cross: they attend to another model's output too.
    """
    m, h, n, d, layers = c.model_dim, c.hidden_dim, c.heads, c.head_dim, c.layers
    at = "transformer.h.{layer}."

    def dense(theirs: str, shape: tuple[int, ...], *ours: str, inputs: int = 1) -> list[Entry]:
        weights = [(f"{stack}.{name}", shape) for name in ours]
        biases = [(f"{stack}.{name}_bias", shape[inputs:]) for name in ours]
        return [
            matrix(f"{at}{theirs}.weight", *weights, inputs=inputs, layers=layers, transposed=False),
            vector(f"{at}{theirs}.bias", *biases, layers=layers),
        ]

    attended = [
        *norm(f"{at}ln_cross_attn", f"{stack}.cross_norm", m, layers=layers),
        *dense("crossattention.q_attn", (m, n, d), "cross_attention.q"),
        *dense("crossattention.c_attn", (m, n, d), "cross_attention.k", "cross_attention.v"),
        *dense("crossattention.c_proj", (n, d, m), "cross_attention.o", inputs=2),
    ]
    return [
        *norm(f"{at}ln_1", f"{stack}.attention_norm", m, layers=layers),
        *dense("attn.c_attn", (m, n, d), "attention.q", "attention.k", "attention.v"),
        *dense("attn.c_proj", (n, d, m), "attention.o", inputs=2),
        *(attended if cross else []),
        *norm(f"{at}ln_2", f"{stack}.ffn_norm", m, layers=layers),
        *dense("mlp.c_fc", (m, h), "ffn.wi"),
        *dense("mlp.c_proj", (h, m), "ffn.wo"),
    ]
