"""Fields from text: a class of a union is chosen by its name."""

import dataclasses

import pytest

from configs import registry
from configs.optimizers import Constant, Lamb
from configs.overrides import override
from configs.registry import ConfigError


def test_a_union_takes_the_name_of_a_class():
    """Fields of the new class have its defaults, those without one keep their values, and all can be given."""
    e = registry.load("gpt.quickstart")
    optimizer = override(e, ["--optimizer.b1", "0.5", "--optimizer", "Lamb"]).optimizer
    assert optimizer == Lamb(schedule=e.optimizer.schedule, b1=0.5)
    schedule = override(e, ["--optimizer.schedule", "Constant", "--optimizer.schedule.value", "0.1"]).optimizer.schedule
    assert schedule == Constant(value=0.1)
    assert override(e, ["--optimizer", type(e.optimizer).__name__]) == e


def test_an_optional_part_is_added_and_removed():
    """None removes a part; the name of its class brings it back with the fields that are given."""
    e = registry.load("gpt.quickstart")
    mixture = override(e, ["--model.moe", "MoeConfig", "--model.moe.experts.count", "4"])
    assert mixture.model.moe.experts.count == 4  # pyright: ignore[reportAttributeAccessIssue]
    assert override(mixture, ["--model.moe", "None"]).model == dataclasses.replace(e.model, moe=None)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--optimizer", "Lomb"], "--optimizer 'Lomb': no such class; did you mean 'Lamb'?"),
        (["--optimizer", "Sgd", "--optimizer.b1", "0.5"], "no field or option --optimizer.b1"),
        (["--model.heads", "8"], "no field or option --model.heads; did you mean 'model.attention.heads'?"),
        (["--model.norm_eps", "1e-5"], "no field or option --model.norm_eps; did you mean 'model.norm.eps'?"),
        (["--optimizer.schedule", "Constant"], "--optimizer.schedule.value is missing: Constant has no default for it"),
    ],
)
def test_a_bad_choice_is_refused(arguments, line):
    """The line names the nearest class, a field of another class, or the field that the class needs."""
    with pytest.raises(ConfigError) as caught:
        override(registry.load("gpt.quickstart"), arguments)
    assert str(caught.value).startswith(line)
