"""Continues text with a trained or released decoder, or writes text for text with an encoder-decoder.

    python -m scripts.generate --checkpoint runs/gpt "It was a dark and"
    python -m scripts.generate --checkpoint .data/weights/smollm2_135m "The capital of France is" --tokens 16
    python -m scripts.generate --checkpoint DIR "Once" --temperature 0.8 --top-p 0.95 --samples 3 --seed 1
    python -m scripts.generate --checkpoint runs/tuned --chat "What is a lark?"
    cat prompts | python -m scripts.generate --checkpoint DIR --beams 4 --json

DIR is a run's workdir, a release, a Hugging Face folder or a GGUF file. Without options, the likeliest token is taken each time.
With --chat a prompt is the first turn of a conversation, as scripts.chat holds one. An encoder-decoder that was trained on inputs
and targets (T5, Switch) prints what it writes for each prompt; it searches, and draws nothing.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.config import DataConfig, Decode
from models.sharding.layouts import ONE_DEVICE
from scripts import cli


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_checkpoint(parser, "a workdir, release, HF folder, GGUF")
    add_sampling(parser)
    parser.add_argument("--beams", type=int, default=0, help="hypotheses of a beam search; 0 does not search")
    parser.add_argument("--length-penalty", type=float, default=0.0, help="of a beam search: favours longer texts as it grows")
    parser.add_argument("--samples", type=int, default=1, help="continuations of each prompt")
    parser.add_argument("--layout", metavar="NAME:XxY", help="generate under a layout of the family; one device by default")
    parser.add_argument("--chat", action="store_true", help="a prompt is a user's turn, in the form of scripts.chat")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("prompt", nargs="*", help="prompts; without any, standard input is read, one prompt a line")
    args = parser.parse_args()
    check_sampling(args, samples=1, beams=0)
    prompts = args.prompt or sys.stdin.read().removesuffix("\n").split("\n")

    cli.use_devices(cli.SIMULATED if args.layout else ONE_DEVICE)
    from data import progress
    from data.kinds import task_of
    from trainers.inference.forms import form_of
    from trainers.inference.generation import Generate, Generator
    from trainers.inference.load import load

    progress.show(not args.json)
    e, weights = cli.opened(args.checkpoint, args.step, args.dtype)
    if weights.vocabulary is None:
        raise cli.ConfigError(f"{args.checkpoint} has no vocabulary (tokenizer.json): it was trained on random tokens")
    form = form_of(task_of(e.data), weights.vocabulary, args.checkpoint, weights.config) if args.chat else None
    layout = cli.named_layout(e, args.layout) if args.layout else ONE_DEVICE
    served = load(weights, e.execution, layout)
    rows = -(-min(8, len(prompts)) // layout.devices) * layout.devices
    outputs = written(served, e.data, weights.vocabulary, args, prompts, rows)
    if outputs is not None:
        named = [{"prompt": prompt, "output": output} for prompt, output in zip(prompts, outputs, strict=True)]
        cli.print_json(named) if args.json else print("\n".join(outputs))
        return 0
    fields = {f.name for f in dataclasses.fields(Generate)} & vars(args).keys()
    config = Generate(batch_size=rows, **{name: getattr(args, name) for name in fields})
    given = [form.prompt([{"role": "user", "content": text}]) for text in prompts] if form else prompts
    generated = Generator(served.model, config, weights.vocabulary, form=form)(served.params, given)
    if args.json:
        pairs = zip(prompts, generated, strict=True)
        cli.print_json(
            [{"prompt": prompt, "continuations": [c._asdict() for c in continuations]} for prompt, continuations in pairs]
        )
    else:
        for prompt, continuations in zip(prompts, generated, strict=True):
            for continuation in continuations:
                print(continuation.text.strip() if form else prompt + continuation.text)
    return 0


def written(
    served: Any, data: DataConfig, vocabulary: Path, args: argparse.Namespace, prompts: Sequence[str], rows: int
) -> list[str] | None:
    """Returns what an encoder-decoder writes for each prompt; None where the model or its data are of another kind."""
    from data.decoding import WritesTexts
    from data.kinds import task_of
    from data.task import Task
    from models.protocol import ContinuesText
    from trainers.inference.decoder import Decoder

    task = task_of(data)
    if isinstance(served.model, ContinuesText) or type(task).decoding is Task.decoding:
        return None
    decoding = task.decoding(vocabulary)
    if not isinstance(decoding, WritesTexts):
        return None
    if args.temperature or args.samples > 1:
        raise cli.ConfigError("--temperature, --samples: an encoder-decoder searches for its outputs; take --beams")
    config = Decode(max_length=args.tokens, beams=max(1, args.beams), length_penalty=args.length_penalty, batch_size=rows)
    return Decoder(served.model, config, decoding)(served.params, [decoding.given(prompt) for prompt in prompts])


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that say how a text is drawn."""
    parser.add_argument(
        "--tokens", type=int, default=64, help="the most tokens of a continuation; by default 64, of a reply of scripts.chat 512"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        help="of what is drawn; 0, the default but of ranked replies, takes the likeliest token",
    )
    parser.add_argument(
        "--top-k", type=int, default=0, help="draw from so many of the likeliest tokens; 0: from all, the default"
    )
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="draw from the likeliest tokens that have this probability together"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn; 0")


def check_sampling(args: argparse.Namespace, **least: int) -> None:
    """Raises ConfigError where an argument of `add_sampling`, or another that is given, is below its least value."""
    for name, lowest in {"tokens": 1, "top_k": 0, "temperature": 0, **least}.items():
        if (value := getattr(args, name)) is not None and value < lowest:
            raise cli.ConfigError(f"--{name.replace('_', '-')} {value}: must be at least {lowest}")
    if not 0 < args.top_p <= 1:
        raise cli.ConfigError(f"--top-p {args.top_p}: must be above 0 and at most 1")


if __name__ == "__main__":
    cli.run(main)
