"""The common part of the classes of `transformers` of LLaMA's shape: a table of settings to which each adds its own. No JAX."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from models.gpt.config import GptConfig
from models.gpt.huggingface import rope
from models.interchange import InterchangeError
from models.interchange.rows import Activation, ModelType, Row, Setting, allowed, constant
from models.interchange.settings import STANDARD, Fields, Settings, setting, under, without
from models.parts.attention.config import LayerVariant, NormKind, QkNorm, Rotary

SLIDING, FULL = "sliding_attention", "full_attention"  # their names of layers with and without a window
_ORIGINAL = "original_max_position_embeddings"  # beside the settings of rotary positions, in Phi's files
# What absent keys mean to all, where a class says nothing else.
DEFAULTS: Fields = dict(
    num_key_value_heads=None,
    head_dim=None,
    hidden_act="silu",
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    attention_dropout=0.0,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attention_bias=False,
    mlp_bias=False,
    max_position_embeddings=2048,
)
# For which null is not the default, but the other choice: as many heads, no window, no cap.
_NULLABLE = ("num_key_value_heads", "sliding_window", "final_logit_softcapping", "attn_logit_softcapping", "attention_dropout")
# What LLaMA has no choice of.
_PLAIN: Fields = without(STANDARD, "attention.biases", "feed_forward.bias") | {
    "positions.class": lambda c: "Rotary",
    **under("norm", order="pre", kind="rms", bias=False),
    "feed_forward.gated": True,
    **under("output", cap=0.0, bias=False, mtp=0.0, divisor=1.0),
    "embedding_scale": 1.0,
    "prefix": False,
    "moe": None,
}
Biases = tuple[bool | None, bool | None, bool | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect(ModelType):
    """A class of `transformers` of LLaMA's shape.

    Attributes:
      same: keys that name one setting, of which `transformers` reads any; the first is in `other_defaults`.
      fused: queries, keys and values are one tensor, and so are a feed-forward network's gate and its other input.
    """

    same: tuple[str, ...] = ()
    fused: bool = False

    def read(self, theirs: Settings) -> GptConfig:
        """Returns the configuration of a config.json, in which each setting may have one of several names."""
        given = {key: theirs[key] for key in self.same if key in theirs}
        if len(set(map(str, given.values()))) > 1:
            raise InterchangeError(f"config.json: {' and '.join(given)} are not the same: {list(given.values())}"[:200])
        first = dict(zip(self.same[:1], given.values(), strict=False))
        return super().read({key: value for key, value in theirs.items() if key not in given} | first)


def dialect(
    kind: str,
    name: str,
    *rows: Row,
    defaults: Settings | None = None,
    nullable: tuple[str, ...] = (),
    fields: Fields | None = None,
    initial: Fields | None = None,
    free: tuple[str, ...] = (),
    biases: Biases = (None, None, None),
    heads: Row | None = None,
    rotary: Callable[[str], Row] | None = None,
    **more: Any,
) -> dict[str, Dialect]:
    """Returns a class of `transformers`, by its model type.

    Args:
      name: of the classes, before "ForCausalLM" and "Model".
      rows: the settings that LLaMA does not have; what they read stands for what LLaMA's rows read.
      defaults: what absent keys mean, where it is not what they mean to LLaMA.
      fields: what LLaMA has no choice of, where it is something else in these models.
      free: fields that LLaMA has no choice of, but these models have.
      biases: of queries, keys and values; of attention's output; of feed-forward networks. None is what the config says, by
        attention_bias and mlp_bias.
      heads: the row of heads.
      rotary: makes the row of rotary positions.
      nullable, initial, more: as of Dialect.
    """
    own = DEFAULTS | dict(defaults or {})
    activation = "hidden_activation" if "hidden_activation" in own else "hidden_act"
    bare = f"{name}TextModel" if kind.endswith("_text") else f"{name}Model"
    shared = (
        Setting("vocab_size", "vocab", int),
        Setting("tie_word_embeddings", "output.tied", bool),
        *(constant(f"{token}_token_id", None) for token in ("bos", "eos", "pad")),  # the defaults are those of the first release
        allowed("pretraining_tp", 1),
        allowed("use_bidirectional_attention", False),
        Setting("num_hidden_layers", "layers", int),
        Setting("hidden_size", "model_dim", int),
        Setting("intermediate_size", "feed_forward.hidden_dim", int),
        heads or Row(_read_heads, write_heads),
        Setting(activation, "feed_forward.activation", Activation),
        Setting("rms_norm_eps", "norm.eps", float),
        _biases(name, biases),
        Row(_read_dropout, lambda c: {"attention_dropout": c.dropout}),
        (rotary or rotary_row())(name),
    )
    return {
        kind: Dialect(
            config=GptConfig,
            name=name,
            architectures=(f"{name}ForCausalLM", bare),
            fields=without(_PLAIN, *free) | (fields or {}),
            initial={"dialect": kind} | (initial or {}),
            rows=(*shared, *rows),
            other_defaults=own,
            nullable=_NULLABLE + nullable,
            **more,
        )
    }


def _read_heads(theirs: Settings) -> Fields:
    width, heads = setting(theirs, "hidden_size", int), setting(theirs, "num_attention_heads", int)
    kv_heads = setting(theirs, "num_key_value_heads", int, heads)
    if heads % kv_heads:
        raise InterchangeError(f"config.json: num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    head_dim = setting(theirs, "head_dim", int, width // heads)
    return {"attention.heads": heads, "attention.head_dim": head_dim, "attention.kv_heads": 0 if kv_heads == heads else kv_heads}


def write_heads(c: GptConfig) -> dict[str, Any]:
    """Returns the settings of heads; raises InterchangeError for a width that they do not divide."""
    if c.model_dim % c.attention.heads:
        raise InterchangeError(
            f"Hugging Face's models need model_dim={c.model_dim} to be a multiple of heads={c.attention.heads}"
        )
    a = c.attention
    return {"num_attention_heads": a.heads, "num_key_value_heads": a.groups, "head_dim": a.rotary_dim}


def _read_dropout(theirs: Settings) -> Fields:
    return {"dropout": max(setting(theirs, key, float, 0.0) for key in ("attention_dropout", "resid_pdrop", "embd_pdrop"))}


def _biases(name: str, biases: Biases) -> Row:
    """Returns the row of biases, of which a class may have no choice; see `dialect`."""
    keys = ("attention_bias", "attention_bias", "mlp_bias")

    def read(theirs: Settings) -> Fields:
        qkv, out, hidden = (setting(theirs, key, bool) if bias is None else bias for bias, key in zip(biases, keys, strict=True))
        of_attention = "qkv" * qkv + "o" * out
        return ({"attention.biases": of_attention} if of_attention else {}) | {"feed_forward.bias": hidden}

    def write(c: GptConfig) -> dict[str, Any]:
        of_attention = getattr(c.attention, "biases", "")
        qkv, out, hidden = "qkv" in of_attention, "o" in of_attention, c.feed_forward.bias
        free = (qkv, qkv, hidden)
        wanted = tuple(free[i] if bias is None else bias for i, bias in enumerate(biases))
        if (qkv, out, hidden) != wanted or of_attention == "qv":
            given = f"attention.biases={of_attention!r}, feed_forward.bias={hidden}"
            raise InterchangeError(f"Hugging Face's {name} has no such biases: {given}")
        _, out_bias, hidden_bias = biases
        return ({"attention_bias": qkv} if out_bias is None else {}) | ({"mlp_bias": hidden} if hidden_bias is None else {})

    return Row(read, write)


# --- rotary positions ---


def rotary_of(c: GptConfig) -> Rotary:
    """Returns the rotary positions of a model; raises InterchangeError for one without."""
    if not isinstance(c.positions, Rotary):
        raise InterchangeError(f"Hugging Face's class of this model has rotary positions, but positions={c.positions}")
    return c.positions


def read_rotary(theirs: Settings, *, theta: float = 10_000.0, beside: bool = False, size: str = "", **options: Any) -> Rotary:
    """Returns the rotary positions of a config.json; `size` is the key of the dimensions that are turned, which all of a head's
    are by default, and the other arguments are as of `rotary_row`."""
    head_dim = setting(theirs, size, int) if size else _read_heads(theirs)["attention.head_dim"]
    longest, original = setting(theirs, "max_position_embeddings", int), theirs.get(_ORIGINAL) if beside else None
    return rope.read(theirs, head_dim, theta=theta, longest=longest, original=original, **options)


def rotary_row(read: Callable[[Settings], Rotary] | None = None, *, beside: bool = False, **options: Any) -> Callable[[str], Row]:
    """Returns what makes the row of rotary positions, given the class's name.

    Args:
      read: reads them where a class has them in another form; the other arguments are as of `read_rotary` and `rope.turning`.
      beside: the length of the first training is a setting beside them too.
    """
    types = options.get("types", rope.TYPES)

    def read_fields(theirs: Settings) -> Fields:
        return {"positions": read(theirs) if read else read_rotary(theirs, beside=beside, **options)}

    def write(c: GptConfig, name: str) -> dict[str, Any]:
        rotary = rotary_of(c)
        if (rotary.dims and not options.get("partial")) or rope.type_of(rotary) not in ("default", *types.values()):
            raise InterchangeError(f"Hugging Face's {name} has no such rotary positions: {rotary}"[:200])
        written, original = rope.write(rotary, c.attention.rotary_dim), getattr(rotary.scaling, "original", 0)
        return written | ({_ORIGINAL: original} if beside and original else {})

    return lambda name: Row(read_fields, lambda c: write(c, name))


# --- kinds of layers ---


def pattern(kinds: Sequence[LayerVariant]) -> tuple[LayerVariant, ...]:
    """Returns the shortest beginning of the layers' kinds that goes on as they do; () where they have nothing special."""
    size = next(n for n in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i % n] for i in range(len(kinds))))
    return () if size == 1 and kinds[0] == LayerVariant() else tuple(kinds[:size])


