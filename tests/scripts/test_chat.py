"""The terminal chat: its commands with a scripted model, and the whole of it with a tiny one."""

import io

import pytest

from data.dialog.tools.toolset import Toolset
from scripts import chat
from scripts.chat import Chat
from trainers.evaluation.respond import Candidate


class Model:
    """Replies with the number of its call and of the turns it reads, and a worse candidate."""

    def __init__(self):
        self.calls = 0

    def __call__(self, turns):
        self.calls += 1
        texts = [f"call {self.calls} reads {len(turns)}", "worse"]
        return [Candidate(text, -2.5, {"sensible": 0.75}, score) for text, score in zip(texts, (3.0, 1.0), strict=True)]


@pytest.fixture
def said(capsys):
    """A function that gives lines to one conversation and returns what is printed."""
    conversation = Chat(Model(), Toolset())

    def take(*lines: str) -> list[str]:
        for line in lines:
            assert conversation.take(line)
        return capsys.readouterr().out.splitlines()

    return take


def test_a_conversation_grows_by_two_turns(said):
    """The model reads all turns before, its own included."""
    assert said("Hello", "And?") == ["model: call 1 reads 1", "model: call 2 reads 3"]


def test_again_replaces_the_last_reply(said):
    """The turn is the same, the model is called anew, and its first reply is forgotten."""
    assert said("Hello", "/again", "And?") == [f"model: call {n} reads {m}" for n, m in ((1, 1), (2, 1), (3, 3))]


def test_candidates_are_shown_with_their_figures(said):
    """Every candidate has its score, log-probability and ratings, the best first."""
    assert said("Hello", "/candidates")[1:] == [
        "  score 3.00  log p -2.50  sensible 0.75  call 1 reads 1",
        "  score 1.00  log p -2.50  sensible 0.75  worse",
    ]


def test_tools_say_who_asked(said):
    """A calculation of the user is asked by the rule; a turn that asks nothing says so."""
    assert said("What is 6*7?", "/tools")[1:] == ["  asked by the rule: 6*7", "    42"]
    assert said("Fine.", "/tools")[1:] == ["  no tool was asked"]
    assert said("What is a lark?", "/tools")[1:] == ["  asked by the rule: lark", "    no answer"]


def test_commands_are_checked(said):
    """An unknown command is answered with the nearest one, and one about a turn needs a turn."""
    assert said("/tool") == ["no command '/tool'; did you mean '/tools'?"]
    assert said("/again") == ["nothing was said yet"]


def test_quit_ends_the_conversation():
    """Nothing is printed, and no line after it is taken."""
    assert Chat(Model(), None).take("/quit") is False


def test_piped_lines_make_a_transcript(monkeypatch, capsys):
    """Lines that nobody types are printed; empty ones are passed over."""
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n\n /tools \n"))
    assert list(chat.lines()) == ["Hello", "/tools"]
    assert capsys.readouterr().out == "user:  Hello\nuser:  /tools\n"
