"""Fields that have moved since experiments were first stored: releases and runs made before still open.

`MOVED` has all of them by dotted paths, old to new, which also tells who types an old one what it is called now.
"""

import copy
import dataclasses
from typing import Any

from configs.experiment import Faults, Finetuning

_TOWERS = ("vision", "conformer", "whisper")  # models within a model
_EXECUTION = ("dtype", "remat", "unroll", "dispatch", "loss_chunks")


def _into(part: str, *names: str) -> dict[str, str]:
    """Returns the moves of fields into a part in which they have kept their names."""
    return {name: f"{part}.{name}" for name in names}


# Fields of a mixture, when it was one class.
_MIXTURE = {
    "experts": "experts.count",
    **_into("experts", "hidden_dim", "activation", "gated", "dropout", "token_dropout"),
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
    **_into("losses", "balance", "balance_weight", "importance_weight", "z_weight"),
}
# Those that were the model's own.
_MODELS_OWN = ("experts", "gating", "group_size", "capacity_factor", "eval_capacity_factor", "second_expert_threshold")
_MODELS_OWN += ("second_expert_slot", "input_jitter", "balance_weight", "z_weight")
# Fields of a Transformer's layers, and of the families that have them, when all of a model's were its own.
_TRANSFORMER = {
    "latent": "attention",
    **_into("attention", "heads", "head_dim", "kv_heads"),
    **dict.fromkeys(("attention_bias", "output_bias", "key_bias"), "attention.biases"),
    "qk_norm": "attention.qk_norm",
    "qk_norm_kind": "attention.qk_norm.kind",
    "qk_norm_over": "attention.qk_norm.over",
    **dict.fromkeys(("attention_scale", "attention_scalar"), "attention.scale_dim"),
    **_into("attention", "per_dim_scale", "logit_cap", "sinks"),
    "kinds": "attention.pattern",
    "max_positions": "positions.rows",
    "first_position": "positions.first",
    "rotary_base": "positions.base",
    "rotary": "positions.scaling",
    **_into("positions", "buckets", "max_distance"),
    **_into("feed_forward", "hidden_dim", "activation", "gated"),
    "ffn_bias": "feed_forward.bias",
    "hidden_dropout": "feed_forward.dropout",
    "norm": "norm.kind",
    "norm_bias": "norm.bias",
    "norm_eps": "norm.eps",
    "order": "norm.order",
    "sparse_every": "moe.every",
    "sparse_first": "moe.first",
    "leading_layers": "moe.leading",
    "softmax_bias": "output.bias",
    "softmax_cap": "output.cap",
    "decoder_layers": "decoder.layers",
    "start_id": "decoder.start_id",
    "output_dropout": "decoder.source_dropout",
    "z_loss": "loss.z_weight",
    "types": "embedding.types",
    "embedding_norm": "embedding.norm",
    **_into("patches", "height", "width", "channels"),
    "patch": "patches.size",
    "patch_bias": "patches.bias",
    "class_token": "pooling",
    **_into("head", "classes", "pooler"),
    "head_bias": "head.bias",
    "vision": "towers.vision",
    **dict.fromkeys(("conformer", "whisper"), "towers.audio"),
    "seam": "towers.seam",
}
_METNET2 = {
    **_into("context", "stacks", "dilations"),
    "context_dim": "context.dim",
    **_into("detail", "upsample", "upsampling"),
    "detail_blocks": "detail.blocks",
    "detail_dim": "detail.dim",
    "hidden_dim": "detail.hidden_dim",
    "bin_width": "bins.width",
    "edges": "bins.lower_edges",
}
# Fields of a class of data.
_OF_DATA = {
    "GridData": _into("area", "height", "width", "scale", "stacked", "target_height", "target_width"),
    "MultimodalData": _into("packing", "texts", "pool", "row_length", "pictures", "sounds"),
}
# The same of classes where they went elsewhere, or stayed.
_OF_CLASS = {
    **dict.fromkeys(("GptConfig", "BertConfig"), _into("output", "tied", "label_smoothing")),
    "VitConfig": _into("head", "label_smoothing", "loss"),
}
_ENCODER_DECODER = {"label_smoothing": "loss.label_smoothing"}
# Defaults that these fields had in a class and no longer have.
_BIASED = dict(norm="layer", norm_bias=True, attention_bias=True, ffn_bias=True)
_DEFAULTS: dict[str, dict[str, Any]] = {
    "BertConfig": _BIASED
    | dict(positions="learned", max_positions=512, norm_eps=1e-12, order="post", activation="gelu", softmax_bias=True),
    "GShardM4Config": dict(positions="sinusoidal", hidden_dim=8192, heads=16, head_dim=128, label_smoothing=0.1),
    "M2M100Config": _BIASED | dict(positions="sinusoidal", norm_eps=1e-5, label_smoothing=0.1, sparse_every=4, start_id=2),
    "T5Config": dict(positions="relative_shared", head_dim=64, attention_scale=False),
    "WhisperConfig": _BIASED | dict(norm_eps=1e-5, activation="gelu", key_bias=False, max_positions=448, start_id=50_258),
    "MultimodalConfig": _BIASED | dict(max_positions=128, start_id=1),
    "VitConfig": _BIASED | dict(activation="gelu_tanh"),
}
_ROUTERS = {"top1": "Top1", "top2": "Top2", "top_k": "TopK", "expert_choice": "ExpertChoice"}
_OF_ROUTER = {
    "Top2": ("second_threshold", "second_slot"),
    "TopK": ("choices", "normalized", "score", "scale", "correction", "groups"),
}

