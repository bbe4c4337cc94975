"""Holds a conversation with a model that was tuned on conversations, in their form.

    python -m scripts.chat --checkpoint .data/weights/smollm2_135m --system "Answer in one sentence."
    python -m scripts.chat --checkpoint runs/tuned --temperature 0.7 --top-p 0.9
    printf 'Hello!\\nWhat is a lark?\\n/save talk.jsonl\\n' | python -m scripts.chat --checkpoint DIR

DIR is a workdir, a release, a Hugging Face folder or a GGUF file. Its chat template writes the conversation; a reply is shown as
it is drawn. A line is a turn, or a command:

    /again          another reply to the last turn
    /system TEXT    another system prompt; without a text, none
    /reset          a new conversation, with the same system prompt
    /save FILE      writes the conversation to FILE.jsonl, which scripts.prepare_data reads
    /quit           the end, as is the end of the input; Ctrl-C ends a reply

A model that was tuned to rate its responses, as lamda.smollm2_chat, draws 16 candidates and ranks them (--candidates), may ask a
calculator and, after `python -m scripts.prepare_data reference`, a dictionary, and has no system prompt but two further commands:

    /candidates     the candidates of the last turn, the best first: score, log-probability, ratings, text
    /tools          what the toolset was asked in the last turn, by whom, and what it answered
"""

import argparse
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data import paths
from models.errors import UserError, nearest
from models.sharding.layouts import ONE_DEVICE
from scripts import cli
from scripts.generate import add_sampling, check_sampling
from trainers.inference.tool_loop import Reply, for_user, reply

if TYPE_CHECKING:  # main imports it, after JAX is set up
    from data.vocabularies.chat_templates import Message
    from trainers.inference.forms import Form, RatedForm
    from trainers.inference.generation import Generate
    from trainers.inference.load import Served

Respond = Callable[[Sequence["Message"]], Reply]

# What a checkpoint's form leaves open: of a template, and of one whose responses are rated.
TEMPLATE = {"tokens": 512, "temperature": 0.0, "top_k": 0, "context": None}
RATED = {"tokens": 64, "temperature": 1.0, "top_k": 40, "context": 256, "candidates": 16}
CONTEXT = 2048  # tokens of a conversation and its reply, where neither the model nor its files bound them
PLACES = 256  # of the first program's prompts: a conversation grows
KEPT = 512  # places of the cache for the turns after a reply


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_checkpoint(parser, "a workdir, release, HF folder, GGUF")
    add_sampling(parser)
    parser.set_defaults(tokens=None, temperature=None, top_k=None)
    parser.add_argument("--system", help="the system prompt")
    parser.add_argument(
        "--context", type=int, help="tokens of a conversation that are read, without its oldest turns; by default all that fit"
    )
    parser.add_argument("--candidates", type=int, help="of rated responses: replies that are drawn and ranked, by default 16")
    parser.add_argument("--show", action="store_true", help="of rated responses: print the candidates of every turn")
    parser.add_argument("--no-tools", action="store_true", help="of rated responses: ask no tools")
    args = parser.parse_args()
    check_sampling(args, candidates=1, context=1, seed=0)

    cli.use_devices(ONE_DEVICE)
    from data.kinds import task_of
    from trainers.inference.forms import RatedForm, form_of
    from trainers.inference.load import load

    e, weights = cli.opened(args.checkpoint, args.step, args.dtype)
    if weights.vocabulary is None:
        raise cli.ConfigError(f"{args.checkpoint} has no vocabulary (tokenizer.json): it was trained on random tokens")
    form = form_of(task_of(e.data), weights.vocabulary, args.checkpoint, weights.config)
    rated = isinstance(form, RatedForm)
    for name in ["system"] if rated else ["candidates", "show", "no_tools"]:
        if getattr(args, name):
            why = "whose conversations have no system prompt" if rated else "which was not tuned to rate responses"
            raise cli.ConfigError(f"--{name.replace('_', '-')} is not for {args.checkpoint}, {why}")
    for name, value in (RATED if rated else TEMPLATE).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.system:
        form.prompt([*system_turn(args.system), {"role": "user", "content": "Hi"}])  # a template may refuse it
    served = load(weights, e.execution)
    stream = Stream(rated)
    respond = ranked(served, form, args, stream) if isinstance(form, RatedForm) else templated(served, form, args, stream)
    chat = Chat(respond, stream, system=args.system or "", rated=rated, draws=args.temperature > 0, show=args.show)
    for line in lines():
        if not chat.take(line):
            break
    return 0


