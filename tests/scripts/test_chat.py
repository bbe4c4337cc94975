"""The terminal chat: its commands with a scripted model, and the whole of it with a tiny one."""

import dataclasses
import io
import itertools

import jax
import pytest

from configs import registry
from data.task import DataError
from data.vocabularies import tokenizers
from scripts import chat, cli
from scripts.chat import Chat, Stream
from tests.helpers.caches import write_text_cache
from trainers.inference.sample_and_rank import Candidate
from trainers.inference.tools.toolset import Toolset
from trainers.plan import fresh_state, make_plan
from trainers.weights import release
from trainers.weights.source import Arrays


class Model:
    """Replies with the number of its call and of the turns it reads, and a worse candidate."""

    def __init__(self):
        self.calls = 0

    def __call__(self, turns):
        self.calls += 1
        texts = [f"call {self.calls} reads {len(turns)}", "worse"]
        return [Candidate(text, -2.5, {"sensible": 0.75}, score) for text, score in zip(texts, (3.0, 1.0), strict=True)]


@pytest.fixture
def replies(capsys):
    """A function that gives lines to one conversation and returns what is printed."""
    conversation = Chat(Model(), Toolset())

    def take(*lines: str) -> list[str]:
        for line in lines:
            assert conversation.take(line)
        return capsys.readouterr().out.splitlines()

    return take


def test_a_conversation_grows_by_two_turns(replies):
    """The model reads all turns before, its own included."""
    assert replies("Hello", "And?") == ["model: call 1 reads 1", "model: call 2 reads 3"]


def test_again_replaces_the_last_reply(replies):
    """The turn is the same, the model is called anew, and its first reply is forgotten."""
    assert replies("Hello", "/again", "And?") == [f"model: call {n} reads {m}" for n, m in ((1, 1), (2, 1), (3, 3))]


def test_candidates_are_shown_with_their_figures(replies):
    """Every candidate has its score, log-probability and ratings, the best first."""
    assert replies("Hello", "/candidates")[1:] == [
        "  score 3.00  log p -2.50  sensible 0.75  call 1 reads 1",
        "  score 1.00  log p -2.50  sensible 0.75  worse",
    ]


def test_tools_say_who_asked(replies):
    """A calculation of the user is asked by the rule; a turn that asks nothing says so."""
    assert replies("What is 6*7?", "/tools")[1:] == ["  asked by the rule: 6*7", "    42"]
    assert replies("Fine.", "/tools")[1:] == ["  no tool was asked"]
    assert replies("What is a lark?", "/tools")[1:] == ["  asked by the rule: lark", "    no answer"]


def test_commands_are_checked(replies):
    """An unknown command is answered with the nearest one, and one about a turn needs a turn."""
    assert replies("/tool") == ["no command '/tool'; did you mean '/tools'?"]
    assert replies("/again") == ["nothing was said yet"]


def test_quit_ends_the_conversation():
    """Nothing is printed, and no line after it is taken."""
    assert Chat(Model(), None).take("/quit") is False


def test_piped_lines_make_a_transcript(monkeypatch, capsys):
    """Lines that nobody types are printed; empty ones are passed over."""
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n\n /tools \n"))
    assert list(chat.lines()) == ["Hello", "/tools"]
    assert capsys.readouterr().out == "user:  Hello\nuser:  /tools\n"


def test_too_long_a_turn_is_passed_over(capsys):
    """The error is a line, and the conversation goes on without the turn."""

    def respond(turns):
        if turns[-1] == "long":
            raise DataError("a prompt of 300 tokens is longer than 256")
        return [Candidate(f"{len(turns)}", 0.0, {}, 0.0)]

    conversation = Chat(respond, None)
    assert all(conversation.take(line) for line in ("Hello", "long", "And?"))
    assert capsys.readouterr().out.splitlines() == ["model: 1", "model: (a prompt of 300 tokens is longer than 256)", "model: 3"]


def test_a_stream_prints_what_is_new(capsys):
    """Every beginning adds to the line; a query to the toolset, and half a character, are not shown."""
    stream = Stream()
    for beginning in ("T", "TS, la", "TS, lark"):
        stream(beginning)
    assert capsys.readouterr().out == ""
    for beginning in (" User", " User, A", " User, A caf\ufffd", " User, A café is"):
        stream(beginning)
    assert capsys.readouterr().out == "A café is"
    stream.end("A café is nice.")
    assert capsys.readouterr().out == " nice.\n"
    stream.end("Another.")
    assert capsys.readouterr().out == "Another.\n"
    stream("One")
    stream.end("Two")
    assert capsys.readouterr().out == "One ... Two\n"


