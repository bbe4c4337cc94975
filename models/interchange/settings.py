"""Single settings of foreign configurations: read, refused, and compared with ours. rows.py has tables of them."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from models.errors import nearest, shortened
from models.interchange.tensors import InterchangeError

Fields = dict[str, Any]  # values of our fields by their dotted paths
Settings = Mapping[str, Any]  # a config.json

REQUIRED = object()
# Of any size, and of layers or experts, each of which has names: nobody has built as many.
_MOST, _MOST_PARTS = 2**31 - 1, 2**14


def under(part: str, **values: Any) -> Fields:
    """Returns values of fields that are one part's, such as "norm" or "moe.router"."""
    return {f"{part}.{name}": value for name, value in values.items()}


# The fields of layers as most released models have them; those of others say what differs.
STANDARD: Fields = {
    **under("norm", kind="layer", bias=True, branch_scale=1.0, embedding=False),
    **under("feed_forward", gated=False, bias=True),
    "attention.class": lambda c: "GroupedQuery",
    **under("attention", biases="qkvo", qk_norm=None, sinks=False, scale_dim=0.0, per_dim_scale=False, logit_cap=0.0, pattern=()),
}
# Those of models whose heads `head_count` or `stacks` reads.
MULTI_HEAD: Fields = STANDARD | {
    "attention.groups": lambda c: c.attention.heads,
    "attention.head_dim": lambda c: c.model_dim // c.attention.heads,
}


def without(fields: Fields, *paths: str) -> Fields:
    """Returns fields but those about which rows decide."""
    return {path: value for path, value in fields.items() if path not in paths}


def setting(theirs: Settings, key: str, kind: type, default: Any = REQUIRED) -> Any:
    """Returns a number, word or flag of a config.json; null gives the default. Raises InterchangeError."""
    value = theirs.get(key)
    if value is None and default is not REQUIRED:
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1023:
        value = float(value)
    if type(value) is not kind:
        problem = "is missing" if value is None else f"is {json.dumps(value)[:60]}"
        raise InterchangeError(f"config.json: {key} {problem}; expected {kind.__name__}")
    most = _MOST_PARTS if re.search("layer|block|depth|expert", key) else _MOST
    if isinstance(value, int) and abs(value) > most:
        raise InterchangeError(f"config.json: {key} is {shortened(str(value), 30)}, and at most {most:,} in any model")
    return value


def completed(theirs: Settings, defaults: Settings, nullable: Collection[str] = ()) -> dict[str, Any]:
    """Returns a config.json with a model's defaults in place of absent keys.

    Args:
      nullable: keys for which null means something, though it is not their default.

    Raises:
      InterchangeError: any other key is null whose default is not, which `transformers` refuses or fails at.
    """
    for key, default in defaults.items():
        if theirs.get(key, default) is None and default is not None and key not in nullable:
            raise InterchangeError(f"config.json: {key} is null; left out, it would be {json.dumps(default)}")
    return {**defaults, **theirs}


def only(theirs: Settings, **supported: tuple[Any, ...]) -> None:
    """Raises InterchangeError if a setting has a value that our models don't support; a missing one is null."""
    for key, values in supported.items():
        if (value := theirs.get(key)) is not None and value not in values:
            known = " or ".join(json.dumps(v) for v in values or (None,))
            raise InterchangeError(f"config.json: {key}={json.dumps(value)[:60]} is not supported, only {known}")


def value_at(config: Any, path: str) -> Any:
    """Returns the field or property of a configuration at a dotted path, of which "class" is the name of a union's class; None
    where its class has no such field. Raises InterchangeError where it lies below None."""
    head, _, inner = path.partition(".")
    value = type(config).__name__ if head == "class" else getattr(config, head, None)
    if inner and value is None:
        raise InterchangeError(f"no such model of Hugging Face is like this model, which has {head}=None")
    return value_at(value, inner) if inner else value


def demand(config: Any, target: str, needs: Fields) -> None:
    """Raises InterchangeError, with all differences, unless fields and properties have the values that `target` needs.

    Args:
      needs: values by dotted path; one that other fields decide is a function of the configuration.
    """
    wanted = {path: need(config) if callable(need) else need for path, need in needs.items()}
    wrong = [f"{k}={value!r} (it has {v!r})" for k, v in wanted.items() if (value := value_at(config, k)) != v]
    if wrong:
        raise InterchangeError(f"no {target} of Hugging Face is like this model: {', '.join(wrong)}")


def label_names(count: int) -> dict[str, Any]:
    """Returns the settings that name this many classes."""
    names = {str(i): f"LABEL_{i}" for i in range(count)}
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}} if names else {}


def read_labels(theirs: Settings) -> int:
    """Returns the number of classes: that of their names, or the number that is set, which is 2 by default."""
    return len(setting(theirs, "id2label", dict, {})) or setting(theirs, "num_labels", int, 2)


def architecture_of(theirs: Settings, known: Sequence[str]) -> str:
    """Returns the class of a config.json, the first of `known` where it names none; raises InterchangeError for another."""
    name = (setting(theirs, "architectures", list, None) or known)[0]
    if name not in known:
        name = shortened(str(name))
        raise InterchangeError(f"config.json: no output like that of {name!r} here{nearest(name, known[:1])}")
    return name
