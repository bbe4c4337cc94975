"""Fields that have moved since experiments were first stored: releases and runs made before still open.

`MOVED` has all of them by dotted paths, old to new, which also tells who types an old one what it is called now.
"""

import copy
from typing import Any

_TOWERS = ("vision", "conformer", "whisper")  # models within a model
_EXECUTION = ("dtype", "remat", "unroll", "dispatch", "loss_chunks")
# Fields of a mixture that were the model's own.
_MODELS_OWN = (
    "experts",
    "gating",
    "group_size",
    "capacity_factor",
    "eval_capacity_factor",
    "second_expert_threshold",
    "second_expert_slot",
    "input_jitter",
    "balance_weight",
    "z_weight",
)
# Fields of a mixture, when it was one class.
_MIXTURE = {
    "experts": "experts.count",
    "hidden_dim": "experts.hidden_dim",
    "activation": "experts.activation",
    "gated": "experts.gated",
    "dropout": "experts.dropout",
    "token_dropout": "experts.token_dropout",
    "shared_dim": "experts.shared.hidden_dim",
    "shared_gate": "experts.shared.gated",
    "gating": "router",
    "choices": "router.choices",
    "norm_topk": "router.normalized",
    "score": "router.score",
    "gate_scale": "router.scale",
    "correction_bias": "router.correction",
    "correction_rate": "router.correction.rate",
    "expert_groups": "router.groups.count",
    "chosen_groups": "router.groups.chosen",
    "second_expert_threshold": "router.second_threshold",
    "second_expert_slot": "router.second_slot",
    "router_bias": "router.bias",
    "router_std": "router.init_std",
    "router_dtype": "router.dtype",
    "input_jitter": "router.jitter",
    "router_noise": "router.noise.std",
    "load_weight": "router.noise.load_weight",
    "capacity_factor": "capacity.factor",
    "eval_capacity_factor": "capacity.eval_factor",
    "min_capacity": "capacity.least",
    "capacity_multiple": "capacity.multiple",
    "batch_priority": "capacity.batch_priority",
    "balance": "losses.balance",
    "balance_weight": "losses.balance_weight",
    "importance_weight": "losses.importance_weight",
    "z_weight": "losses.z_weight",
}
_ROUTERS = {"top1": "Top1", "top2": "Top2", "top_k": "TopK", "expert_choice": "ExpertChoice"}
_OF_ROUTER = {
    "Top2": ("second_threshold", "second_slot"),
    "TopK": ("choices", "normalized", "score", "scale", "correction", "groups"),
}

MOVED = (
    {f"model.{name}": f"execution.{name}" for name in _EXECUTION}
    | {f"model.moe.{old}": f"model.moe.{new}" for old, new in _MIXTURE.items()}
    | {f"model.{name}": f"model.moe.{_MIXTURE.get(name, name)}" for name in _MODELS_OWN}
)


def modernized(data: dict[str, Any]) -> dict[str, Any]:
    """Returns an experiment's JSON values with the fields of `MOVED` in their present places."""
    data = copy.deepcopy(data)
    model = data.get("model")
    if not isinstance(model, dict):
        return data
    execution = {name: model.pop(name) for name in _EXECUTION if name in model}
    if execution:
        data["execution"] = execution | data.get("execution", {})
    for part in (model, *(model[name] for name in _TOWERS if isinstance(model.get(name), dict))):
        own = {name: part.pop(name) for name in _MODELS_OWN if name in part}
        if own:
            part["moe"] = own
        if isinstance(moe := part.get("moe"), dict) and not isinstance(moe.get("experts"), dict):
            part["moe"] = _mixture(moe) if moe.get("experts") else None  # a dense model had no experts
    return data


def _mixture(old: dict[str, Any]) -> dict[str, Any]:
    """Returns a mixture's values of one class as those of its parts."""
    gating = _ROUTERS.get(old.get("gating", "top2"), old.get("gating"))
    new = _placed(old, _MIXTURE)
    router = new.get("router", {})
    noise, correction, groups = (router.pop(name, {}) for name in ("noise", "correction", "groups"))
    router["noise"] = {"class": "Noise"} | noise if noise.get("std") else None
    router["correction"] = {"class": "Correction"} | correction if old.get("correction_bias") else None
    router["groups"] = {"class": "ExpertGroups"} | groups if groups.get("count", 1) > 1 else None
    others = {name for fields in _OF_ROUTER.values() for name in fields}.difference(_OF_ROUTER.get(gating, ()))
    new["router"] = {"class": gating} | {name: value for name, value in router.items() if name not in others}
    if "experts" in new:
        shared = new["experts"].pop("shared", {})
        new["experts"]["shared"] = {"class": "SharedExpert"} | shared if shared.get("hidden_dim") else None
    return {"class": "MoeConfig"} | new


def _placed(old: dict[str, Any], moves: dict[str, str]) -> dict[str, Any]:
    """Returns values at their new dotted paths; one that became a class is left to the caller."""
    new: dict[str, Any] = {}
    for name, value in old.items():
        *parents, last = moves.get(name, name).split(".")
        node = new
        for parent in parents:
            node = node.setdefault(parent, {})
        if not any(path.startswith(f"{moves.get(name)}.") for path in moves.values()):
            node[last] = value
    return new
