"""Adapters in the form of PEFT: adapter_config.json and adapter_model.safetensors, read and written.

    base_model.model.<module>.lora_A.weight   [r, in]
    base_model.model.<module>.lora_B.weight   [out, r]

A module is one tensor of `transformers`, of which several parameters of ours may be parts (GPT-2's queries, keys and values,
Phi's gate and up). Theirs share A; ours have one each. Read, each gets a copy of it; written, the module's rank is the sum of
theirs and B has blocks, which is the same function.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from configs.experiment import Lora
from data import paths, untrusted
from models.errors import nearest, shortened
from models.families import interchange_of
from models.interchange import Entry, Index, InterchangeError, Part
from models.parts.low_rank import update
from trainers.adapt import PREFIX
from trainers.weights import tensor_files
from trainers.weights.huggingface import write_json
from trainers.weights.patterns import Patterns
from trainers.weights.source import Weights
from trainers.weights.tensor_files import TensorFile

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_ROOT, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
# Settings by which an adapter would be more than W + s A B, and their values without effect; others than these and those in
# _READ must not be set.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian", "orthogonal"),  # others change the matrices themselves
}
_READ = (
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "target_modules",
    "task_type",
    "use_rslora",
)


def is_adapter(path: Path) -> bool:
    """Returns whether a folder holds an adapter alone."""
    return (path / CONFIG).exists()


def base_of(folder: Path) -> str:
    """Returns the name of the model that an adapter belongs to, as its configuration has it: a path, or a name on a hub."""
    return str(_config(folder).get("base_model_name_or_path") or "")


class Peft:
    """An adapter merged into its base, as weights to start from (see trainers.weights.source): a piece at a time, as it is read.

    Args:
      base: the weights that it belongs to.

    Raises:
      InterchangeError: the adapter is not one of low-rank matrices alone, or not of this model.
    """

    def __init__(self, folder: Path, base: Weights):
        self.base, self.config, self.vocabulary = base, base.config, base.vocabulary
        self.shapes, self.stored = base.shapes, base.stored
        self._updates = _read(folder, base)

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Returns a piece of the parameter of this name."""
        piece = self.base.read(name, index)
        if name not in self._updates:
            return piece
        a, b, stacked = self._updates[name]
        lead, shape = tuple(index[:stacked]), list(self.shapes[name])
        a, b = a[lead], b[lead]
        shape[:stacked] = a.shape[:stacked]
        whole = update(a, b, tuple(shape), 1.0)
        return piece + whole[(slice(None),) * stacked + tuple(index[stacked:])]


def _config(folder: Path) -> dict[str, Any]:
    return untrusted.read_json(folder / CONFIG, InterchangeError)


def _read(folder: Path, base: Weights) -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    """Returns A, B with the scale in it, and the number of stacked dimensions, of each of our parameters that is adapted."""
    config = _config(folder)
    for key, value in config.items():
        known = _PLAIN.get(key, ())
        if key not in _READ and (value or key in _PLAIN) and value not in known:
            only = f", only {json.dumps(known[0])}" if known else ""
            set_to = f"{shortened(key)}={json.dumps(value)[:60]}"
            raise InterchangeError(f"{folder / CONFIG}: {set_to} is not supported{only}")
    mapping = interchange_of(base.config.family)
    if mapping is None:
        raise InterchangeError(f"models of family {base.config.family!r} have no Hugging Face form, which an adapter belongs to")
    places = {
        name: (entry, at)
        for entry in mapping.entries(base.config)
        if entry.parts[0].inputs and not entry.file
        for at, name in zip(np.ndindex(entry.stacked), entry.names(), strict=True)
    }
    file = TensorFile(folder / TENSORS)
    file.require_floats(file.shapes)
    updates: dict[str, tuple[np.ndarray, np.ndarray, int]] = {}
    modules = {name.removesuffix(side) for name in file.shapes for side in (_A, _B) if name.endswith(side)}
    if odd := sorted(set(file.shapes) - {module + side for module in modules for side in (_A, _B)}):
        raise InterchangeError(
            f"{folder / TENSORS}: {shortened(odd[0])} is no low-rank matrix of a projection, or lacks its other half"
        )
    ranks = {module: file.shapes[module + _A][0] for module in modules if module + _A in file.shapes}
    patterns = Patterns()
    for module in sorted(modules):
        name = module.removeprefix(_ROOT)
        theirs = mapping.canonical(base.config, f"{name}.weight")
        if theirs not in places:
            known = nearest(name, [place.removesuffix(".weight") for place in places])
            raise InterchangeError(f"{folder / TENSORS}: no projection {shortened(name)}{known}")
        entry, at = places[theirs]
        if not {module + _A, module + _B} <= set(file.shapes):
            raise InterchangeError(f"{folder / TENSORS}: {shortened(module)} has one of lora_A and lora_B alone")
        a, b = np.asarray(file(module + _A), np.float32), np.asarray(file(module + _B), np.float32)
        rank = ranks[module]
        inputs = entry.parts[0].flat[0]
        outputs = [part.flat[-1] for part in entry.parts]
        if a.shape != (rank, inputs) or b.shape != (sum(outputs), rank):
            raise InterchangeError(
                f"{folder / TENSORS}: {shortened(module)} has lora_A {list(a.shape)} and lora_B {list(b.shape)}, expected "
                f"[r, {inputs}] and [{sum(outputs)}, r]"
            )
        with untrusted.damage(folder / CONFIG, InterchangeError):
            b = _scale(config, patterns, name, rank) * b
        halves = dataclasses.replace(entry, transposed=True, parts=tuple(_side(part, rank) for part in entry.parts))
        for part, half in zip(entry.parts, halves.split(b), strict=True):
            if part.name not in updates:
                most, dims = max(ranks.values()), part.shape[: part.inputs]
                updates[part.name] = (
                    np.zeros((*entry.stacked, *dims, most), np.float32),
                    np.zeros((*entry.stacked, most, *part.shape[part.inputs :]), np.float32),
                    len(entry.stacked),
                )
            all_a, all_b, _ = updates[part.name]
            all_a[at][..., :rank] = a.T.reshape(*part.shape[: part.inputs], rank)
            all_b[at][:rank] = half
    return updates


