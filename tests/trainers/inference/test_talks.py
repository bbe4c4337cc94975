"""Conversations of six turns: the ids at every turn are those of `transformers` (make parity)."""

import itertools
import json

import pytest

from tests.helpers.archives import released_weights
from tests.parity import talks
from trainers.inference.forms import TemplateForm

EXPECTED = json.loads(talks.FIXTURE.read_text())


@pytest.mark.parametrize("name", talks.RELEASED)
def test_prompts_are_those_of_transformers(name, tmp_path):
    """In the forms of released templates, every turn's prompt has the ids of `apply_chat_template`."""
    form = talks.RELEASED[name]
    assert EXPECTED[name]["messages"] == talks.conversation(form)
    assert talks.prompts(talks.write(form, tmp_path / "form"), talks.conversation(form)) == EXPECTED[name]["prompts"]
    assert len(EXPECTED[name]["prompts"]) == 6


@pytest.mark.network
def test_smollm2_reads_the_prompts_of_transformers():
    """So has every turn of a conversation with released weights, which begins with what the model had read and written before."""
    weights = released_weights("smollm2_135m")
    messages, expected = EXPECTED[talks.SMOLLM2]["messages"], EXPECTED[talks.SMOLLM2]["prompts"]
    assert [m["content"] for m in messages[::2]] == list(talks.QUESTIONS)
    assert talks.prompts(weights, messages) == expected
    form, (end,) = TemplateForm(weights), TemplateForm(weights).ends
    for before, after in itertools.pairwise(expected):
        assert after[: len(before)] == before and end in after[len(before) :]
    assert form.prompt(messages[:1]) == expected[0]


@pytest.mark.network
@pytest.mark.integration
@pytest.mark.nightly
def test_smollm2_holds_a_conversation(tmp_path):
    """scripts.chat answers six turns as it did when the fixture was made."""
    assert talks.answered(released_weights("smollm2_135m"), tmp_path) == EXPECTED[talks.SMOLLM2]["messages"]
