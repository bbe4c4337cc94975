"""Forms of conversations: the ids of each turn, what is left out, and the checkpoints that have none."""

import json
from pathlib import Path
from typing import Any

import pytest

from configs import registry
from data.kinds import task_of
from data.lamda.prompt_format import prompt
from data.task import DataError, Task
from data.vocabularies import boundaries, files
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.chats import CHATML, END, turns, write_vocabulary
from tests.helpers.conversations import write_dialog_cache
from trainers.inference.forms import Form, RatedForm, TemplateForm, form_of

SYSTEM = [{"role": "system", "content": "Be kind."}]


@pytest.fixture(scope="module")
def chatml(tmp_path_factory) -> Path:
    """A vocabulary with a chat template."""
    return write_vocabulary(tmp_path_factory.mktemp("chatml"))


@pytest.fixture(scope="module")
def rated(tmp_path_factory) -> RatedForm:
    folder = write_dialog_cache(tmp_path_factory.mktemp("rated") / "toy", 64)
    form = form_of(tuned(), folder, folder, config("lamda.smollm2_chat"))
    assert isinstance(form, RatedForm)
    return form


def tuned() -> Task:
    """The task of models that rate their responses."""
    return task_of(registry.load("lamda.smollm2_chat").data)


def other() -> Task:
    """The task of models that do not."""
    return task_of(registry.load("gpt.quickstart").data)


def config(name: str) -> Any:
    """The configuration of an experiment's model, tiny."""
    return registry.load(name).model.tiny()


def without_oldest(form: Form, messages: list[dict], room: int) -> int:
    ids, left_out = form.fitting(messages, room)
    first = 1 if messages[0]["role"] == "system" else 0
    assert ids == form.prompt([*messages[:first], *messages[first + left_out :]]) and len(ids) <= room
    return left_out


def test_the_oldest_turns_are_left_out(chatml, rated):
    """A conversation that is too long is read from the first user's turn on with which it fits, behind its system's message; a
    single turn must fit."""
    for form, before in ((TemplateForm(chatml), SYSTEM), (rated, [])):
        talk = [*before, *turns("the old cat", "a red house", "and the big dog", "a bird", "the road")]
        lengths = [len(form.prompt([*before, *talk[len(before) + n :]])) for n in (0, 2, 4)]
        assert lengths == sorted(set(lengths), reverse=True)
        assert [without_oldest(form, talk, room) for room in (*lengths, lengths[0] - 1, lengths[1] - 1)] == [0, 2, 4, 2, 4]
        with pytest.raises(DataError, match=rf"^a turn of {lengths[2]} tokens, .*, is longer than {lengths[2] - 1}$"):
            form.fitting(talk, lengths[2] - 1)


def test_the_form_is_that_of_the_task_or_the_template(chatml, rated, tmp_path):
    """A task whose models rate responses has its own, whatever lies beside the vocabulary; without either there is none."""
    assert isinstance(form_of(other(), chatml, chatml, config("gpt.quickstart")), TemplateForm)
    assert isinstance(form_of(tuned(), chatml, chatml, config("lamda.smollm2_chat")), RatedForm)
    talk = ["the cat", "a dog", "so"]
    assert rated.prompt(turns(*talk)) == Tokenizer(rated.vocabulary).encode(prompt(talk))
    bare = write_vocabulary(tmp_path / "bare", None)
    for name, hint in {
        "gpt.quickstart": "generate continues texts",
        "whisper.tiny": "transcribe writes down sounds",
        "bert.quickstart": "evaluate scores it",
        "bert.minilm_brown_genres": "classify names classes with it",
        "vit.quickstart": "classify names classes with it",
        "bert.minilm_l6": "embed gives texts vectors",
        "t5.debian_sections_5k": "generate writes texts with it",
        "metnet2.quickstart": "evaluate scores it",
    }.items():
        with pytest.raises(DataError, match=rf"^runs/x has no chat template, .*; python -m scripts\.{hint}$"):
            form_of(task_of(registry.load(name).data), bare, Path("runs/x"), config(name))


def test_an_end_of_turn_ends_a_reply(chatml, tmp_path):
    """It is the template's; where that has none, the folder's ends alone end a reply."""
    assert TemplateForm(chatml).ends == (Tokenizer(chatml).id_of(END),)
    assert TemplateForm(write_vocabulary(tmp_path, CHATML.replace("'<|im_end|>'", "''"))).ends == ()


def test_a_folder_says_how_long_a_text_may_be(tmp_path):
    """The smaller of what the tokenizer's and the model's files say; `transformers` writes 10^30 where it does not know."""
    assert boundaries.longest(tmp_path) is None
    for settings, model, expected in ((10**30, 64, 64), (32, 64, 32), (10**30, None, None), (32.5, None, None)):
        (tmp_path / files.CONFIG).write_text(json.dumps({"model_max_length": settings}))
        (tmp_path / files.MODEL).write_text(json.dumps({"max_position_embeddings": model}))
        assert boundaries.longest(tmp_path) == expected
