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
from typing import Any, NamedTuple

import numpy as np

from configs.experiment import Lora
from data import paths, untrusted
from models.errors import nearest, shortened
from models.interchange import Entry, Index, InterchangeError, Part
from models.parts.low_rank import update
from trainers.lora import PREFIX
from trainers.weights import tensor_files
from trainers.weights.huggingface import interchange_for, write_json
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


class _Update(NamedTuple):
    """The change of one of our parameters: A and B, with the scale in B, and how many of their dimensions are stacked."""

    a: np.ndarray
    b: np.ndarray
    stacked: int


def _read(folder: Path, base: Weights) -> dict[str, _Update]:
    """Returns the changes of our parameters that are adapted, by name."""
    config, file = _config(folder), TensorFile(folder / TENSORS)
    _check_settings(config, folder / CONFIG)
    interchange = interchange_for(base.config.family)
    entries = (entry for entry in interchange.readable_entries(base.config) if entry.parts[0].inputs and not entry.file)
    places = {name: (e, at) for e in entries for at, name in zip(np.ndindex(e.stacked), e.names(), strict=True)}
    modules = _modules(file)
    most, patterns = max((file.shapes[f"{module}{_A}"][0] for module in modules), default=0), Patterns()
    updates: dict[str, _Update] = {}
    for module in modules:
        name = module.removeprefix(_ROOT)
        theirs = interchange.canonical_name(base.config, f"{name}.weight")
        if theirs not in places:
            known = nearest(name, [place.removesuffix(".weight") for place in places])
            raise InterchangeError(f"{file.path}: no projection {shortened(name)}{known}")
        entry, at = places[theirs]
        a, b = _halves(file, module, entry)
        with untrusted.damage(folder / CONFIG, InterchangeError):
            b = _scale(config, patterns, name, len(a)) * b
        sides = dataclasses.replace(entry, transposed=True, parts=tuple(_side(part, len(a)) for part in entry.parts))
        for part, half in zip(entry.parts, sides.split(b), strict=True):
            inputs, outputs = part.shape[: part.inputs], part.shape[part.inputs :]
            if part.name not in updates:
                a_shape, b_shape = (*entry.stacked, *inputs, most), (*entry.stacked, most, *outputs)
                zeros = np.zeros(a_shape, np.float32), np.zeros(b_shape, np.float32)
                updates[part.name] = _Update(*zeros, len(entry.stacked))
            updates[part.name].a[at][..., : len(a)] = a.T.reshape(*inputs, len(a))
            updates[part.name].b[at][: len(a)] = half
    return updates


def _check_settings(config: Mapping[str, Any], path: Path) -> None:
    """Raises InterchangeError for a setting by which an adapter would be more than W + s A B."""
    for key, value in config.items():
        known = _PLAIN.get(key, ())
        if key not in _READ and (value or key in _PLAIN) and value not in known:
            only = f", only {json.dumps(known[0])}" if known else ""
            raise InterchangeError(f"{path}: {shortened(key)}={json.dumps(value)[:60]} is not supported{only}")


def _modules(file: TensorFile) -> list[str]:
    """Returns the modules of which a file has both matrices; raises InterchangeError if it has anything else."""
    file.require_floats(file.shapes)
    modules = {name.removesuffix(side) for name in file.shapes for side in (_A, _B) if name.endswith(side)}
    if odd := sorted(set(file.shapes) - {module + side for module in modules for side in (_A, _B)}):
        raise InterchangeError(f"{file.path}: {shortened(odd[0])} is no low-rank matrix of a projection, or lacks its other half")
    for module in sorted(modules):
        if not {module + _A, module + _B} <= set(file.shapes):
            raise InterchangeError(f"{file.path}: {shortened(module)} has one of lora_A and lora_B alone")
    return sorted(modules)


def _halves(file: TensorFile, module: str, entry: Entry) -> tuple[np.ndarray, np.ndarray]:
    """Returns their A [r, in] and B [out, r] of a module; raises InterchangeError if they do not fit its matrix."""
    a, b = (np.asarray(file(f"{module}{side}"), np.float32) for side in (_A, _B))
    rank, inputs, outputs = a.shape[0], entry.parts[0].flat[0], sum(part.flat[-1] for part in entry.parts)
    if a.shape != (rank, inputs) or b.shape != (outputs, rank):
        raise InterchangeError(
            f"{file.path}: {shortened(module)} has lora_A {list(a.shape)} and lora_B {list(b.shape)}, expected [r, {inputs}] "
            f"and [{outputs}, r]"
        )
    return a, b


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
    names = {name.removeprefix(PREFIX).removesuffix(".a") for name in flat if name.endswith(".a")}
    if not names:
        raise InterchangeError("the run has no adapters: it trained whole matrices")
    entries = [e for e in interchange_for(model.family).entries(model) if _is_projection(e) and names & _parts(e).keys()]
    if left := names - {name for entry in entries for name in _parts(entry)}:
        raise InterchangeError(f"{min(left)} is adapted, and no projection of `transformers`: PEFT has no such form of it")
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    for entry in entries:
        adapted = [part for name, part in _parts(entry).items() if name in names]
        for at, name in zip(np.ndindex(entry.stacked), entry.names(), strict=True):
            module = name.removesuffix(".weight")
            a, b = _joined(entry, adapted, flat, at, lora.rank)
            tensors[f"{_ROOT}{module}{_A}"], tensors[f"{_ROOT}{module}{_B}"] = a, b
            ranks[module] = len(a)
    config = _settings(ranks, lora, base, transposed=all(entry.transposed for entry in entries))
    with paths.new_folder(to.absolute()) as folder:
        shapes = {name: x.shape for name, x in tensors.items()}
        tensor_files.write(folder / TENSORS, shapes, ((name, (x,)) for name, x in tensors.items()), {"format": "pt"})
        write_json(folder / CONFIG, config)
    return to


def _parts(entry: Entry) -> dict[str, Part]:
    return {part.name: part for part in entry.parts}


def _is_projection(entry: Entry) -> bool:
    """Returns whether PEFT adapts a tensor: a module's matrix, and no table."""
    return entry.theirs.endswith(".weight") and "embed" not in entry.theirs and not entry.file


def _settings(ranks: Mapping[str, int], lora: Lora, base: str, *, transposed: bool) -> dict[str, Any]:
    """Returns the adapter_config.json of modules of these ranks, whose matrices are stored as [out, in] if `transposed`."""
    wide = {module: rank for module, rank in ranks.items() if rank != lora.rank}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": sorted({module.rpartition(".")[2] for module in ranks}),
        "rank_pattern": wide,
        "alpha_pattern": {module: lora.alpha * rank / lora.rank for module, rank in wide.items()},
        "fan_in_fan_out": not transposed,
        "bias": "none",
        "inference_mode": True,
    }


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
