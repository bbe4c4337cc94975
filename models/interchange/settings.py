"""Settings of foreign configurations as tables: a row is read, written and refused by the same line.

    SETTINGS = (
        Setting("num_hidden_layers", "layers", int),
        Setting("hidden_act", "feed_forward.activation", Activation, "gelu"),
        also("attention_dropout", "dropout"),
        fixed("scale_embedding", True),
    )

`ModelType` has a table and what all models of one `model_type` share. Our side of a row is the dotted path of a field.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from models.errors import nearest, shortened
from models.interchange.tensors import InterchangeError
from models.parts.nested import changed

Fields = dict[str, Any]  # values of our fields by their dotted paths
Settings = Mapping[str, Any]  # a config.json

# Their names of activations; of several names of one, the last is written.
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "swish": "silu",
    "silu": "silu",
}
_REQUIRED = object()
# Of any size, and of layers or experts, each of which has names: nobody has built as many.
_MOST, _MOST_PARTS = 2**31 - 1, 2**14


# The fields of layers as most released models have them; those of others say what differs.
STANDARD: Fields = {
    "norm.kind": "layer",
    "norm.bias": True,
    "feed_forward.gated": False,
    "feed_forward.bias": True,
    "attention.class": lambda c: "GroupedQuery",
    "attention.biases": "qkvo",
    "attention.qk_norm": None,
    "attention.sinks": False,
    "attention.scale_dim": 0.0,
    "attention.per_dim_scale": False,
    "attention.logit_cap": 0.0,
    "attention.pattern": (),
}
# Those of models whose heads `head_count` or `stacks` reads.
MULTI_HEAD: Fields = STANDARD | {
    "attention.groups": lambda c: c.attention.heads,
    "attention.head_dim": lambda c: c.model_dim // c.attention.heads,
}


def without(fields: Fields, *paths: str) -> Fields:
    """Returns fields but those about which rows decide."""
    return {path: value for path, value in fields.items() if path not in paths}


# --- single settings ---


def setting(theirs: Settings, key: str, kind: type, default: Any = _REQUIRED) -> Any:
    """Returns a number, word or flag of a config.json; null gives the default. Raises InterchangeError."""
    value = theirs.get(key)
    if value is None and default is not _REQUIRED:
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


def read_activation(name: str) -> Any:
    """Returns our name of an activation; raises InterchangeError."""
    if name not in _ACTIVATIONS:
        name = shortened(name)
        raise InterchangeError(f"config.json: no activation {name!r} here{nearest(name, _ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def write_activation(ours: str) -> str:
    """Returns their name of an activation."""
    return {name: theirs for theirs, name in _ACTIVATIONS.items()}[ours]


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


# --- rows ---


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of a table.

    Attributes:
      read: returns the fields of ours that settings decide; raises InterchangeError for settings that we do not support.
      write: returns the settings of a configuration; raises InterchangeError where they cannot say it.
      absent: what absent keys mean.
    """

    read: Callable[[Settings], Fields] = lambda theirs: {}
    write: Callable[[Any], dict[str, Any]] = lambda c: {}
    absent: Settings = dataclasses.field(default_factory=dict)


class Activation:
    """The kind of a setting that names an activation (see `Setting`)."""


class Setting(Row):
    """The row of a setting and the field that it decides.

    Args:
      key: its name in a config.json.
      path: our field; a name in several with the same value, of which the first is written.
      kind: the type of its value, or Activation.
      default: the value of an absent or null key; without one it is needed.
      decode: makes our value of theirs.
      encode: makes their value of ours.
    """

    def __init__(
        self,
        key: str,
        path: str | tuple[str, ...],
        kind: type,
        default: Any = _REQUIRED,
        decode: Callable[[Any], Any] = lambda value: value,
        encode: Callable[[Any], Any] = lambda value: value,
    ):
        paths = (path,) if isinstance(path, str) else path
        if kind is Activation:
            kind, decode, encode = str, read_activation, write_activation
        super().__init__(
            lambda theirs: dict.fromkeys(paths, decode(setting(theirs, key, kind, default))),
            lambda c: {key: encode(value_at(c, paths[0]))},
            {} if default is _REQUIRED else {key: default},
        )


def also(key: str, path: str, encode: Callable[[Any], Any] = lambda value: value) -> Row:
    """Returns the row of a setting that is written and never read: it does not change what our models compute."""
    return Row(write=lambda c: {key: encode(value_at(c, path))})


def constant(key: str, value: Any) -> Row:
    """Returns the row of a setting that is always written so, and not read."""
    return Row(write=lambda c: {key: value})


def allowed(key: str, *values: Any) -> Row:
    """Returns the row of a setting that may be absent or have these values, and is not written."""
    return Row(lambda theirs: only(theirs, **{key: values}) or {})


def fixed(key: str, *values: Any) -> Row:
    """Returns the row of a setting that may be absent or have these values, of which the first is written."""
    return Row(allowed(key, *values).read, lambda c: {key: values[0]})


def must_be(key: str, value: Any) -> Row:
    """Returns the row of a setting that has this value, as an absent one has, and is not written."""

    def read(theirs: Settings) -> Fields:
        return allowed(key, value).read({key: setting(theirs, key, type(value), value)})

    return Row(read, absent={key: value})


def choice(key: str, path: str, values: Mapping[Any, Any], default: Any) -> Row:
    """Returns the row of a setting of few values and the field that it decides.

    Args:
      values: ours, by theirs; null is one of theirs if it is among them, and else the default.
      default: their value of an absent key.
    """

    def read(theirs: Settings) -> Fields:
        only(theirs, **{key: tuple(value for value in values if value is not None)})
        value = theirs.get(key, default)
        return {path: values[value if value in values else default]}

    def write(c: Any) -> dict[str, Any]:
        if (ours := value_at(c, path)) not in values.values():
            known = " or ".join(map(repr, values.values()))
            raise InterchangeError(f"no model of Hugging Face with {key} is like this one: {path}={ours!r}, only {known}")
        return {key: next(value for value, known in values.items() if known == ours)}

    return Row(read, write, {key: default})