def of_layers(c: GptConfig) -> list[LayerVariant]:
    """Returns the kind of every layer."""
    kinds = c.attention.pattern or (LayerVariant(),)
    return [kinds[i % len(kinds)] for i in range(c.layers)]


def sliding_layers(theirs: Settings, default: Callable[[int], bool]) -> list[bool]:
    """Returns which layers have a window: as layer_types says, or by default."""
    layers = setting(theirs, "num_hidden_layers", int)
    names = setting(theirs, "layer_types", list, None)
    if names is None:
        return [default(i) for i in range(layers)]
    if len(names) != layers or not all(name in (SLIDING, FULL) for name in names):
        raise InterchangeError(
            f"config.json: layer_types={str(names)[:80]}: must name {SLIDING!r} or {FULL!r} for each of {layers} layers"
        )
    return [name == SLIDING for name in names]


def windows(theirs: Settings, default: Callable[[int], bool], local: LayerVariant | None = None) -> Fields:
    """Returns kinds of layers of which some see a window of sliding_window positions, and are else as `local`."""
    slides = sliding_layers(theirs, default)
    window = setting(theirs, "sliding_window", int, None)
    if any(slides) and not window:
        raise InterchangeError(f"config.json: sliding_window is {json.dumps(window)}, but some layers of layer_types slide")
    sliding = dataclasses.replace(local or LayerVariant(), window=window or 0)
    return {"attention.pattern": pattern([sliding if slide else LayerVariant() for slide in slides])}