def _side(part: Part, rank: int) -> Part:
    """Returns B of a part, as a matrix of its own: from the rank to the part's outputs."""
    return Part(part.name, (rank, *part.shape[part.inputs :]), 1)


def _scale(config: Mapping[str, Any], patterns: Patterns, module: str, rank: int) -> float:
    """Returns alpha / r of a module, or alpha / sqrt(r) with rank-stabilised LoRA.

    `alpha_pattern` has alphas by regular expression; the first one that a module's name, or its end behind a dot, matches
    counts (`get_pattern_key` of PEFT 0.21).
    """
    starts = [0, *(match.end() for match in re.finditer(r"\.", module))]
    alphas = (config.get("alpha_pattern") or {}).items()
    alpha = next((value for key, value in alphas if patterns.matches(key, module, starts)), config.get("lora_alpha", 8))
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not np.isfinite(alpha):
        raise ValueError(f"alpha of {module} is {shortened(json.dumps(alpha))}, which is no finite number")
    return alpha / (rank**0.5 if config.get("use_rslora") else rank)


def write(model: Any, params: dict[str, Any], lora: Lora, to: Path, base: str) -> Path:
    """Writes a run's adapters in PEFT's form.

    Args:
      model: the model's configuration.
      params: the run's parameters, adapters included.
      base: the name or path of the base model, for the configuration.

    Raises:
      InterchangeError: `to` exists, there is nothing to write, or an adapted matrix is no projection of `transformers`.
    """
    if to.exists():
        raise InterchangeError(f"{to} exists; choose a new folder")
    flat = {name: np.asarray(x) for name, x in params.items() if name.startswith(PREFIX)}
    left = {name.removeprefix(PREFIX).removesuffix(".a") for name in flat if name.endswith(".a")}
    if not left:
        raise InterchangeError("the run has no adapters: it trained whole matrices")
    mapping = interchange_of(model.family)
    if mapping is None:
        raise InterchangeError(f"models of family {model.family!r} have no Hugging Face form, which an adapter belongs to")
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    plain = True
    for entry in mapping.entries(model):
        adapted = [part for part in entry.parts if part.name in left]
        if not adapted or not entry.theirs.endswith(".weight") or entry.theirs.count("embed") or entry.file:
            continue
        left -= {part.name for part in adapted}
        plain &= entry.transposed
        rank = lora.rank * len(adapted)
        for at, name in zip(np.ndindex(entry.stacked), entry.names(), strict=True):
            module = name.removesuffix(".weight")
            a, b = _joined(entry, adapted, flat, at, lora.rank)
            tensors[f"{_ROOT}{module}{_A}"], tensors[f"{_ROOT}{module}{_B}"] = a, b
            ranks[module] = rank
    if left:
        raise InterchangeError(f"{sorted(left)[0]} is adapted, and no projection of `transformers`: PEFT has no such form of it")
    wide = {module: rank for module, rank in ranks.items() if rank != lora.rank}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({module.rpartition(".")[2] for module in ranks}),
        "rank_pattern": wide,
        "alpha_pattern": {module: lora.alpha * rank / lora.rank for module, rank in wide.items()},
        "fan_in_fan_out": not plain,
        "bias": "none",
        "inference_mode": True,
    }
    with paths.new_folder(to.absolute()) as folder:
        shapes = {name: x.shape for name, x in tensors.items()}
        tensor_files.write(folder / TENSORS, shapes, ((name, (x,)) for name, x in tensors.items()), {"format": "pt"})
        write_json(folder / CONFIG, config)
    return to


def _joined(
    entry: Entry, adapted: list[Part], flat: Mapping[str, np.ndarray], at: tuple[int, ...], rank: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns their A [r, in] and B [out, r] of one layer and expert, from ours of the parts that are adapted."""
    names = [part.name for part in adapted]
    a = np.concatenate([flat[f"{PREFIX}{name}.a"][at].reshape(-1, rank) for name in names], axis=1).T
    total, blocks = rank * len(adapted), []
    for part in entry.parts:
        block = np.zeros((total, *part.shape[part.inputs :]), np.float32)
        if part.name in names:
            i = names.index(part.name)
            block[i * rank : (i + 1) * rank] = flat[f"{PREFIX}{part.name}.b"][at]
        blocks.append(block)
    halves = dataclasses.replace(entry, transposed=True, parts=tuple(_side(part, total) for part in entry.parts))
    return np.ascontiguousarray(a), np.ascontiguousarray(halves.join(blocks))