def test_a_model_commands_no_terminal(capsys):
    """Escape sequences and line breaks in a model's text are blanks on the terminal."""
    conversation = Chat(lambda turns: [Candidate("a\x1b[2Jb\x85c", 0.0, {}, 0.0)], None, show=True)
    conversation.take("Hello")
    out = capsys.readouterr().out.splitlines()
    assert (out[0], out[-1]) == ("model: a [2Jb c", "  score 0.00  log p 0.00  a [2Jb c")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with releases of an untrained decoder and an untrained encoder, of 300 and 70 tokens."""
    root = tmp_path_factory.mktemp("chat")
    write_text_cache(root / "cache", tokenizers.train_bpe, 300, 16)
    for name in ("gpt.llama2_7b", "bert.quickstart"):
        e = registry.tiny(registry.load(name))
        e = dataclasses.replace(e, model=dataclasses.replace(e.model, vocab=320))
        params = fresh_state(make_plan(e, jax.devices()[:1])).params
        release.write_weights(Arrays(e.model, params, root / "cache"), e, root / name, "untrained")
    return root


@pytest.fixture
def run(folder, tmp_path, monkeypatch, capsys):
    """A function that runs the command with lines on its standard input, and returns what it prints."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))  # no dictionary there
    monkeypatch.setattr(cli, "use_devices", lambda layout: None)  # the tests' devices are there already

    def command(lines: str, *args: str, model: str = "gpt.llama2_7b") -> list[str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        monkeypatch.setattr("sys.argv", ["chat", "--checkpoint", str(folder / model), *args])
        assert chat.main() == 0
        out, err = capsys.readouterr()
        assert ("only tool is the calculator" in err) == ("--no-tools" not in args)
        return out.splitlines()

    return command


@pytest.mark.integration
@pytest.mark.slow
def test_a_piped_chat_is_a_transcript(run):
    """The best of the candidates is the reply; another reply is another draw; the same seed gives the same transcript."""
    lines = "the cat\n/candidates\n/again\nWhat is 6*7?\n/tools\n/quit\nnever read\n"
    out = run(lines, "--candidates", "3")
    assert [line for line in out if line.startswith("user:")] == [f"user:  {line}" for line in lines.split("\n")[:6]]
    first, second, third = (line.removeprefix("model: ") for line in out if line.startswith("model: "))
    candidates = [line for line in out if line.startswith("  score")]
    assert len(candidates) == 3 and candidates[0].endswith(first) and first != second
    scores = [float(line.split()[1]) for line in candidates]
    assert scores == sorted(scores, reverse=True) and third
    assert out[-3:] == ["  asked by the rule: 6*7", "    42", "user:  /quit"]
    assert run(lines, "--candidates", "3") == out
    assert run(lines, "--candidates", "3", "--seed", "7") != out


@pytest.mark.integration
def test_one_candidate_is_streamed(run, monkeypatch):
    """The line of the reply is printed in pieces while it is drawn, and is the candidate in the end."""
    pieces: list[str] = []
    call = Stream.__call__
    monkeypatch.setattr(Stream, "__call__", lambda self, text: (pieces.append(text), call(self, text)))
    out = run("the cat\n", "--candidates", "1", "--show", "--no-tools")
    _, reply, tools, candidate = out
    assert tools == "  no tool was asked"
    assert len(pieces) > 1 and chat.printable(pieces[-1].strip()) == reply.removeprefix("model: ")
    assert all(later.startswith(earlier.rstrip("\ufffd")) for earlier, later in itertools.pairwise(pieces))
    assert candidate.endswith(reply.removeprefix("model: "))


@pytest.mark.integration
def test_what_cannot_chat_is_refused(run):
    """An encoder does not continue text; no candidate is none to choose from."""
    with pytest.raises(DataError, match=r"^models of family 'bert' do not continue text$"):
        run("", model="bert.quickstart")
    with pytest.raises(cli.ConfigError, match=r"^--candidates 0: must be at least 1$"):
        run("", "--candidates", "0")
