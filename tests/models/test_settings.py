"""Tables of foreign settings: a row reads, writes and refuses; our side is a dotted path."""

import dataclasses
from typing import Any

import pytest

from models.interchange import InterchangeError
from models.interchange.rows import (
    Activation,
    ModelType,
    Row,
    Setting,
    allowed,
    also,
    choice,
    constant,
    fixed,
    head_count,
    must_be,
)
from models.parts.nested import changed


@dataclasses.dataclass(frozen=True)
class Experts:
    count: int
    weight: float = 0.5


@dataclasses.dataclass(frozen=True)
class Attention:
    heads: int
    head_dim: int
    bias: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A model of a made-up family."""

    model_dim: int
    attention: Attention
    activation: str = "relu"
    order: str = "pre"
    dropout: float = 0.0
    experts: Experts | None = None


TYPE = ModelType(
    config=Config,
    name="Toy",
    architectures=("ToyModel",),
    fields={"order": "pre"},
    rows=(
        constant("is_toy", True),
        Setting("width", "model_dim", int),
        head_count("n_heads", "width", 2),
        Setting("bias", "attention.bias", bool, True),
        choice("act", "activation", {"rectified": "relu", "gaussian": "gelu"}, "rectified"),
        Setting("dropout", "dropout", float, 0.25),
        also("other_dropout", "dropout"),
        fixed("scale", 1, 1.0),
        allowed("groups", 4),
        must_be("causal", False),
    ),
)
MIXTURE = dataclasses.replace(
    TYPE,
    fields=TYPE.fields | {"experts.weight": 0.5},
    initial={"experts": Experts},
    rows=(*TYPE.rows, Setting("n_experts", "experts.count", int)),
)


def test_a_table_reads_and_writes():
    """Settings of 8 and 4, and what is left out, are a configuration, which is written in the order of rows."""
    c = TYPE.read({"width": 8, "n_heads": 4, "bias": False, "groups": 4})
    assert c == Config(model_dim=8, attention=Attention(4, 2, bias=False), dropout=0.25)
    written = {
        "is_toy": True,
        "width": 8,
        "n_heads": 4,
        "bias": False,
        "act": "rectified",
        "dropout": 0.25,
        "other_dropout": 0.25,
        "scale": 1,
    }
    assert list(TYPE.write(c).items()) == list(written.items())
    assert TYPE.read(written) == c


def test_fields_of_fields_are_named_by_dotted_paths():
    """A class in `initial` is made of the fields that rows say of it; other fields keep what the default has."""
    c = MIXTURE.read({"width": 8, "n_experts": 3})
    assert c.experts == Experts(count=3) and c.attention == Attention(2, 4)
    assert MIXTURE.write(c)["n_experts"] == 3
    assert changed(c, {"experts.count": 5, "dropout": 0.5}) == dataclasses.replace(c, experts=Experts(5), dropout=0.5)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, "width is missing; expected int"),
        ({"width": "8"}, 'width is "8"; expected int'),
        ({"width": 9}, "width=9 is no multiple of n_heads=2"),
        ({"width": 8, "n_heads": 0}, "width=8 is no multiple of n_heads=0"),
        ({"width": 8, "dropout": None}, "dropout is null; left out, it would be 0.25"),
        ({"width": 8, "act": "x"}, 'act="x" is not supported, only "rectified" or "gaussian"'),
        ({"width": 8, "scale": 2}, "scale=2 is not supported, only 1 or 1.0"),
        ({"width": 8, "groups": 5}, "groups=5 is not supported, only 4"),
        ({"width": 8, "causal": True}, "causal=true is not supported, only false"),
        ({"width": 8, "causal": 0}, "causal is 0; expected bool"),
        ({"width": 8, "architectures": ["ToyModl"]}, "no output like that of 'ToyModl' here; did you mean 'ToyModel'?"),
    ],
)
def test_a_row_refuses_what_it_cannot_read(settings, error):
    """The line names the key, its value and what would do."""
    with pytest.raises(InterchangeError) as caught:
        TYPE.read(settings)
    assert str(caught.value) == f"config.json: {error}"


@pytest.mark.parametrize(
    ("table", "changes", "error"),
    [
        (TYPE, dict(order="post"), "no Toy of Hugging Face is like this model: order='post' (it has 'pre')"),
        (TYPE, dict(activation="silu"), "activation='silu', only 'relu' or 'gelu'"),
        (MIXTURE, dict(experts=Experts(3, 0.75)), "experts.weight=0.75 (it has 0.5)"),
        (MIXTURE, {}, "experts=None"),
    ],
)
def test_a_model_that_a_table_cannot_say_is_not_written(table, changes, error):
    """The line names the field, its value and what the models of this type have."""
    c: Any = Config(model_dim=8, attention=Attention(4, 2))
    with pytest.raises(InterchangeError) as caught:
        table.write(dataclasses.replace(c, **changes))
    assert error in str(caught.value)


def test_null_is_the_default_where_a_type_says_so():
    """Some classes take null for a key that is left out; others refuse it, but where it is another choice."""
    settings = {"width": 8, "dropout": None}
    assert dataclasses.replace(TYPE, null_is_default=True).read(settings).dropout == 0.25
    row = Row(lambda theirs: {"dropout": theirs["rate"] or 0.0}, absent={"rate": 0.5})
    assert TYPE.defaults == {"n_heads": 2, "bias": True, "act": "rectified", "dropout": 0.25, "causal": False}
    nullable = dataclasses.replace(TYPE, rows=(*TYPE.rows, row), nullable=("rate",), other_defaults={"bias": False})
    assert nullable.read({"width": 8, "rate": None}).dropout == 0.0
    assert nullable.read({"width": 8}) == dataclasses.replace(nullable.read({"width": 8, "bias": False}), dropout=0.5)


def test_names_of_activations():
    """Several names of theirs are one of ours, of which one is written."""
    row = Setting("act", "activation", Activation, "gelu")
    read = {name: row.read({"act": name})["activation"] for name in ("gelu_new", "gelu_pytorch_tanh", "swish")}
    assert read == {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "swish": "silu"}
    assert row.write(Config(model_dim=8, attention=Attention(heads=4, head_dim=2), activation="gelu_tanh")) == {"act": "gelu_new"}
    with pytest.raises(InterchangeError, match="no activation 'swsh' here; did you mean 'swish'"):
        row.read({"act": "swsh"})
