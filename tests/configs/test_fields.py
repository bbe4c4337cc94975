"""The list of an experiment's fields."""

import dataclasses
import typing
from typing import Literal

from configs import registry
from configs.experiment import Experiment
from configs.fields import described, documented, fields
from configs.overrides import override
from configs.registry import union_members


def parts(kind: type, known: set[type]) -> set[type]:
    """The classes of settings that an experiment may have parts of, those of unions included."""
    if dataclasses.is_dataclass(kind) and kind not in known:
        known.add(kind)
        for hint in typing.get_type_hints(kind).values():
            for part in [hint, *typing.get_args(hint), *union_members(hint).values()]:
                parts(part, known)
    return known


def test_every_field_is_documented():
    """Each field that is no part with fields of its own has an entry under Attributes, in whatever class of a union."""
    kinds = parts(Experiment, set())
    assert len(kinds) > 100
    for kind in kinds:
        hints, entries = typing.get_type_hints(kind), documented(kind)
        names = [field.name for field in dataclasses.fields(kind) if not dataclasses.is_dataclass(hints[field.name])]
        assert names == [name for name in names if entries.get(name)], kind


def test_an_entry_may_be_for_several_fields_and_lines():
    """It ends where the next begins, and the section where the next section does; a base class's are included."""

    @dataclasses.dataclass
    class Base:
        """A base.

        Attributes:
          a, b: two,
            in two: lines.
          c: of the base.
        """

    @dataclasses.dataclass
    class Derived(Base):
        """A class.

        Attributes:
          c: its own.

        Raises:
          ValueError: never.
        """

    assert documented(Derived) == {"a": "two, in two: lines.", "b": "two, in two: lines.", "c": "its own."}


def test_types_are_written_as_values_are():
    """Choices, types, and tuples of them."""
    assert described(Literal["", "nf4", 8]) == '"" | nf4 | 8'
    assert described(tuple[str, ...]) == "str ..." and described(tuple[tuple[str, int], ...]) == "str int ..."
    assert described(float | None) == "float | None"


def test_the_fields_are_those_that_can_be_set():
    """Each path is known on the command line, where its present value is a valid one; classes of unions are listed by name."""
    e = registry.load("gshard_m4.quickstart")
    listed = {field.path: field for field in fields(e)}
    for path in ("train.steps", "optimizer.schedule.peak", "model.moe.router", "train.finetune.lora.base", "eval.split"):
        value = listed[path].value
        assert override(e, [f"--{path}={value}"]) == e
    assert listed["optimizer"].value == "Adafactor" and "AdamW" in listed["optimizer"].type.split(" | ")
    assert listed["train.steps"] == ("train.steps", "int", 500, "optimizer steps of the whole run.")
