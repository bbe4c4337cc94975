"""The terminal chat: its commands with a scripted model, and the whole of it with tiny ones."""

import dataclasses
import io
import itertools

import jax
import pytest

from configs import registry
from data.chat import sources
from data.task import DataError
from data.vocabularies.marks import TemplateRefusal
from scripts import chat, cli, generate
from scripts.chat import Chat, Stream
from tests.helpers.chats import write_vocabulary
from tests.helpers.conversations import write_dialog_cache
from trainers.inference.sample_and_rank import Candidate
from trainers.inference.tool_loop import Reply, reply
from trainers.inference.tools.toolset import Toolset
from trainers.plan import fresh_state, make_plan
from trainers.weights import release
from trainers.weights.source import Arrays


class Model:
    """Replies with the number of its call and the roles that it reads, of which it knows the last messages too."""

    def __init__(self):
        self.calls = 0

    def __call__(self, messages):
        self.calls += 1
        self.messages = list(messages)
        return Reply(f"call {self.calls} reads {''.join(m['role'][0] for m in messages)}")


class RatedModel:
    """Replies with the best of two candidates, and asks the calculator."""

    def __call__(self, messages):
        texts = [f"reads {len(messages)}", "worse"]
        candidates = [Candidate(text, -2.5, {"sensible": 0.75}, s) for text, s in zip(texts, (3.0, 1.0), strict=True)]
        return reply(lambda turns: candidates, [m["content"] for m in messages], Toolset())


@pytest.fixture
def talk(capsys):
    """A function that gives lines to a conversation and returns what is printed."""

    def take(conversation: Chat, *lines: str) -> list[str]:
        for line in lines:
            assert conversation.take(line)
        return capsys.readouterr().out.splitlines()

    return take


def test_a_conversation_grows_by_two_turns(talk):
    """The model reads all turns before, its own included."""
    assert talk(Chat(Model()), "Hello", "And?") == ["model: call 1 reads u", "model: call 2 reads uau"]


def test_again_replaces_the_last_reply(talk):
    """The turn is the same, the model is called anew, and its first reply is forgotten; what draws nothing says so."""
    assert talk(Chat(Model()), "Hello", "/again", "And?") == [
        f"model: call {n} reads {r}" for n, r in ((1, "u"), (2, "u"), (3, "uau"))
    ]
    assert talk(Chat(Model(), draws=False), "Hello", "/again")[1].startswith("the reply is always the same")


def test_a_system_prompt_stands_before_all_turns(talk):
    """It may change, also for the turns so far, and be taken away; a new conversation keeps it."""
    model = Model()
    conversation = Chat(model, system="Be brief.")
    assert talk(conversation, "Hello", "/reset", "Hi") == [
        "model: call 1 reads su",
        "a new conversation",
        "model: call 2 reads su",
    ]
    assert model.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert talk(conversation, "/system Be kind.", "And?") == ["system: Be kind.", "model: call 3 reads suau"]
    assert model.messages[0]["content"] == "Be kind."
    assert talk(conversation, "/system", "So?") == ["no system prompt", "model: call 4 reads uauau"]


def test_a_saved_conversation_is_one_that_prepare_data_reads(talk, tmp_path):
    """Its line holds all messages; the conversation may be saved again as it grows, and no other file is written over."""
    conversation, path = Chat(Model(), system="Be brief."), tmp_path / "talk.jsonl"
    assert talk(conversation, "Grüße", f"/save {path}")[1] == f"saved 3 messages to {path}"
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße"}]
    expected += [{"role": "assistant", "content": "call 1 reads su"}]
    assert sources.is_conversations(path) and list(sources.read(path)) == [{"messages": expected}]
    assert talk(conversation, "And?", f"/save {path}")[1] == f"saved 5 messages to {path}"
    (record,) = sources.read(path)
    assert record["messages"][:3] == expected and len(record["messages"]) == 5
    assert talk(conversation, "/reset", "Hello", f"/save {path}")[2] == f"{path} is there already: choose another name"
    assert talk(conversation, "/save talk.txt", "/save") == [
        f"/save {name}: the file of a conversation is named NAME.jsonl" for name in ("talk.txt", "")
    ]
    (tmp_path / "file").write_text("")
    assert talk(conversation, f"/save {tmp_path}/file/talk.jsonl")[0].startswith("not saved: ")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "talk.jsonl"]


def test_candidates_are_shown_with_their_figures(talk):
    """Every candidate has its score, log-probability and ratings, the best first."""
    assert talk(Chat(RatedModel(), rated=True), "Hello", "/candidates")[1:] == [
        "  score 3.00  log p -2.50  sensible 0.75  reads 1",
        "  score 1.00  log p -2.50  sensible 0.75  worse",
    ]