def settings(args: argparse.Namespace, served: "Served") -> tuple["Generate", int]:
    """Returns how a reply is drawn, and the most tokens of a conversation that are read for it."""
    from data.vocabularies import boundaries
    from models.protocol import ContinuesText
    from trainers.inference.generation import Generate

    assert served.vocabulary
    learned = served.model.longest if isinstance(served.model, ContinuesText) else None  # Generator refuses other models
    longest = min(n for n in (learned, boundaries.longest(served.vocabulary), sys.maxsize) if n)
    longest = longest if longest < sys.maxsize else max(CONTEXT, (args.context or 0) + args.tokens)
    tokens = min(args.tokens, longest // 2)
    config = Generate(
        tokens=tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        samples=args.candidates or 1,
        seed=args.seed,
        batch_size=1,
        length=PLACES,
        kept=min(KEPT, longest),
    )
    return config, min(args.context or longest, longest - tokens)


def templated(served: "Served", form: "Form", args: argparse.Namespace, stream: "Stream") -> Respond:
    """Returns the function that replies to a conversation in a chat template."""
    from trainers.inference.generation import Generator

    assert served.vocabulary
    config, room = settings(args, served)
    generator = Generator(served.model, config, served.vocabulary, stream, form=form)
    seeds = itertools.count(args.seed)

    def respond(messages: Sequence["Message"]) -> Reply:
        ids, left_out = form.fitting(messages, room)
        ((drawn,),) = generator(served.params, [ids], next(seeds))
        cut = [f"cut after {config.tokens} tokens (--tokens)"] if len(drawn.ids) == config.tokens else []
        return Reply(drawn.text, remarks=[*cut, *shortened(left_out, room)])

    return respond


def ranked(served: "Served", form: "RatedForm", args: argparse.Namespace, stream: "Stream") -> Respond:
    """Returns the function that replies with the best of several candidates, and may ask tools before."""
    from trainers.inference.sample_and_rank import Responder
    from trainers.inference.tools import reference
    from trainers.inference.tools.toolset import Toolset

    config, room = settings(args, served)
    responder = Responder(served.model, config, form, stream if config.samples == 1 else None)
    seeds = itertools.count(args.seed)
    index = None if args.no_tools else reference.prepared()
    if not (args.no_tools or index):
        print(
            f"no dictionary is prepared, so the only tool is the calculator; "
            f"run: python -m scripts.prepare_data {reference.NAME}",
            file=sys.stderr,
        )
    toolset = None if args.no_tools else Toolset(index)

    def respond(messages: Sequence["Message"]) -> Reply:
        turns = [message["content"] for message in messages]
        answer = reply(lambda turns: responder(served.params, turns, room, next(seeds)), turns, toolset)
        return answer._replace(remarks=shortened(form.fitting(messages, room)[1], room))

    return respond


def shortened(left_out: int, room: int) -> list[str]:
    """Returns the remark that a conversation was read without its oldest turns, if it was."""
    return [f"the oldest {left_out} turns were left out: only {room} tokens are read (--context)"] if left_out else []


def lines() -> Iterator[str]:
    """Yields the user's lines, without empty ones; those that are not typed at a terminal are printed, as a transcript.

    Bytes that are no UTF-8 are U+FFFD.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    typed = sys.stdin.isatty()
    while True:
        try:
            line = input("user:  " if typed else "").strip()
        except (EOFError, KeyboardInterrupt):
            print(end="\n" if typed else "")
            return
        if line:
            if not typed:
                print(f"user:  {line}")
            yield line


def printable(text: str) -> str:
    """Returns a text with a blank for each character that could command a terminal, its lines after the first indented."""
    plain = "\n".join("".join(c if c.isprintable() else " " for c in line) for line in text.strip().split("\n"))
    return plain.replace("\n", "\n       ")  # below "model: ": no line of a model looks like a user's


class Stream:
    """Prints an output of the model as it grows, where it may ask tools as far as it is certainly for the user."""

    def __init__(self, asks: bool = False):
        self.asks, self.printed = asks, ""

    def __call__(self, beginning: str) -> None:
        """Prints what is new of an output whose beginning is known; half a character waits for its other half."""
        text = printable((for_user(beginning) if self.asks else beginning).rstrip("\ufffd"))
        if text.startswith(self.printed):
            print(text[len(self.printed) :], end="", flush=True)
            self.printed = text

    def end(self, text: str) -> None:
        """Prints what is missing of the whole text, and begins a new one."""
        text = printable(text)
        print(text[len(self.printed) :] if text.startswith(self.printed) else f" ... {text}", flush=True)
        self.printed = ""


def system_turn(text: str) -> list["Message"]:
    """Returns the message with which a conversation with a system prompt begins; none without."""
    return [{"role": "system", "content": text}] if text else []


class Chat:
    """A conversation.

    Args:
      respond: the reply to these messages, the last of which is the user's.
      stream: what `respond` prints with while it draws.
      system: the system prompt.
      rated: whether replies are the best of candidates, before which tools may be asked.
      draws: whether another reply to the same turn may be another one.
      show: print the candidates of every turn.
    """

    def __init__(
        self,
        respond: Respond,
        stream: Stream | None = None,
        *,
        system: str = "",
        rated: bool = False,
        draws: bool = True,
        show: bool = False,
    ):
        self.respond, self.stream, self.system, self.draws, self.show = respond, stream or Stream(), system, draws, show
        self.turns: list[Message] = []
        self.last: Reply | None = None
        self.saved: Path | None = None  # the file that has this conversation
        self.of_a_turn = {"/again": self.again, "/save": self.save}
        self.of_a_turn |= {"/candidates": self.print_candidates, "/tools": self.print_tools} if rated else {}
        self.commands = self.of_a_turn | {"/reset": self.reset} | ({} if rated else {"/system": self.change_system})

    def take(self, line: str) -> bool:
        """Prints the reply to a turn of the user, or what a command asks for; returns whether the conversation goes on."""
        name, _, text = line.partition(" ")
        if not line.startswith("/"):
            self.answer([*self.turns, {"role": "user", "content": line}])
        elif name == "/quit":
            return False
        elif name not in self.commands:
            print(f"no command {name!r}{nearest(name, [*self.commands, '/quit'])}")
        elif self.last is None and name in self.of_a_turn:
            print("nothing was said yet")
        else:
            self.commands[name](text.strip())
        return True

    def answer(self, turns: list["Message"]) -> None:
        """Prints a reply to the last of the turns, which are then the conversation; one that fails or is stopped is no turn."""
        print("model: ", end="", flush=True)
        try:
            self.last = self.respond([*system_turn(self.system), *turns])
        except (UserError, KeyboardInterrupt) as error:  # too long a turn, or one that the template refuses
            self.stream.end(f"({str(error) or 'stopped'})")
            return
        self.stream.end(self.last.text)
        for remark in self.last.remarks:
            print(f"  ({remark})")
        self.turns = [*turns, {"role": "assistant", "content": self.last.text}]
        if self.show:
            self.print_tools()
            self.print_candidates()

    def again(self, _: str = "") -> None:
        """Prints another reply to the last turn of the user, in the place of the one before."""
        if self.draws:
            self.answer(self.turns[:-1])
        else:
            print("the reply is always the same: --temperature 0 takes the likeliest token each time")

    def reset(self, _: str = "") -> None:
        """Begins another conversation."""
        self.turns, self.last, self.saved = [], None, None
        print("a new conversation")

    def change_system(self, text: str) -> None:
        """Takes another system prompt, of the conversation so far too."""
        self.system = text
        print(f"system: {text}" if text else "no system prompt")

    def save(self, name: str) -> None:
        """Writes the conversation as a line of JSON that scripts.prepare_data reads; a file of another is not replaced."""
        path = Path(name).expanduser()
        if path.suffix != ".jsonl":
            print(f"/save {name}: the file of a conversation is named NAME.jsonl")
        elif path.exists() and path != self.saved:
            print(f"{path} is there already: choose another name")
        else:
            messages = [*system_turn(self.system), *self.turns]
            try:
                paths.write_whole(path, json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
            except OSError as error:
                print(f"not saved: {error}")
                return
            self.saved = path
            print(f"saved {len(messages)} messages to {path}")

    def print_tools(self, _: str = "") -> None:
        """Prints what the toolset was asked for the last reply, by whom, and what came back."""
        assert self.last is not None
        for query in self.last.queries:
            print(f"  asked by the {query.asked_by}: {printable(query.text)}\n    {query.snippet or 'no answer'}")
        if not self.last.queries:
            print("  no tool was asked")

    def print_candidates(self, _: str = "") -> None:
        """Prints the candidates of the last reply, the best first."""
        assert self.last is not None
        for c in self.last.candidates:
            ratings = "".join(f"  {name} {rating:.2f}" for name, rating in c.ratings.items())
            print(f"  score {c.score:.2f}  log p {c.log_probability:.2f}{ratings}  {printable(c.text).strip()}")


if __name__ == "__main__":
    cli.run(main)
