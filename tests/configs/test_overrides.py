"""Fields from text: a class of a union is chosen by its name."""

import dataclasses
import json

import pytest

from configs import registry
from configs.experiment import Experiment
from configs.optimizers import Constant, Cosine, InverseSqrt, Lamb
from configs.overrides import override, schedule_notes
from configs.registry import ConfigError, to_json
from models.parts.transformer_config import Dense


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
    for text in ("None", "null"):
        assert override(mixture, ["--model.moe", text]).model == dataclasses.replace(e.model, moe=None)


def test_a_part_is_given_as_json():
    """A part is read as `show --json` prints it, whatever stood there. Fields that are missing have their defaults, and an
    option after it changes it further."""
    mixture = registry.load("gpt.glam_64b_64e")
    for part in ("model", "optimizer", "layout", "train"):
        text = json.dumps(to_json(getattr(mixture, part)))
        changed = override(registry.load("gpt.quickstart"), [f"--{part}", text])
        assert getattr(changed, part) == getattr(mixture, part)
    few = ["--model.moe", '{"class": "MoeConfig", "experts": {"count": 4}}', "--model.moe.experts.count=8"]
    named = ["--model.moe", "MoeConfig", "--model.moe.experts.count", "8"]
    e = registry.load("gpt.quickstart")
    assert override(e, few) == override(e, named)
    assert override(e, ["--optimizer.schedule", '{"class": "Constant", "value": 0.5}']).optimizer.schedule == Constant(value=0.5)
    dense = override(mixture, ["--model.feed_forward", '{"hidden_dim": 64}']).model.feed_forward  # pyright: ignore
    assert dense == Dense(hidden_dim=64) != mixture.model.feed_forward  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"class": "MoeConfig", "expert": {}}', "--model.moe: unknown field 'expert'; did you mean 'experts'?"),
        ('{"class": "MoeConfig", "experts": {"count": "8"}}', '--model.moe.experts.count: expected int, got "8"'),
        ('{"class": "MoeConfi"}', "--model.moe: class 'MoeConfi' unknown; did you mean 'MoeConfig'?"),
        ("{'class': 'MoeConfig'}", "--model.moe \"{'class': 'MoeConfig'}\": not JSON: Expecting property name"),
    ],
)
def test_bad_json_is_refused(text, line):
    """JSON is read as strictly as a file, and the line has the path and the nearest name."""
    with pytest.raises(ConfigError) as caught:
        override(registry.load("gpt.quickstart"), ["--model.moe", text])
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--optimizer", "Lomb"],
            "--optimizer 'Lomb': no such class; did you mean 'Lamb'? Choose from Adafactor, AdamW, Lamb, Sgd",
        ),
        (["--model.moe", "nil"], "--model.moe 'nil': no such class; did you mean 'null'? Choose from MoeConfig, null"),
        (
            ["--optimizer", "Sgd", "--optimizer.weight_decay", "0.1"],
            "no field or option --optimizer.weight_decay; AdamW and Lamb",
        ),
        (["--model.moe.experts.count", "4"], "no field or option --model.moe.experts.count; MoeConfig has it: --model.moe MoeC"),
        (["--model.feed_forward", "Moe"], "no field or option --model.feed_forward; it has the fields activation, bias, dropout"),
        (["--data.packed", "yes"], "no field or option --data.packed"),
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


def with_notes(name: str, *arguments: str) -> tuple[Experiment, list[str]]:
    e = registry.load(name)
    changed = override(e, arguments)
    return changed, schedule_notes(e, changed, arguments)


def test_a_schedule_that_ends_with_the_run_follows_its_steps():
    """It says so. The warm-up keeps its steps, or its share where it would be longer than the run."""
    e, notes = with_notes("gpt.quickstart", "--train.steps", "1200")
    assert e.optimizer.schedule == Cosine(peak=2e-3, steps=1200, warmup=40, floor=0.1)
    assert notes == ["the schedule follows --train.steps: steps: 600 -> 1200"]
    e, notes = with_notes("gpt.quickstart", "--train.steps=30")
    assert e.optimizer.schedule == Cosine(peak=2e-3, steps=30, warmup=2, floor=0.1)
    assert notes == ["the schedule follows --train.steps: steps: 600 -> 30, warmup: 40 -> 2"]
    assert registry.load("gpt.quickstart").with_steps(30) == e
    e, notes = with_notes("gpt.quickstart", "--optimizer.schedule", "Linear", "--train.steps", "30")
    assert (e.optimizer.schedule.steps, notes) == (30, [])  # pyright: ignore[reportAttributeAccessIssue]


def test_a_schedule_of_its_own_length_keeps_it():
    """One that is given on the command line, one that does not end with the run, and one without an end."""
    e, notes = with_notes("gpt.quickstart", "--train.steps", "30", "--optimizer.schedule.steps", "600")
    assert (e.optimizer.schedule, notes) == (
        registry.load("gpt.quickstart").optimizer.schedule,
        ["the warm-up of 40 steps is not shorter than the run of 30"],
    )
    e, notes = with_notes("gpt.mlperf_175b", "--train.steps", "300")
    assert e.optimizer == registry.load("gpt.mlperf_175b").optimizer
    assert notes == ["the schedule keeps its own steps=108600; --optimizer.schedule.steps changes them"]
    e, notes = with_notes("m2m100.m418", "--train.steps", "300")
    assert isinstance(e.optimizer.schedule, InverseSqrt)
    assert notes == ["the warm-up of 4000 steps is not shorter than the run of 300"]
    assert with_notes("gpt.quickstart", "--optimizer.schedule.steps", "900")[1] == []


def test_a_new_schedule_ends_with_the_run():
    """A class with a length takes the run's, which it needs not be given."""
    schedule = ["--optimizer.schedule", "Cosine", "--optimizer.schedule.peak", "1e-3"]
    assert with_notes("m2m100.m418", *schedule)[0].optimizer.schedule == Cosine(peak=1e-3, steps=500_000)
    assert with_notes("m2m100.m418", *schedule, "--train.steps", "50")[0].optimizer.schedule == Cosine(peak=1e-3, steps=50)