def test_tools_say_who_asked(talk):
    """A calculation of the user is asked by the rule; a turn that asks nothing says so."""
    conversation = Chat(RatedModel(), rated=True)
    assert talk(conversation, "What is 6*7?", "/tools")[1:] == ["  asked by the rule: 6*7", "    42"]
    assert talk(conversation, "Fine.", "/tools")[1:] == ["  no tool was asked"]
    assert talk(conversation, "What is a lark?", "/tools")[1:] == ["  asked by the rule: lark", "    no answer"]


def test_commands_are_checked(talk):
    """An unknown command is answered with the nearest one, as one of the other form is; one about a turn needs a turn."""
    assert talk(Chat(Model()), "/rest", "/again", "/save x.jsonl") == [
        "no command '/rest'; did you mean '/reset'?",
        *["nothing was said yet"] * 2,
    ]
    assert talk(Chat(Model()), "/candidates")[0].startswith("no command '/candidates'; ")
    assert talk(Chat(RatedModel(), rated=True), "/system x")[0].startswith("no command '/system'; ")


def test_quit_ends_the_conversation():
    """Nothing is printed, and no line after it is taken."""
    assert Chat(Model()).take("/quit") is False


def test_piped_lines_make_a_transcript(monkeypatch, capsys):
    """Lines that nobody types are printed; empty ones are passed over."""
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n\n /tools \n"))
    assert list(chat.lines()) == ["Hello", "/tools"]
    assert capsys.readouterr().out == "user:  Hello\nuser:  /tools\n"


def test_a_line_that_is_no_text_has_marks_in_it(monkeypatch):
    """Bytes of another encoding end no conversation, whatever Python would make of them."""
    for errors in ("strict", "surrogateescape"):
        typed = io.TextIOWrapper(io.BytesIO(b"caf\xe9?\nHello\n"), encoding="utf-8", errors=errors)
        monkeypatch.setattr("sys.stdin", typed)
        assert list(chat.lines()) == ["caf\ufffd?", "Hello"]


def test_a_turn_without_a_reply_is_passed_over(talk):
    """Too long a turn, or one that the template refuses, is a line, and so is a reply that is stopped; the conversation goes on
    without the turn."""
    problems = {"long": DataError("a turn is too long"), "no": TemplateRefusal("refused"), "stop": KeyboardInterrupt()}

    def respond(messages):
        if problem := problems.get(messages[-1]["content"]):
            raise problem
        return Reply(f"{len(messages)}", remarks=["a remark"])

    assert talk(Chat(respond), "Hello", *problems, "And?") == [
        "model: 1",
        "  (a remark)",
        "model: (a turn is too long)",
        "model: (refused)",
        "model: (stopped)",
        "model: 3",
        "  (a remark)",
    ]


def test_a_stream_prints_what_is_new(capsys):
    """Every beginning adds to the line; a query to the toolset, and half a character, are not shown."""
    stream = Stream(asks=True)
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


def test_lines_of_a_reply_are_indented(capsys):
    """A line break is shown once something follows it, and no line of a model looks like a user's."""
    stream = Stream()
    for beginning in ("Two:\n", "Two:\n\nuser:  a", "Two:\n\nuser:  a\n"):
        stream(beginning)
    stream.end("Two:\n\nuser:  a\n")
    assert capsys.readouterr().out == "Two:\n       \n       user:  a\n"


