"""The files beside the model of a sentence encoder, as the library sentence-transformers writes them.

modules.json lists what a text goes through: the model, what makes one vector of its tokens' (1_Pooling/config.json), and perhaps
a norm, which changes no cosine: ours have length 1 always. sentence_bert_config.json bounds texts, and
config_sentence_transformers.json has prompts: texts that stand before another, by name, such as "query: ".
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data import untrusted
from models.errors import nearest, shortened
from models.interchange import InterchangeError

MODULES, LIMITS, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
_POOLING = "1_Pooling"
_VECTORS = {"mean": "mean", "cls": "first", "lasttoken": "last"}  # their names of a mode: ours
# Their keys of modes; newer files have one key for all, with the name.
_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "lasttoken"}
_KINDS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])


def read(folder: Path) -> dict[str, Any]:
    """Returns {"sentence_vector": "mean", "first" or "last"}, what a text's vector is made of, and {} where nothing says that the
    folder is a sentence encoder; raises InterchangeError for one of another form."""
    path = folder / MODULES
    if not path.exists():
        return {}
    modules = untrusted.read_json(path, InterchangeError, list)
    if wrong := [m for m in modules if not (isinstance(m, dict) and all(isinstance(m.get(k), str) for k in ("type", "path")))]:
        raise InterchangeError(f"{path}: {shortened(str(wrong[0]))} is no module, with a type and a path")
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if kinds not in _KINDS:
        names = shortened(", ".join(kinds))
        raise InterchangeError(f"{path}: no encoder of {names or 'nothing'} here, only of {', '.join(_KINDS[1])}")
    file = untrusted.member(folder, f"{modules[1]['path']}/config.json", InterchangeError)
    pooling = untrusted.read_json(file, InterchangeError)
    if pooling.get("include_prompt", True) is not True:
        raise InterchangeError(f"{file}: include_prompt={json.dumps(pooling['include_prompt'])} is not supported, only true")
    return {"sentence_vector": _vector(pooling, file)}


def _vector(pooling: Mapping[str, Any], file: Path) -> str:
    on = [_MODES.get(key, key) for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True]
    modes = [pooling["pooling_mode"]] if "pooling_mode" in pooling else on or ["mean"]
    wrong = [mode for mode in modes if not isinstance(mode, str) or mode not in _VECTORS]
    if wrong or len(modes) > 1:
        named = shortened(", ".join(map(str, wrong or modes)))
        raise InterchangeError(f"{file}: no vector by {named} here, only by one of {', '.join(_VECTORS)}")
    return _VECTORS[modes[0]]


def prompt(folder: Path, name: str = "") -> str:
    """Returns the prompt of this name, or the folder's default one, which may be "". Raises InterchangeError for a name that is
    not there."""
    path = folder / PROMPTS
    settings = untrusted.read_json(path, InterchangeError) if path.exists() else {}
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise InterchangeError(f"{path}: prompts are no texts by name")
    name = name or settings.get("default_prompt_name") or ""
    if name and name not in prompts:
        known = nearest(str(name), prompts) if prompts else "; it has none"
        raise InterchangeError(f"{folder}: no prompt {shortened(str(name))!r}{known}")
    return prompts[name] if name else ""


def write(folder: Path, vector: str, dim: int, source: Path | None) -> None:
    """Writes the files of an encoder whose vectors, of so many dimensions, are made so; limits and prompts are those of the
    folder `source`, where it has some."""
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(_KINDS[1], ("", _POOLING, "2_Normalize"), strict=True))
    ]
    modes = {key: _VECTORS[mode] == vector for key, mode in _MODES.items()}
    (folder / _POOLING).mkdir()
    (folder / "2_Normalize").mkdir()
    for file, content in ((MODULES, modules), (f"{_POOLING}/config.json", {"word_embedding_dimension": dim, **modes})):
        (folder / file).write_text(json.dumps(content, indent=2) + "\n")
    for name in (LIMITS, PROMPTS):
        if source and (source / name).is_file():
            shutil.copy(source / name, folder / name)
