"""Names the class of texts or pictures with a trained model.

    python -m scripts.classify --checkpoint runs/sections "terminal emulator for GNOME" "Python bindings for libcurl"
    python -m scripts.classify --checkpoint runs/clothes shoe.png --top 5
    python -m scripts.classify --checkpoint DIR --file examples.jsonl > labelled.jsonl

DIR is a run's workdir or a release. For each text or picture on the command line, a line is printed: probability, label, text.
Below it are the labels that are likely next. A file has one example a line, {"text": ...}, {"text": ..., "pair": ...} or
{"picture": FILE}; the examples are printed in the same order, with "label" and "probability". --votes 4 adds "votes", four labels
in proportion to their probabilities: [a, a, a, b] if a has three quarters.
"""

import json
from pathlib import Path
from typing import Any

from data import untrusted
from models.sharding.layouts import ONE_DEVICE
from scripts import cli


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_checkpoint(parser, "a workdir or a release")
    parser.add_argument("--file", type=cli.folder, metavar="FILE", help="a file of examples, one JSON object a line")
    parser.add_argument(
        "--votes", type=int, default=0, metavar="N", help="with --file: print N labels in proportion to their probabilities"
    )
    parser.add_argument(
        "--top", type=int, metavar="N", help="print the N likeliest labels: 1 of texts and 5 of pictures by default"
    )
    parser.add_argument("example", nargs="*", help="texts to classify, or files of pictures")
    args = parser.parse_args()
    if bool(args.example) == bool(args.file):
        raise cli.ConfigError("give either texts, or pictures, or --file")
    if args.votes < 0:
        raise cli.ConfigError(f"--votes {args.votes}: expected a number from 0 on")
    if args.top is not None and args.top < 1:
        raise cli.ConfigError(f"--top {args.top}: expected a number from 1 on")

    cli.use_devices(ONE_DEVICE)
    from trainers.inference.classification import Classifier, votes
    from trainers.inference.load import load

    e, weights = cli.opened(args.checkpoint, args.step, args.dtype)
    served = load(weights, e.execution)
    classifier = Classifier(served.model, e, weights.vocabulary or (args.checkpoint if args.checkpoint.is_dir() else None))
    given = classifier.task.given
    examples = read(args.file, given) if args.file else [{given: example} for example in args.example]
    probabilities = classifier(served.params, examples)
    for example, class_probabilities, elected in zip(examples, probabilities, votes(probabilities, args.votes), strict=True):
        likeliest = class_probabilities.argsort(kind="stable")[::-1]
        label, probability = classifier.labels[likeliest[0]], float(class_probabilities[likeliest[0]])
        if args.file:
            fields = {"votes": [classifier.labels[i] for i in elected]} if args.votes else {}
            print(json.dumps({**example, "label": label, "probability": probability, **fields}, ensure_ascii=False))
        else:
            print(f"{probability:.2f}  {label:14}  {example[given]}")
            for at in likeliest[1 : args.top or classifier.task.shown]:
                print(f"{class_probabilities[at]:.2f}  {classifier.labels[at]}")
    return 0


def read(path: Path, given: str) -> list[dict[str, Any]]:
    """Returns the examples of a file; raises ConfigError for a line that is not an example with the field `given`."""
    examples = []
    for number, example in untrusted.json_lines(path, cli.ConfigError):
        if not isinstance(example.get(given), str):
            raise cli.ConfigError(f'{path}, line {number}: expected a JSON object with a "{given}"')
        examples.append(example)
    return examples


if __name__ == "__main__":
    cli.run(main)