def test_a_model_commands_no_terminal(capsys):
    """Escape sequences and Unicode's line breaks in a model's text are blanks on the terminal."""
    candidates = [Candidate("a\x1b[2Jb\x85c", 0.0, {}, 0.0)]
    Chat(lambda messages: Reply(candidates[0].text, candidates), rated=True, show=True).take("Hello")
    out = capsys.readouterr().out.splitlines()
    assert (out[0], out[-1]) == ("model: a [2Jb c", "  score 0.00  log p 0.00  a [2Jb c")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with releases of untrained models: a decoder with a chat template, the same without, one whose task rates
    responses, and an encoder."""
    root = tmp_path_factory.mktemp("chat")
    vocabularies = {"gpt": write_vocabulary(root / "v1"), "base": write_vocabulary(root / "v2", None)}
    vocabularies |= {"bert": vocabularies["base"], "lamda": write_dialog_cache(root / "v3", 64)}
    names = {"gpt": "gpt.llama2_7b", "base": "gpt.llama2_7b", "lamda": "lamda.smollm2_chat", "bert": "bert.quickstart"}
    for name, vocabulary in vocabularies.items():
        e = registry.tiny(registry.load(names[name]))
        e = dataclasses.replace(e, model=dataclasses.replace(e.model, vocab=322))
        params = fresh_state(make_plan(e, jax.devices()[:1])).params
        release.write_weights(Arrays(e.model, params, vocabulary), e, root / name, "untrained")
    return root


@pytest.fixture
def run(folder, tmp_path, monkeypatch, capsys):
    """A function that runs a command with lines on its standard input, and returns what it prints."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))  # no dictionary there
    monkeypatch.setattr(cli, "use_devices", lambda layout: None)  # the tests' devices are there already

    def command(lines: str, *args: str, model: str = "gpt", module=chat) -> list[str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        monkeypatch.setattr("sys.argv", ["chat", "--checkpoint", str(folder / model), *args])
        assert module.main() == 0
        out, err = capsys.readouterr()
        assert ("only tool is the calculator" in err) == (model == "lamda" and "--no-tools" not in args)
        return out.splitlines()

    return command


@pytest.mark.integration
def test_a_conversation_is_written_in_the_template_and_streamed(run, monkeypatch, tmp_path):
    """Each turn's reply appears in pieces, is what `generate --chat` answers to a first turn, and stands in the conversation that
    is saved; older turns are left out of one that is too long, in one line."""
    pieces: list[str] = []
    call = Stream.__call__
    monkeypatch.setattr(Stream, "__call__", lambda self, text: (pieces.append(text), call(self, text)))
    saved = tmp_path / "talk.jsonl"
    out = run(f"the cat\nwhy\nso\n/save {saved}\n", "--tokens", "8", "--system", "a dog", "--context", "40")
    assert [line for line in out if line.startswith("user:")] == [
        f"user:  {line}" for line in ("the cat", "why", "so", f"/save {saved}")
    ]
    (record,) = sources.read(saved)
    contents = [message["content"] for message in record["messages"]]
    assert contents[:2] + contents[3::2] == ["a dog", "the cat", "why", "so"]
    assert len(pieces) > 3 and all(chat.printable(content) in "\n".join(out) for content in contents[2::2])
    assert any("turns were left out: only 40 tokens are read" in line for line in out)
    assert all(
        later.startswith(earlier.rstrip("\ufffd")) for earlier, later in itertools.pairwise(pieces) if len(later) > len(earlier)
    )
    first = run("the cat\n", "--tokens", "8")[1:]
    assert run("", "--tokens", "8", "--chat", "the cat", module=generate) == [
        line[7:] for line in first if not line.startswith("  (cut")
    ]


@pytest.mark.integration
@pytest.mark.slow
def test_a_rated_chat_is_a_transcript(run):
    """The best of the candidates is the reply; another reply is another draw; the same seed gives the same transcript."""
    lines = "the cat\n/candidates\n/again\nWhat is 6*7?\n/tools\n/quit\nnever read\n"
    out = run(lines, "--candidates", "3", model="lamda")
    assert [line for line in out if line.startswith("user:")] == [f"user:  {line}" for line in lines.split("\n")[:6]]
    first, second, third = (line.removeprefix("model: ") for line in out if line.startswith("model: "))
    candidates = [line for line in out if line.startswith("  score")]
    assert len(candidates) == 3 and candidates[0].endswith(first) and first != second
    scores = [float(line.split()[1]) for line in candidates]
    assert scores == sorted(scores, reverse=True) and third
    assert out[-3:] == ["  asked by the rule: 6*7", "    42", "user:  /quit"]
    assert run(lines, "--candidates", "3", model="lamda") == out
    assert run(lines, "--candidates", "3", "--seed", "7", model="lamda") != out


@pytest.mark.slow
@pytest.mark.integration
def test_one_candidate_is_streamed(run, monkeypatch):
    """The line of the reply is printed in pieces while it is drawn, and is the candidate in the end."""
    pieces: list[str] = []
    call = Stream.__call__
    monkeypatch.setattr(Stream, "__call__", lambda self, text: (pieces.append(text), call(self, text)))
    _, answer, tools, candidate = run("the cat\n", "--candidates", "1", "--show", "--no-tools", "--tokens", "12", model="lamda")
    assert tools == "  no tool was asked"
    assert len(pieces) > 1 and chat.printable(pieces[-1]) == answer.removeprefix("model: ")
    assert candidate.endswith(answer.removeprefix("model: ")) and " witty 0." in candidate


@pytest.mark.integration
def test_what_cannot_converse_is_refused(run, folder):
    """Without a template or rated responses there is one line, which names the command that takes the model; so is there for
    options of the other form, and for what a template refuses."""
    for module, args in ((chat, ()), (generate, ("--chat", "the cat"))):
        with pytest.raises(DataError, match=r"^.*/base has no chat template, .*; python -m scripts.generate continues texts$"):
            run("", *args, model="base", module=module)
    with pytest.raises(DataError, match=r"/bert has no chat template, .*; python -m scripts.evaluate scores it$"):
        run("", model="bert")
    with pytest.raises(cli.ConfigError, match=r"^--candidates 0: must be at least 1$"):
        run("", "--candidates", "0")
    with pytest.raises(cli.ConfigError, match=r"^--candidates is not for .*/gpt, which was not tuned to rate responses$"):
        run("", "--candidates", "2")
    with pytest.raises(cli.ConfigError, match=r"^--system is not for .*/lamda, whose conversations have no system prompt$"):
        run("", "--system", "the", model="lamda")
