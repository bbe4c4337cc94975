"""M2M-100, NLLB and NLLB-MoE in Hugging Face's files. No JAX."""

from collections.abc import Mapping
from typing import Any

from models.interchange import (
    Entry,
    InterchangeError,
    demand,
    kept_apart,
    matrix,
    model_type,
    no_head,
    only,
    read_activation,
    setting,
    table,
    vector,
    write_activation,
)
from models.m2m100.config import M2M100Config
from models.parts.moe.config import MoeConfig

MODEL_TYPES = ("m2m_100", "nllb-moe")
_ARCHITECTURES = {"m2m_100": ("M2M100ForConditionalGeneration",), "nllb-moe": ("NllbMoeForConditionalGeneration",)}
_TABLE, _OUTPUT = "model.shared.weight", "lm_head.weight"
_COMPUTED = (".embed_positions.weights",)  # old releases saved the sinusoids
_GROUP = 64  # tokens of a routing group: of our own training, not in their files


def read_config(theirs: Mapping[str, Any]) -> M2M100Config:
    """Returns the configuration of the model that a config.json describes.

    Raises:
      InterchangeError: a setting is missing, or our model does not support it.
    """
    kind = model_type(theirs, _ARCHITECTURES)
    only(theirs, scale_embedding=(True,), tie_word_embeddings=(True,), pad_token_id=(1,))
    both = {
        ours: _same(theirs, key) for ours, key in (("layers", "layers"), ("hidden_dim", "ffn_dim"), ("heads", "attention_heads"))
    }
    width = setting(theirs, "d_model", int)
    if width % both["heads"]:
        raise InterchangeError(f"config.json: d_model={width} is no multiple of encoder_attention_heads={both['heads']}")
    return M2M100Config(
        vocab=setting(theirs, "vocab_size", int),
        layers=2 * both["layers"],
        model_dim=width,
        hidden_dim=both["hidden_dim"],
        heads=both["heads"],
        head_dim=width // both["heads"],
        activation=read_activation(setting(theirs, "activation_function", str, "relu")),
        dropout=setting(theirs, "dropout", float, 0.1),
        hidden_dropout=setting(theirs, "activation_dropout", float, 0.0),
        start_id=setting(theirs, "decoder_start_token_id", int, 2),
        **(_read_mixture(theirs) if kind == "nllb-moe" else {}),
    )


def _same(theirs: Mapping[str, Any], name: str) -> int:
    """Returns a size that both stacks have."""
    sizes = [setting(theirs, f"{side}_{name}", int) for side in ("encoder", "decoder")]
    if sizes[0] != sizes[1]:
        raise InterchangeError(f"config.json: decoder_{name}={sizes[1]}: only as encoder_{name}={sizes[0]}")
    return sizes[0]


