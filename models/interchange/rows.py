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
from collections.abc import Callable, Mapping
from typing import Any

from models.errors import nearest, shortened
from models.interchange.settings import REQUIRED, Fields, Settings, architecture_of, completed, demand, only, setting, value_at
from models.interchange.tensors import InterchangeError
from models.parts.nested import changed

# Their names of activations; of several names of one, the last is written.
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "gelu_sigmoid",
    "swish": "silu",
    "silu": "silu",
}


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


def read_activation(name: str) -> Any:
    """Returns our name of an activation; raises InterchangeError."""
    if name not in _ACTIVATIONS:
        name = shortened(name)
        raise InterchangeError(f"config.json: no activation {name!r} here{nearest(name, _ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def write_activation(ours: str) -> str:
    """Returns their name of an activation."""
    return {name: theirs for theirs, name in _ACTIVATIONS.items()}[ours]


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
        default: Any = REQUIRED,
        decode: Callable[[Any], Any] = lambda value: value,
        encode: Callable[[Any], Any] = lambda value: value,
    ):
        paths = (path,) if isinstance(path, str) else path
        if kind is Activation:
            kind, decode, encode = str, read_activation, write_activation
        super().__init__(
            lambda theirs: dict.fromkeys(paths, decode(setting(theirs, key, kind, default))),
            lambda c: {key: encode(value_at(c, paths[0]))},
            {} if default is REQUIRED else {key: default},
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


def head_count(key: str, width: str, default: Any = REQUIRED, default_width: Any = REQUIRED) -> Row:
    """Returns the row of the number of a model's heads, which have width / heads dimensions.

    Args:
      width: the key of the width, which has a row of its own; `default_width` is that of an absent or null key.
    """

    def read(theirs: Settings) -> Fields:
        return _divided(width, setting(theirs, width, int, default_width), key, setting(theirs, key, int, default))

    return Row(read, lambda c: {key: c.attention.heads}, {} if default is REQUIRED else {key: default})


def _divided(width_key: str, width: int, key: str, heads: int) -> Fields:
    if heads < 1 or width % heads:
        raise InterchangeError(f"config.json: {width_key}={width} is no multiple of {key}={heads}")
    return {"attention.heads": heads, "attention.head_dim": width // heads}


def sizes(activation: str, dropout: float = 0.1) -> tuple[Row, ...]:
    """Returns the rows of the settings that encoder-decoders of BART's form share: sizes, activation and rates of dropout, with
    their defaults."""
    return (
        constant("is_encoder_decoder", True),
        Setting("vocab_size", "vocab", int),
        Setting("d_model", "model_dim", int),
        Setting("activation_function", "feed_forward.activation", Activation, activation),
        Setting("dropout", "dropout", float, dropout),
        also("attention_dropout", "dropout"),
        Setting("activation_dropout", "feed_forward.dropout", float, 0.0),
        allowed("tie_word_embeddings", True),
    )


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
        """Returns the configuration of a config.json. Raises InterchangeError where a setting is missing, or our model does not
        support it."""
        if self.architectures:
            architecture_of(theirs, self.architectures)
        theirs = theirs if self.null_is_default else completed(theirs, self.defaults, self.nullable)
        fields = self.initial | {path: value for path, value in self.fields.items() if not callable(value)}
        for row in self.rows:
            fields |= row.read(theirs)
        return changed(self.config, fields)

    def write(self, config: Any) -> dict[str, Any]:
        """Returns the settings of a configuration. Raises InterchangeError where `transformers` has no such model; the message
        names the fields that differ."""
        demand(config, self.name, self.fields)
        settings: dict[str, Any] = {}
        for row in self.rows:
            settings |= row.write(config)
        return settings
