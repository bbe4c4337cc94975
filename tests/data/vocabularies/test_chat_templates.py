"""Chat templates: the same text, ids and marks as `transformers`, what is learned without marks, and refusals."""

import json
from pathlib import Path

import pytest

from data.task import DataError
from data.vocabularies import files
from data.vocabularies.chat_templates import ChatEncoder, ChatTemplate
from data.vocabularies.marks import TemplateRefusal
from tests.helpers.chats import CHATML, END, MARKED, learned, turns, write_vocabulary

FIXTURE = Path(__file__).parents[2] / "fixtures" / "chat"  # made with transformers 5.23: apply_chat_template
TEMPLATES, CONVERSATIONS, EXPECTED = (
    json.loads((FIXTURE / f"{name}.json").read_text()) for name in ("templates", "conversations", "expected")
)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> dict[str, ChatEncoder]:
    """The fixture's vocabulary with each of its templates: one as a file, one as a field of tokenizer_config.json."""
    by_template = {}
    for name, template in TEMPLATES.items():
        folder = tmp_path_factory.mktemp(name)
        files.copy(FIXTURE, folder)
        config = json.loads((folder / files.CONFIG).read_text())
        if name == "marked":
            (folder / files.CONFIG).write_text(json.dumps(config | {"chat_template": template}))
        else:
            (folder / files.TEMPLATE).write_text(template)
        by_template[name] = ChatEncoder(folder)
    return by_template


@pytest.mark.parametrize("case", EXPECTED)
def test_a_conversation_is_that_of_transformers(encoders, case):
    """Text, prompt and ids are those of `apply_chat_template`, and so is what a template marks as said by the assistant."""
    name, conversation = case.split("/")
    encoder, messages, want = encoders[name], CONVERSATIONS[conversation], EXPECTED[case]
    assert encoder.template(messages) == want["text"]
    assert encoder.template(messages, prompt=True) == want["prompt"]
    ids, predicted = encoder.conversation(messages)
    assert ids.tolist() == want["ids"]
    if want["mask"]:
        assert predicted.tolist() == want["mask"]


def test_the_assistant_alone_is_learned_up_to_the_end_of_its_turn(encoders):
    """With marks and without, what is learned is each answer and the token that ends it, and no line break behind."""
    messages = turns("the cat", "sees the house", "why", "so")
    for encoder in encoders.values():
        assert learned(encoder, messages) == [f"sees the house{END}", f"so{END}"]
        assert learned(encoder, turns("the cat")) == []
        assert encoder.end == encoder.tokenizer.id_of(END)


def test_marks_without_the_end_of_the_turn_get_it(tmp_path):
    """A template that marks the content alone still teaches to stop."""
    content = MARKED.replace("{{- '<|im_end|>' -}}\n        {%- endgeneration -%}", "{%- endgeneration -%}{{- '<|im_end|>' -}}")
    assert content != MARKED
    encoder = ChatEncoder(write_vocabulary(tmp_path, content))
    assert learned(encoder, turns("the", "a dog")) == [f"a dog{END}"]


def test_a_template_without_an_end_of_turn_is_refused(tmp_path):
    """Nothing special behind an answer is an error in one line: a model would never stop."""
    encoder = ChatEncoder(write_vocabulary(tmp_path, CHATML.replace("'<|im_end|>'", "''")))
    with pytest.raises(DataError, match="would not learn to stop"):
        encoder.conversation(turns("the", "a"))


def test_a_template_whose_beginning_depends_on_the_end_is_refused(tmp_path):
    """Without marks, a template that drops an earlier turn has no place for what is learned, and says so."""
    last = "{% for message in messages[-2:] %}"
    encoder = ChatEncoder(write_vocabulary(tmp_path, CHATML.replace("{% for message in messages %}", last)))
    assert learned(encoder, turns("the", "a")) == [f"a{END}"]
    with pytest.raises(DataError, match="does not begin as its beginning does"):
        encoder.conversation(turns("the", "a", "dog", "so"))


def test_a_template_may_refuse_a_conversation_and_reach_nothing_else(tmp_path):
    """raise_exception and a type error refuse one conversation; the sandbox refuses Python's insides; no template is an error."""
    write_vocabulary(tmp_path, MARKED)
    with pytest.raises(TemplateRefusal, match="only user and assistant"):
        ChatTemplate(tmp_path)([*turns("the"), {"role": "tool", "content": "a"}])
    for source in ("{{ messages.__class__.__mro__ }}", "{% set x = messages.append(1) %}", "{{ messages + 1 }}"):
        (tmp_path / files.TEMPLATE).write_text(source)
        with pytest.raises(TemplateRefusal):
            ChatTemplate(tmp_path)(turns("the"))
    (tmp_path / files.TEMPLATE).write_text("{% if %}")
    with pytest.raises(DataError, match="is damaged"):
        ChatTemplate(tmp_path)
    (tmp_path / files.TEMPLATE).unlink()
    with pytest.raises(DataError, match="no chat template"):
        ChatTemplate(tmp_path)


def test_what_templates_ask_for(tmp_path):
    """Dates are always the same, JSON is not escaped, special tokens have names, and loops may be left."""
    write_vocabulary(
        tmp_path,
        "{{ strftime_now('%d %b %Y') }} {{ tools | tojson }} {{ eos_token }}{% for m in messages %}{% break %}{% endfor %}",
    )
    assert ChatTemplate(tmp_path)(turns("a"), tools=[{"é": "<b>"}]) == f'26 Jul 2024 [{{"é": "<b>"}}] {END}'
