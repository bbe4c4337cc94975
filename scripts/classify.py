"""Names the class of texts with a fine-tuned encoder.

    python -m scripts.classify --checkpoint runs/sections "terminal emulator for GNOME" "Python bindings for libcurl"
    python -m scripts.classify --checkpoint DIR --file examples.jsonl > labelled.jsonl

DIR is a run's workdir or a release. For each text on the command line, one line is printed: probability, label, text. A file has
one example a line, {"text": ...} or {"text": ..., "pair": ...}; the examples are printed in the same order, with "label" and
"probability". --votes 4 adds "votes", four labels in proportion to their probabilities: [a, a, a, b] if a has three quarters.
"""

import json
from pathlib import Path
from typing import Any

from models.sharding.layouts import ONE_DEVICE
from scripts import cli


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("--checkpoint", type=cli.folder, required=True, metavar="DIR", help="a workdir or a release")
    parser.add_argument("--step", type=int, help="the checkpoint of a workdir; the newest by default")
    parser.add_argument("--file", type=cli.folder, metavar="FILE", help="a file of examples, one JSON object a line")
    parser.add_argument(
        "--votes",
        type=int,
        default=0,
        metavar="N",
        help="with --file: print N labels in proportion to their probabilities",
    )
    parser.add_argument("text", nargs="*", help="texts to classify")
    args = parser.parse_args()
    if bool(args.text) == bool(args.file):
        raise cli.ConfigError("give either texts or --file")
    if args.votes < 0:
        raise cli.ConfigError(f"--votes {args.votes}: expected a number from 0 on")
    examples = read(args.file) if args.file else [{"text": text} for text in args.text]

    cli.use_devices(ONE_DEVICE)
    from trainers.evaluation.classification import Classifier, votes
    from trainers.evaluation.place import placed
    from trainers.weights.open import open_model

    e, weights = open_model(args.checkpoint, args.step)
    plan, params = placed(e, weights)
    classifier = Classifier(plan.model, e, weights.vocabulary)
    probabilities = classifier(params, examples)
    for example, class_probabilities, elected in zip(
        examples, probabilities, votes(probabilities, args.votes), strict=True
    ):
        best = int(class_probabilities.argmax())
        label, probability = classifier.labels[best], float(class_probabilities[best])
        if args.file:
            fields = {"votes": [classifier.labels[i] for i in elected]} if args.votes else {}
            print(json.dumps({**example, "label": label, "probability": probability, **fields}, ensure_ascii=False))
        else:
            print(f"{probability:.2f}  {label:14}  {example['text']}")
    return 0


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the examples of a file; raises ConfigError for a line that is not an example."""
    examples = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                example = json.loads(line)
            except ValueError:
                example = None
            if not isinstance(example, dict) or not isinstance(example.get("text"), str):
                raise cli.ConfigError(f'{path}, line {number}: expected a JSON object with a "text"')
            examples.append(example)
    return examples


if __name__ == "__main__":
    cli.run(main)