def head_count(key: str, width: str, default: Any = _REQUIRED, default_width: Any = _REQUIRED) -> Row:
    """Returns the row of the number of a model's heads, which have width / heads dimensions.

    Args:
      width: the key of the width, which has a row of its own; `default_width` is that of an absent or null key.
    """

    def read(theirs: Settings) -> Fields:
        return _divided(width, setting(theirs, width, int, default_width), key, setting(theirs, key, int, default))

    return Row(read, lambda c: {key: c.attention.heads}, {} if default is _REQUIRED else {key: default})


def _divided(width_key: str, width: int, key: str, heads: int) -> Fields:
    if heads < 1 or width % heads:
        raise InterchangeError(f"config.json: {width_key}={width} is no multiple of {key}={heads}")
    return {"attention.heads": heads, "attention.head_dim": width // heads}


def stacks(width: str, *, same_depth: bool) -> Row:
    """Returns the row of depth, hidden size and heads of an encoder and of a decoder, by names that begin with theirs.

    Args:
      width: the key of the width, which has a row of its own.
      same_depth: the decoder has as many layers as the encoder.
    """

    def read(theirs: Settings) -> Fields:
        heads = same_in_both(theirs, "attention_heads")
        fields = _divided(width, setting(theirs, width, int), "encoder_attention_heads", heads)
        fields["feed_forward.hidden_dim"] = same_in_both(theirs, "ffn_dim")
        if same_depth:
            return fields | {"layers": 2 * same_in_both(theirs, "layers")}
        encoder, decoder = (setting(theirs, f"{side}_layers", int) for side in ("encoder", "decoder"))
        return fields | {"layers": encoder + decoder, "decoder.layers": 0 if encoder == decoder else decoder}

    def write(c: Any) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        for side, groups in (("encoder", c.encoder_groups), ("decoder", c.decoder_groups)):
            settings[f"{side}_layers"] = groups * len(c.layer_group)
            settings |= {f"{side}_ffn_dim": c.feed_forward.hidden_dim, f"{side}_attention_heads": c.attention.heads}
        return settings

    return Row(read, write)


def same_in_both(theirs: Settings, name: str) -> int:
    """Returns a size of encoder and decoder alike, by names that begin with theirs; raises InterchangeError where they differ."""
    encoder, decoder = (setting(theirs, f"{side}_{name}", int) for side in ("encoder", "decoder"))
    if encoder != decoder:
        raise InterchangeError(f"config.json: decoder_{name}={decoder}: only as encoder_{name}={encoder}")
    return encoder


def label_names(count: int) -> dict[str, Any]:
    """Returns the settings that name this many classes."""
    names = {str(i): f"LABEL_{i}" for i in range(count)}
    return {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}} if names else {}


def read_labels(theirs: Settings) -> int:
    """Returns the number of classes: that of their names, or the number that is set, which is 2 by default."""
    return len(setting(theirs, "id2label", dict, {})) or setting(theirs, "num_labels", int, 2)


# --- tables ---


def architecture_of(theirs: Settings, known: Sequence[str]) -> str:
    """Returns the class of a config.json, the first of `known` where it names none; raises InterchangeError for another."""
    name = (setting(theirs, "architectures", list, None) or known)[0]
    if name not in known:
        name = shortened(str(name))
        raise InterchangeError(f"config.json: no output like that of {name!r} here{nearest(name, known[:1])}")
    return name


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelType:
    """The models of one `model_type` of `transformers`.

    Attributes:
      config: our configuration's class.
      name: of the models, for errors.
      architectures: their classes that are read; the first is written, unless a row says another; with none, a row reads
        and writes them.
      fields: what our fields are in all of these models, by dotted path; a model with others is not written. A function of the
        configuration is not read.
      initial: our fields that files do not say and that are written whatever they are. A class is a configuration whose fields
        others say.
      rows: their settings, in the order in which they are written.
      null_is_default: null means the default, as an absent key does; otherwise it is refused where the default is not null.
      other_defaults: what absent keys mean, where it is not what the rows say.
      nullable: keys for which null means something, though it is not their default.
    """

    config: type
    name: str
    architectures: tuple[str, ...] = ()
    fields: Fields = dataclasses.field(default_factory=dict)
    initial: Fields = dataclasses.field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    null_is_default: bool = False
    other_defaults: Settings = dataclasses.field(default_factory=dict)
    nullable: tuple[str, ...] = ()

    @property
    def defaults(self) -> dict[str, Any]:
        """Returns what absent keys mean."""
        return {key: value for row in self.rows for key, value in row.absent.items()} | dict(self.other_defaults)

    def read(self, theirs: Settings) -> Any:
        """Returns the configuration of a config.json.

        Raises:
          InterchangeError: a setting is missing, or our model does not support it.
        """
        if self.architectures:
            architecture_of(theirs, self.architectures)
        theirs = theirs if self.null_is_default else completed(theirs, self.defaults, self.nullable)
        fields = self.initial | {path: value for path, value in self.fields.items() if not callable(value)}
        for row in self.rows:
            fields |= row.read(theirs)
        return changed(self.config, fields)

    def write(self, config: Any) -> dict[str, Any]:
        """Returns the settings of a configuration.

        Raises:
          InterchangeError: `transformers` has no such model; the message names the fields that differ.
        """
        demand(config, self.name, self.fields)
        settings: dict[str, Any] = {}
        for row in self.rows:
            settings |= row.write(config)
        return settings
