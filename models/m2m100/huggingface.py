"""M2M-100, NLLB and NLLB-MoE in Hugging Face's files. No JAX."""

from models.interchange import Entry, Interchange
from models.interchange.layers import Names, attention_names, encoder_decoder_layers
from models.interchange.rows import (
    Activation,
    ModelType,
    Row,
    Setting,
    allowed,
    also,
    choice,
    constant,
    fixed,
    same_in_both,
    stacks,
)
from models.interchange.settings import MULTI_HEAD, Fields
from models.interchange.tensors import norm, table
from models.m2m100.config import M2M100Config
from models.parts.attention.config import Sinusoidal
from models.parts.moe.config import MoeConfig

_TABLE, _OUTPUT = "model.shared.weight", "lm_head.weight"
_COMPUTED = (".embed_positions.weights",)  # old releases saved the sinusoids
_GROUP = 64  # tokens of a routing group: of our own training, not in their files
_ROWS = (
    constant("is_encoder_decoder", True),
    Setting("vocab_size", "vocab", int),
    Setting("d_model", "model_dim", int),
    Setting("activation_function", "feed_forward.activation", Activation, "relu"),
    Setting("dropout", "dropout", float, 0.1),
    also("attention_dropout", "dropout"),
    Setting("activation_dropout", "feed_forward.dropout", float, 0.0),
    fixed("scale_embedding", True),
    allowed("tie_word_embeddings", True),
    Setting("decoder_start_token_id", "decoder.start_id", int, 2),
    fixed("pad_token_id", 1),
    constant("eos_token_id", 2),
    stacks("d_model", same_depth=True),
)
_FIELDS: Fields = MULTI_HEAD | {"norm.order": "pre", "norm.eps": 1e-5, "positions": Sinusoidal(), "decoder.layers": 0}
_M2M100 = ModelType(
    null_is_default=True,
    config=M2M100Config,
    name="M2M-100",
    architectures=("M2M100ForConditionalGeneration",),
    fields=_FIELDS | {"moe": None},
    rows=_ROWS,
)


_NLLB_MOE = ModelType(
    null_is_default=True,
    config=M2M100Config,
    name="NLLB-MoE",
    architectures=("NllbMoeForConditionalGeneration",),
    # In evaluation our models drop no token, as `transformers` with a capacity of all tokens; with one of -1 it drops those
    # behind `expert_capacity` of a whole batch.
    fields=_FIELDS | {"moe.router.class": lambda c: "Top2", "moe.capacity.eval_factor": 0.0},
    initial={"moe": MoeConfig, "moe.group_size": _GROUP},
    rows=(
        *_ROWS,
        Setting("num_experts", "moe.experts.count", int, 128),
        Row(
            lambda theirs: {"moe.every": same_in_both(theirs, "sparse_step")},
            lambda c: {f"{side}_sparse_step": c.moe.every for side in ("encoder", "decoder")},
        ),
        fixed("router_bias", False),
        fixed("router_dtype", "float32"),
        choice("second_expert_policy", "moe.router.second_threshold", {"all": 0.0, "random": 0.5}, "all"),
        fixed("normalize_router_prob_before_dropping", False),
        fixed("moe_eval_capacity_token_fraction", 1.0),
        Setting("moe_token_dropout", "moe.experts.token_dropout", float, 0.2),
        Setting("router_aux_loss_coef", "moe.losses.balance_weight", float, 0.001),
        Setting("router_z_loss_coef", "moe.losses.z_weight", float, 0.001),
    ),
)


def _names(mixed: bool) -> dict[bool, Names]:
    """Returns the names of a layer's parts, by whether it has experts; NLLB-MoE's dense layers have other names too."""
    cross, ffn_norm, ffn = ("cross_attention", "ff_layer_norm", "ffn.") if mixed else ("encoder_attn", "final_layer_norm", "")
    projections = ("q_proj", "k_proj", "v_proj", "out_proj")
    shared = {
        "self_attn_layer_norm": "attention_norm",
        **attention_names("self_attn", projections),
        f"{cross}_layer_norm": "cross_norm",
        **attention_names(cross, projections, "cross_attention"),
        ffn_norm: "ffn_norm",
    }
    expert = "ffn.experts.expert_{expert}."
    return {
        False: shared | {f"{ffn}fc1": "ffn.wi", f"{ffn}fc2": "ffn.wo"},
        True: shared | {"ffn.router.classifier": "ffn.router", f"{expert}fc1": "ffn.wi", f"{expert}fc2": "ffn.wo"},
    }


class _HuggingFace(Interchange[M2M100Config]):
    def model_type_of(self, c: M2M100Config) -> str:
        return "nllb-moe" if c.moe else "m2m_100"

    def entries(self, c: M2M100Config) -> list[Entry]:
        names = _names(c.moe is not None)
        mapped = [table(_TABLE, "embedding.table", (c.vocab, c.model_dim))]
        for side in ("encoder", "decoder"):
            mapped += encoder_decoder_layers(c, side, f"model.{side}.layers.{{layer}}.", names[False], names[True])
            mapped += norm(f"model.{side}.layer_norm", f"{side}_norm", c.model_dim)
        return mapped

    def tied_tensors(self, c: M2M100Config) -> dict[str, str]:
        return {name: _TABLE for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", _OUTPUT)}

    def canonical_name(self, c: M2M100Config, theirs: str) -> str | None:
        return None if theirs.endswith(_COMPUTED) else theirs


INTERCHANGE = _HuggingFace({"m2m_100": _M2M100, "nllb-moe": _NLLB_MOE})
