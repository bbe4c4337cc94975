"""Tests of which tokens of a conversation are learned, in the forms of chat template that families of released models have."""

import dataclasses
from collections.abc import Mapping

import pytest

from data.chat.encoding import pair
from data.vocabularies.chat_templates import ChatEncoder
from tests.helpers.chats import CHATML, MARKED, learned, turns, write_vocabulary


@dataclasses.dataclass(frozen=True)
class Form:
    """A form of template.

    Attributes:
      special: its special tokens; the first ends a turn of the assistant.
      learned: what is learned of "one" and "two", END for that token.
      named: special tokens by name.
    """

    template: str
    special: tuple[str, ...]
    learned: tuple[str, str] = ("oneEND", "twoEND")
    named: Mapping[str, str] = dataclasses.field(default_factory=dict)


START, END = "<|im_start|>", "<|im_end|>"
LLAMA = {"bos_token": "<s>", "eos_token": "</s>"}
ANSWER = "{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
OTHER = "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def chatml(answer: str) -> Form:
    """ChatML with marks, in which an answer has this form."""
    return Form("{% for m in messages %}" + ANSWER + answer + OTHER + PROMPT, (END, START))


FORMS = {
    "ChatML": Form(CHATML, (END, START)),
    "Llama 2": Form(
        "{% if messages[0].role == 'system' %}{% set head = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
        "{% set messages = messages[1:] %}{% else %}{% set head = '' %}{% endif %}{% for m in messages %}"
        "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + (head if loop.first else '') + m.content + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}",
        ("</s>", "<s>"),
        (" one END", " two END"),
        LLAMA,
    ),
    "Llama 3": Form(
        "{% for m in messages %}{{ (bos_token if loop.first else '') + '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' +"
        " m.content | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        ("<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>"),
        named={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ),
    "Gemma": Form(
        "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' +"
        " m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<end_of_turn>", "<start_of_turn>", "<bos>"),
        named={"bos_token": "<bos>"},
    ),
    "Mistral": Form(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}"
        "{% else %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endif %}{% endfor %}",
        ("</s>", "<s>"),
        (" oneEND", " twoEND"),
        LLAMA,
    ),
    "Mistral, its marks special tokens": Form(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content + eos_token }}"
        "{% else %}{{ '[INST]' + m.content + '[/INST]' }}{% endif %}{% endfor %}",
        ("</s>", "<s>", "[INST]", "[/INST]"),
        named=LLAMA,
    ),
    "Phi 3": Form(
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
        ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>"),
    ),
    "Zephyr": Form(
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
        ("</s>", "<s>"),
        named=LLAMA,
    ),
    "DeepSeek": Form(
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<｜Assistant｜>' + m.content + eos_token }}"
        "{% elif m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
        ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        named={"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    ),
    "marks around content and end": Form(MARKED, (END, START)),
    "marks around content, end and line break, as SmolLM3": chatml(
        "{% generation %}{{ m.content + '<|im_end|>\n' }}{% endgeneration %}"
    ),
    "marks around the content": chatml("{% generation %}{{ m.content }}{% endgeneration %}{{ '<|im_end|>\n' }}"),
    "marks around the content, a line break before the end": dataclasses.replace(
        chatml("{% generation %}{{ m.content }}{% endgeneration %}{{ '\n<|im_end|>\n' }}"), learned=("one\nEND", "two\nEND")
    ),
    "marks around the last turn alone": dataclasses.replace(
        chatml(
            "{% if loop.last %}{% generation %}{{ m.content + '<|im_end|>\n' }}{% endgeneration %}"
            "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}"
        ),
        learned=("", "twoEND"),
    ),
    "the last answer of all has its reasoning": dataclasses.replace(
        chatml("{% generation %}{{ ('thought ' if loop.last else '') + m.content + '<|im_end|>\n' }}{% endgeneration %}"),
        learned=("oneEND", "thought twoEND"),
    ),
}
SYSTEM = [{"role": "system", "content": "the"}]
TALK = turns("cat", "one", "why", "two")


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> dict[str, ChatEncoder]:
    folders = {name: tmp_path_factory.mktemp("vocabulary") for name in FORMS}
    for name, form in FORMS.items():
        write_vocabulary(folders[name], form.template, special=form.special, named=form.named)
    return {name: ChatEncoder(folder) for name, folder in folders.items()}


def expected(name: str, *answers: int) -> list[str]:
    """Returns what is learned of these answers."""
    form = FORMS[name]
    texts = [form.learned[answer].replace("END", form.special[0]) for answer in answers]
    return [text for text in texts if text]


@pytest.mark.parametrize("name", FORMS)
def test_each_answer_is_learned_to_the_token_that_ends_it(encoders, name):
    """Nothing of the user's turns is learned, nor a line break behind an end or what begins the next turn."""
    encoder = encoders[name]
    assert learned(encoder, TALK) == expected(name, 0, 1)
    assert learned(encoder, [*SYSTEM, *TALK]) == expected(name, 0, 1)
    assert learned(encoder, TALK[:3]) == expected(name, 0)
    assert encoder.end == encoder.tokenizer.id_of(FORMS[name].special[0])


@pytest.mark.parametrize("name", FORMS)
def test_answers_of_weight_0_are_not_learned(encoders, name):
    """A turn that its writer excluded is in the text, and is not learned; the others are."""
    for weights in ((0, 1), (1, 0), (0, 0), (1, 1)):
        weighed = iter(weights)
        talk = [turn | ({"weight": next(weighed)} if turn["role"] == "assistant" else {}) for turn in TALK]
        assert learned(encoders[name], talk) == expected(name, *(i for i, weight in enumerate(weights) if weight))
        assert encoders[name].conversation(talk)[0].tolist() == encoders[name].conversation(TALK)[0].tolist()


@pytest.mark.parametrize("name", FORMS)
def test_a_pair_learns_its_answers_alone(encoders, name):
    """The answers of preference pairs of several turns are learned, and what the assistant said in the prompt is not."""
    record = {"prompt": TALK[:3], "chosen": TALK[3:], "rejected": turns("", "no")[1:]}
    chosen, rejected = (marks for _, marks in pair(record, encoders[name]))
    ids = encoders[name].conversation(TALK)[0]
    texts = encoders[name].tokenizer._tokenizer
    assert texts.decode(ids[chosen == 1].tolist(), skip_special_tokens=False) == expected(name, 1)[0]
    assert rejected.sum() > 1
