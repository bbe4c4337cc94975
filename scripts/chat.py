"""Talks with a model that continues text.

    python -m scripts.chat --checkpoint runs/lamda
    printf 'Hello!\\nWhat is a lark?\\n/tools\\n' | python -m scripts.chat --checkpoint DIR --candidates 4

DIR is a workdir, a release, a Hugging Face folder or a GGUF file. A line is a turn, or a command:

    /candidates   the candidates of the last turn, the best first: score, log-probability, ratings, text
    /tools        what the toolset was asked in the last turn, by whom, and what it answered
    /again        another reply to the last turn
    /quit         the end, as is the end of the input

Candidates are drawn and ranked before the best can be shown. With --candidates 1, the reply is shown as it is drawn. The toolset
is a calculator and, after `python -m scripts.prepare_data reference`, a dictionary and descriptions of packages.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from models.errors import UserError, nearest
from models.sharding.layouts import ONE_DEVICE
from scripts import cli
from trainers.inference.tool_loop import Reply, for_user, reply
from trainers.inference.tools import reference
from trainers.inference.tools.toolset import Toolset

if TYPE_CHECKING:  # main imports it, after JAX is set up
    from trainers.inference.sample_and_rank import Candidate


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_checkpoint(parser, "a workdir, release, HF folder, GGUF")
    parser.add_argument("--candidates", type=int, default=16, help="replies that are drawn and ranked")
    parser.add_argument("--top-k", type=int, default=40, help="draws among so many likeliest tokens; 0 among all")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--show", action="store_true", help="print the candidates of every turn")
    parser.add_argument("--no-tools", action="store_true", help="ask no tools")
    args = parser.parse_args()
    for name, least in (("candidates", 1), ("top_k", 0), ("seed", 0)):
        if getattr(args, name) < least:
            raise cli.ConfigError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be at least {least}")

    cli.use_devices(ONE_DEVICE)
    from data.kinds import task_of
    from trainers.inference.load import load
    from trainers.inference.sample_and_rank import Respond, Responder

    e, weights = cli.opened(args.checkpoint, args.step, args.dtype)
    if weights.vocabulary is None:
        raise cli.ConfigError(f"{args.checkpoint} has no vocabulary (tokenizer.json): it was trained on random tokens")
    served = load(weights, e.execution)
    config = Respond(candidates=args.candidates, top_k=args.top_k, seed=args.seed)
    stream = Stream() if args.candidates == 1 else None
    responder = Responder(served.model, config, weights.vocabulary, task_of(e.data), stream)
    seeds = itertools.count(args.seed)
    index = None if args.no_tools else reference.prepared()
    if not (args.no_tools or index):
        print(
            f"no dictionary is prepared, so the only tool is the calculator; "
            f"run: python -m scripts.prepare_data {reference.NAME}",
            file=sys.stderr,
        )
    toolset = None if args.no_tools else Toolset(index)
    chat = Chat(lambda turns: responder(served.params, turns, next(seeds)), toolset, args.show, stream)
    for line in lines():
        if not chat.take(line):
            break
    return 0


def lines() -> Iterator[str]:
    """Yields the user's lines, without empty ones; those that are not typed at a terminal are printed, as a transcript."""
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
    """Returns a text with a blank for each character that could command a terminal, or begin a line."""
    return "".join(c if c.isprintable() else " " for c in text)


class Stream:
    """Prints an output of the model as it grows, as far as it is certainly for the user."""

    def __init__(self):
        self.printed = ""

    def __call__(self, beginning: str) -> None:
        """Prints what is new of an output whose beginning is known; half a character waits for its other half."""
        text = printable(for_user(beginning).rstrip("\ufffd"))
        if text.startswith(self.printed):
            print(text[len(self.printed) :], end="", flush=True)
            self.printed = text

    def end(self, text: str) -> None:
        """Prints what is missing of the whole text, and begins a new one."""
        text = printable(text)
        print(text[len(self.printed) :] if text.startswith(self.printed) else f" ... {text}", flush=True)
        self.printed = ""


class Chat:
    """A conversation.

    Args:
      respond: the candidates for the turn after these turns, best first.
      toolset: None asks nothing.
      show: print the candidates of every turn.
      stream: what `respond` prints with while it draws.
    """

    def __init__(
        self,
        respond: Callable[[Sequence[str]], Sequence["Candidate"]],
        toolset: Toolset | None,
        show: bool = False,
        stream: Stream | None = None,
    ):
        self.respond, self.toolset, self.show, self.stream = respond, toolset, show, stream or Stream()
        self.turns: list[str] = []
        self.last: Reply | None = None

    def take(self, line: str) -> bool:
        """Prints the reply to a turn of the user, or what a command asks for; returns whether the conversation goes on."""
        commands = {"/candidates": self.print_candidates, "/tools": self.print_tools, "/again": self.again}
        if not line.startswith("/"):
            self.answer([*self.turns, line])
        elif line == "/quit":
            return False
        elif line not in commands:
            print(f"no command {line!r}{nearest(line, [*commands, '/quit'])}")
        elif self.last is None:
            print("nothing was said yet")
        else:
            commands[line]()
        return True

    def answer(self, turns: list[str]) -> None:
        """Prints a reply to the last of the turns, which are then the conversation."""
        print("model: ", end="", flush=True)
        try:
            self.last = reply(self.respond, turns, self.toolset)
        except UserError as error:  # too long a turn: the conversation goes on without it
            print(f"({error})")
            return
        self.stream.end(self.last.text)
        self.turns = [*turns, self.last.text]
        if self.show:
            self.print_tools()
            self.print_candidates()

    def again(self) -> None:
        """Prints another reply to the last turn of the user, in the place of the one before."""
        self.answer(self.turns[:-1])

    def print_tools(self) -> None:
        """Prints what the toolset was asked for the last reply, by whom, and what came back."""
        assert self.last is not None
        for query in self.last.queries:
            print(f"  asked by the {query.asked_by}: {printable(query.text)}\n    {query.snippet or 'no answer'}")
        if not self.last.queries:
            print("  no tool was asked")

    def print_candidates(self) -> None:
        """Prints the candidates of the last reply, the best first."""
        assert self.last is not None
        for c in self.last.candidates:
            ratings = "".join(f"  {name} {rating:.2f}" for name, rating in c.ratings.items())
            print(f"  score {c.score:.2f}  log p {c.log_probability:.2f}{ratings}  {printable(c.text).strip()}")


if __name__ == "__main__":
    cli.run(main)