def _read_mixture(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mixture's fields. In evaluation our models drop no token, as `transformers` with a capacity of all tokens;
    with one of -1 it drops those behind `expert_capacity` of a whole batch."""
    only(
        theirs,
        router_bias=(False,),
        router_dtype=("float32",),
        moe_eval_capacity_token_fraction=(1.0,),
        normalize_router_prob_before_dropping=(False,),
        second_expert_policy=("all", "random"),
    )
    policy = setting(theirs, "second_expert_policy", str, "all")
    moe = MoeConfig(
        experts=setting(theirs, "num_experts", int, 128),
        group_size=_GROUP,
        second_expert_threshold=0.5 if policy == "random" else 0.0,
        token_dropout=setting(theirs, "moe_token_dropout", float, 0.2),
        balance_weight=setting(theirs, "router_aux_loss_coef", float, 0.001),
        z_weight=setting(theirs, "router_z_loss_coef", float, 0.001),
    )
    return {"moe": moe, "sparse_every": _same(theirs, "sparse_step")}


def write_config(c: M2M100Config) -> dict[str, Any]:
    """Returns the config.json of a model.

    Raises:
      InterchangeError: `transformers` has no class for the model; the message names the fields that differ.
    """
    demand(
        c,
        "M2M-100",
        order="pre",
        norm="layer",
        norm_bias=True,
        norm_eps=1e-5,
        positions="sinusoidal",
        gated=False,
        attention_scale=True,
        attention_bias=True,
        ffn_bias=True,
        per_dim_scale=False,
        logit_cap=0.0,
        groups=c.heads,
        head_dim=c.model_dim // c.heads,
    )
    kind = "nllb-moe" if c.moe else "m2m_100"
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[kind][0]],
        "model_type": kind,
        "is_encoder_decoder": True,
        "vocab_size": c.vocab,
        "d_model": c.model_dim,
        "activation_function": write_activation(c.activation),
        "dropout": c.dropout,
        "attention_dropout": c.dropout,
        "activation_dropout": c.hidden_dropout,
        "scale_embedding": True,
        "decoder_start_token_id": c.start_id,
        "pad_token_id": 1,
        "eos_token_id": 2,
    }
    for side in ("encoder", "decoder"):
        config |= {f"{side}_layers": c.layers // 2, f"{side}_ffn_dim": c.hidden_dim, f"{side}_attention_heads": c.heads}
    if c.moe is None:
        return config
    demand(c.moe, "NLLB-MoE", gating="top2", eval_capacity_factor=0.0)
    if c.moe.second_expert_threshold not in (0.0, 0.5):
        raise InterchangeError(
            f"no NLLB-MoE of Hugging Face is like this model: second_expert_threshold={c.moe.second_expert_threshold}"
        )
    return config | {
        "num_experts": c.moe.experts,
        "encoder_sparse_step": c.sparse_every,
        "decoder_sparse_step": c.sparse_every,
        "router_bias": False,
        "router_dtype": "float32",
        "second_expert_policy": "random" if c.moe.second_expert_threshold else "all",
        "normalize_router_prob_before_dropping": False,
        "moe_eval_capacity_token_fraction": 1.0,
        "moe_token_dropout": c.moe.token_dropout,
        "router_aux_loss_coef": c.moe.balance_weight,
        "router_z_loss_coef": c.moe.z_weight,
    }


def entries(c: M2M100Config) -> list[Entry]:
    """Returns the entries of all tensors that `transformers` saves for such a model."""
    m = c.model_dim
    mapped = [table(_TABLE, "embedding.table", (c.vocab, m))]
    for side in ("encoder", "decoder"):
        for i, name in enumerate(c.layer_group):
            mapped += _layer(c, side, name, i)
        mapped += _norm(f"model.{side}.layer_norm", f"{side}_norm", m)
    return mapped


def _norm(theirs: str, ours: str, size: int, **places: Any) -> list[Entry]:
    names = {"weight": "scale", "bias": "bias"}
    return [vector(f"{theirs}.{t}", (f"{ours}.{o}", (size,)), **places) for t, o in names.items()]


def _layer(c: M2M100Config, side: str, name: str, first: int) -> list[Entry]:
    """Returns the entries of one layer of all units of a stack."""
    m, h, n, d = c.model_dim, c.hidden_dim, c.heads, c.head_dim
    at, ours = f"model.{side}.layers.{{layer}}", f"{side}.{name}"
    places: dict[str, Any] = dict(layers=c.layer_groups, first=first, every=len(c.layer_group))
    cross, ffn_norm = ("cross_attention", "ff_layer_norm") if c.moe else ("encoder_attn", "final_layer_norm")

    def dense(theirs: str, to: str, shape: tuple[int, ...], inputs: int = 1, **more: Any) -> list[Entry]:
        weight = matrix(f"{theirs}.weight", (f"{ours}.{to}", shape), inputs=inputs, **places, **more)
        return [weight, vector(f"{theirs}.bias", (f"{ours}.{to}_bias", shape[inputs:]), **places, **more)]

    def attention(theirs: str, to: str) -> list[Entry]:
        into = [e for p in "qkv" for e in dense(f"{at}.{theirs}.{p}_proj", f"{to}.{p}", (m, n, d))]
        return [*into, *dense(f"{at}.{theirs}.out_proj", f"{to}.o", (n, d, m), inputs=2)]

    mapped = [*_norm(f"{at}.self_attn_layer_norm", f"{ours}.attention_norm", m, **places), *attention("self_attn", "attention")]
    if side == "decoder":
        mapped += _norm(f"{at}.{cross}_layer_norm", f"{ours}.cross_norm", m, **places)
        mapped += attention(cross, "cross_attention")
    mapped += _norm(f"{at}.{ffn_norm}", f"{ours}.ffn_norm", m, **places)
    inside, more = (f"{at}.ffn" if c.moe else at), {}
    if name == "sparse" and c.moe:
        mapped.append(matrix(f"{inside}.router.classifier.weight", (f"{ours}.ffn.router", (m, c.moe.experts)), **places))
        inside, more = f"{inside}.experts.expert_{{expert}}", {"experts": c.moe.experts}
    return [*mapped, *dense(f"{inside}.fc1", "ffn.wi", (m, h), **more), *dense(f"{inside}.fc2", "ffn.wo", (h, m), **more)]


def copies(c: M2M100Config) -> dict[str, str]:
    """Returns the tensors that a file may hold besides `readable`, and those that they repeat, by canonical name."""
    del c
    return {name: _TABLE for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", _OUTPUT)}


def canonical(c: M2M100Config, theirs: str) -> str | None:
    """Returns the name of a file's tensor in `readable` or `copies`; None for a tensor that is not needed."""
    del c
    return None if theirs.endswith(_COMPUTED) else theirs


readable = entries  # the tensors to look for in a folder
untied = kept_apart
is_head_tensor = no_head
