"""Settings of M2M-100, NLLB and NLLB-MoE. No JAX."""

from models.interchange.rows import ModelType, Row, Setting, choice, constant, fixed, same_in_both, sizes, stacks
from models.interchange.settings import MULTI_HEAD, Fields
from models.m2m100.config import Inputs, M2M100Config
from models.parts.attention.config import Sinusoidal
from models.parts.moe.config import MoeConfig

_GROUP = 64  # tokens of a routing group: of our own training, not in their files
_ROWS = (
    *sizes("relu"),
    fixed("scale_embedding", True),
    Setting("decoder_start_token_id", "decoder.start_id", int, 2),
    fixed("pad_token_id", 1),
    constant("eos_token_id", 2),
    stacks("d_model", same_depth=True),
)
_FIELDS: Fields = MULTI_HEAD | {
    "norm.order": "pre",
    "norm.eps": 1e-5,
    "positions": Sinusoidal(),
    "decoder.layers": 0,
    "inputs": Inputs(),
    "logits_bias": False,
}
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

MODEL_TYPES = {"m2m_100": _M2M100, "nllb-moe": _NLLB_MOE}