def write_windows(c: GptConfig, unused: int | None = None) -> Fields:
    """Returns the settings of windows that some layers have.

    Args:
      unused: the window where no layer has one, for classes that make its mask all the same.

    Raises:
      InterchangeError: windows of several sizes.
    """
    kinds = of_layers(c)
    sizes = sorted({kind.window for kind in kinds if kind.window})
    if len(sizes) > 1:
        raise InterchangeError(f"Hugging Face's models have one window, but the pattern has {' and '.join(map(str, sizes))}")
    types = [SLIDING if kind.window else FULL for kind in kinds]
    return {"sliding_window": sizes[0] if sizes else unused, "layer_types": types}


def some_windows(name: str, read: Callable[[Settings], Fields], unused: int | None = None, *, switched: bool = False) -> Row:
    """Returns the row of windows that some layers have, of a class whose layers differ in nothing else.

    Args:
      unused: as of `write_windows`.
      switched: a setting says whether there are any.
    """

    def write(c: GptConfig) -> dict[str, Any]:
        only_windows(c, name)
        switch = {"use_sliding_window": any(kind.window for kind in c.attention.pattern)}
        return write_windows(c, unused) | (switch if switched else {})

    return Row(read, write)


def only_windows(c: GptConfig, name: str, *, of_all: bool = False) -> None:
    """Raises InterchangeError where layers differ in more than windows, or, `of_all`, in these."""
    plain = all(dataclasses.replace(kind, window=0) == LayerVariant() for kind in c.attention.pattern)
    if not plain or (of_all and len(c.attention.pattern) > 1):
        allowed = "one window for all layers" if of_all else "layers with and without a window"
        raise InterchangeError(f"Hugging Face's {name} has {allowed}, but attention.pattern={c.attention.pattern}"[:200])


def _read_window(theirs: Settings) -> Fields:
    window = setting(theirs, "sliding_window", int, None)
    return {"attention.pattern": pattern([LayerVariant(window=window or 0)] * setting(theirs, "num_hidden_layers", int))}


def write_window(c: GptConfig) -> dict[str, Any]:
    """Returns the setting of the window that all layers have; raises InterchangeError where they differ."""
    only_windows(c, "class of one window", of_all=True)
    return {"sliding_window": c.attention.pattern[0].window if c.attention.pattern else None}


ONE_WINDOW = Row(_read_window, write_window, {"sliding_window": None})


def qk_norm(kind: NormKind, over: Literal["head", "all"]) -> Fields:
    """Returns the fields of models with norms of queries and keys."""
    return {"attention.qk_norm": QkNorm(kind=kind, over=over)}
