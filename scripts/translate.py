"""Translates text with a trained model, or with a released M2M-100 or NLLB.

    python -m scripts.translate --checkpoint runs/quickstart --from sw "Hifadhi mabadiliko"
    python -m scripts.translate --checkpoint DIR --from de --file letter.txt > letter.en
    cat lines | python -m scripts.translate --checkpoint DIR --from ja
    python -m scripts.translate --checkpoint nllb-200-600M --from eng_Latn --to deu_Latn "Forgotten your password?"

DIR is a run's workdir, a release or a Hugging Face folder. Every line is a sentence; translations are printed in the same order,
one a line. Models that were trained here translate into English alone.
"""

import dataclasses
import sys

from data.config import Decode
from models.sharding.layouts import ONE_DEVICE
from scripts import cli

ROWS = 64  # sentences translated together: experiments' batches are for pods


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_checkpoint(parser, "see above")
    parser.add_argument("--from", dest="lang", required=True, metavar="LANG", help="language of the text, e.g. sw")
    parser.add_argument("--to", default="", metavar="LANG", help="language to translate into, English by default")
    parser.add_argument("--file", type=cli.folder, help="a text file with one sentence a line; by default standard input")
    parser.add_argument("--beams", type=int, help="hypotheses of the beam search; the experiment's by default")
    parser.add_argument("text", nargs="*", help="sentences; without any, and without --file, standard input is read")
    args = parser.parse_args()
    if args.text and args.file:
        raise cli.ConfigError("give either sentences or --file")
    text = args.file.read_text() if args.file else "" if args.text else sys.stdin.read()
    lines = args.text or text.removesuffix("\n").split("\n")  # not splitlines(): a line stays a line

    cli.use_devices(ONE_DEVICE)
    from data import progress
    from data.decoding import DecodesLanguages
    from data.kinds import task_of
    from data.task import Task
    from trainers.inference.decoder import Decoder
    from trainers.inference.load import load

    progress.show()
    e, weights = cli.opened(args.checkpoint, args.step, args.dtype)
    task, decoding = task_of(e.data), None
    if weights.vocabulary and type(task).decoding is not Task.decoding:
        decoding = task.decoding(weights.vocabulary)
    if not isinstance(decoding, DecodesLanguages):
        raise cli.ConfigError(f"{args.checkpoint}: a model of family {e.model.family!r} on this data does not translate")
    settings = e.eval if isinstance(e.eval, Decode) else Decode()  # a run may be scored by its loss alone
    rows = max(1, min(settings.batch_size, len(lines), ROWS))
    config = dataclasses.replace(settings, batch_size=rows, beams=args.beams or settings.beams)
    served = load(weights, e.execution)
    examples = [decoding.example(args.lang, line, args.to) for line in lines]
    for output in Decoder(served.model, config, decoding)(served.params, examples):
        print(output)
    return 0


if __name__ == "__main__":
    cli.run(main)
