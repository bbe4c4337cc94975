"""The form of a checkpoint's conversations: messages as the ids that it was tuned on, as many as it reads, and what ends a reply.

chat template     chat_template.jinja, or chat_template in tokenizer_config.json, beside the vocabulary
rated responses   that of the task, where a model was tuned to rate its responses (data.task.RanksResponses)
"""

import abc
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from data.decoding import DecodesLanguages, WritesTexts
from data.task import DataError, RanksResponses, ReadsGiven, Task
from data.vocabularies.chat_templates import ChatEncoder, Message, has_template
from data.vocabularies.tokenizers import Tokenizer
from models.families import ModelConfig
from models.protocol import Classifies, ContinuesText, Embeds, HearsWindows, Model
from models.sharding.component import Component
from models.sharding.layouts import ONE_DEVICE
from trainers.plan import model_of_shapes


class Form(abc.ABC):
    """A form of conversations.

    Attributes:
      line: whether a reply is one line.
      ends: the ids that end a reply, beside those that end a text.
    """

    line: ClassVar[bool]
    ends: tuple[int, ...] = ()

    @abc.abstractmethod
    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Returns the ids of a conversation up to where the next reply begins.

        Raises:
          DataError: the form has no such conversation.
        """

    def fitting(self, messages: Sequence[Message], room: int) -> tuple[list[int], int]:
        """Returns (the ids of a conversation's prompt without its oldest turns, as far as it has no room; how many these are).

        A user's turn goes with the reply to it, and a system's message stays.

        Raises:
          DataError: the last turn alone is too long.
        """
        first = 1 if messages[0]["role"] == "system" else 0
        for left_out in range(0, len(messages) - first, 2):
            ids = self.prompt([*messages[:first], *messages[first + left_out :]])
            if len(ids) <= room:
                return ids, left_out
        raise DataError(f"a turn of {len(ids)} tokens, with what stands around it, is longer than {room}")


class TemplateForm(Form):
    """The chat template beside a vocabulary."""

    line = False

    def __init__(self, vocabulary: Path):
        self._encoder = ChatEncoder(vocabulary)
        with contextlib.suppress(DataError):  # without an end of its own, what the folder names ends a turn
            self.ends = (self._encoder.end,)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        return self._encoder.prompt(messages)


class RatedForm(Form):
    """The form of a task whose models rate their responses; its speakers take turns, and it has no system's message."""

    line = True

    def __init__(self, task: RanksResponses, vocabulary: Path):
        self.task, self.vocabulary, self._tokenizer = task, vocabulary, Tokenizer(vocabulary)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        return self._tokenizer.whole(self.task.prompt([message["content"] for message in messages]))


def form_of(task: Task, vocabulary: Path, checkpoint: Path, config: ModelConfig) -> TemplateForm | RatedForm:
    """Returns the form of a checkpoint's conversations.

    Args:
      task: of the data that it was trained on.
      vocabulary: the folder of its tokenizer.json.
      checkpoint, config: for errors.

    Raises:
      DataError: nothing says that it was tuned on any; the message names the command that takes it.
    """
    if isinstance(task, RanksResponses):
        return RatedForm(task, vocabulary)
    if has_template(vocabulary):
        return TemplateForm(vocabulary)
    command, does = taken_by(model_of_shapes(config, Component(ONE_DEVICE)), task, vocabulary)
    raise DataError(
        f"{checkpoint} has no chat template, and its model was not tuned to rate responses: nothing says how it converses; "
        f"python -m scripts.{command} {does}"
    )


def taken_by(model: Model, task: Task, vocabulary: Path) -> tuple[str, str]:
    """Returns the name of the command that takes a trained model, by what the model and its task can do, and what that does."""
    if isinstance(model, ContinuesText):
        return "generate", "continues texts"
    if isinstance(model, HearsWindows):
        return "transcribe", "writes down sounds"
    decoding = task.decoding(vocabulary) if type(task).decoding is not Task.decoding else None
    if isinstance(decoding, DecodesLanguages):
        return "translate", "translates with it"
    if isinstance(decoding, WritesTexts):
        return "generate", "writes texts with it"
    if isinstance(model, Classifies) and model.classes and isinstance(task, ReadsGiven):
        return "classify", "names classes with it"
    if isinstance(model, Embeds) and model.embeds and isinstance(task, ReadsGiven):
        return "embed", "gives texts vectors"
    return "evaluate", "scores it"