# Fields whose values became classes.
_REMADE = ("positions", "pooling", "class_token", "moe", "vision", "conformer", "whisper", "seam")
_PRESENT = ("norm", "channels")  # names that some class still has

_TRAIN = {
    "save_every": "checkpoint.every",
    "save_failures": "checkpoint.max_failures",
    "checkpoints": "checkpoint.folder",
    **_into("checkpoint", "keep", "keep_every", "best"),
    **_into("faults", *(f.name for f in dataclasses.fields(Faults))),
    **_into("finetune", *(f.name for f in dataclasses.fields(Finetuning))),
}

MOVED = (
    {f"model.{name}": f"execution.{name}" for name in _EXECUTION}
    | {f"train.{old}": f"train.{new}" for old, new in _TRAIN.items()}
    | {f"model.moe.{old}": f"model.moe.{new}" for old, new in _MIXTURE.items()}
    | {f"model.{name}": f"model.moe.{_MIXTURE.get(name, name)}" for name in _MODELS_OWN}
    | {f"model.{old}": f"model.{new}" for old, new in (_METNET2 | _TRANSFORMER).items() if old not in _PRESENT}
    | {f"data.{old}": f"data.{new}" for moves in _OF_DATA.values() for old, new in moves.items()}
)


def modernized(data: dict[str, Any]) -> dict[str, Any]:
    """Returns an experiment's JSON values with the fields of `MOVED` in their present places."""
    data = copy.deepcopy(data)
    if isinstance(train := data.get("train"), dict):
        data["train"] = _placed(train, _TRAIN)
    if isinstance(rows := data.get("data"), dict):
        data["data"] = _placed(rows, _OF_DATA.get(str(rows.get("class")), {}))
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
    for name in _TOWERS:
        if isinstance(tower := model.get(name), dict):
            model[name] = _transformer(tower)
    data["model"] = _transformer(model)
    return data


def _transformer(old: dict[str, Any]) -> dict[str, Any]:
    """Returns a model's values with those of its layers in their parts; of other models, or once they are there, as they are."""
    name = str(old.get("class"))
    if name == "MetNet2Config" and isinstance(bins := old.get("bins", 512), int):
        width, edges = old.get("bin_width", 0.2), old.get("edges", ())
        old = {field: value for field, value in old.items() if field not in ("bins", "bin_width", "edges")}
        kind = {"class": "Edges", "lower_edges": edges} if edges else {"class": "EqualBins", "count": bins, "width": width}
        return _placed(old, _METNET2) | {"bins": kind}
    if (
        name in ("ConformerConfig", "HstuConfig", "MetNet2Config")
        or "attention" in old
        or not {"heads", *_DEFAULTS} & {*old, name}
    ):
        return old
    old = _DEFAULTS.get(name, {}) | old
    plain = {field: value for field, value in old.items() if field not in _REMADE}
    new = _placed(plain, _TRANSFORMER | _OF_CLASS.get(name, _ENCODER_DECODER))
    new["attention"] = _attention(old, new["attention"])
    new["positions"] = _positions(old)
    if name in ("WhisperConfig", "MultimodalConfig"):  # whose layers had no positions beside the model's table
        new["positions"] = {"class": "Learned", "rows": old["max_positions"]}
    if name == "VitConfig":
        new["positions"] = {"class": "LearnedPatches"} if old.get("positions", "learned") == "learned" else new["positions"]
        pooling = {"token": "TokenPooling", "mean": "MeanPooling", "map": "MapPooling"}[old.get("pooling", "token")]
        positioned = {"positioned": old.get("class_token", "positioned") == "positioned"} if pooling == "TokenPooling" else {}
        new["pooling"] = {"class": pooling} | positioned
    of_moe = new.pop("moe", {})
    if "moe" in old:
        new["moe"] = old["moe"] and old["moe"] | of_moe
    if name == "MultimodalConfig":
        new["towers"] = {key: old[key] for key in ("vision", "seam") if key in old}
        new["towers"]["audio"] = old.get("conformer") or old.get("whisper")
    return new


def _attention(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of attention, made of a model's own."""
    scale = (old.get("attention_scalar") or 0.0) if old.get("attention_scale", True) else 1.0
    new = {name: value for name, value in new.items() if name not in ("biases", "qk_norm", "scale_dim")}
    if latent := old.get("latent"):
        plain = {"class": "Latent", "heads": old["heads"], "rotary_dim": old["head_dim"], "scale_dim": scale}
        return latent | plain | {"pattern": old.get("kinds", [])}
    biased, keyed = old.get("attention_bias", False), old.get("key_bias", True)
    ends = {"same": biased, "yes": True, "no": False}[old.get("output_bias", "same")]
    biases = ("qkv" if keyed else "qv") * biased + "o" * ends
    kinds = {name.removeprefix("qk_norm_"): old[name] for name in ("qk_norm_kind", "qk_norm_over") if name in old}
    norm = {"class": "QkNorm"} | kinds if old.get("qk_norm") else None
    return {"class": "GroupedQuery"} | new | {"biases": biases, "qk_norm": norm, "scale_dim": scale}


def _positions(old: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the values of positions, made of a model's own."""
    match old.get("positions", "learned"):
        case "learned":
            return {"class": "Learned", "rows": old.get("max_positions", 0), "first": old.get("first_position", 0)}
        case "rotary":
            stretched = dict(old.get("rotary") or {})
            kind = stretched.pop("scaling", "none")
            name, fields = _SCALINGS[kind]
            scaling = {"class": name} | {field: stretched[field] for field in fields if field in stretched} if name else None
            base = old.get("rotary_base", 10_000.0)
            return {"class": "Rotary", "base": base, "dims": stretched.get("dims", 0), "scaling": scaling}
        case "relative" | "relative_shared" as kind:
            sizes = {name: old[name] for name in ("buckets", "max_distance") if name in old}
            return {"class": "RelativeBuckets", "shared": kind == "relative_shared"} | sizes
        case "sinusoidal":
            return {"class": "Sinusoidal"}
        case other:
            return None if other == "none" else {"class": other}


_SCALINGS = {
    "none": ("", ()),
    "linear": ("Interpolation", ("factor",)),
    "llama3": ("Llama3", ("factor", "original", "low", "high")),
    "yarn": ("Yarn", ("factor", "original", "beta_fast", "beta_slow", "whole", "amplitude")),
    "longrope": ("LongRope", ("original", "short", "long", "amplitude")),
}


def _mixture(old: dict[str, Any]) -> dict[str, Any]:
    """Returns a mixture's values of one class as those of its parts."""
    gating = str(old.get("gating", "top2"))
    gating = _ROUTERS.get(gating, gating)
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
