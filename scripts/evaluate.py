"""Scores a trained or released model on held-out examples.

    python -m scripts.evaluate --checkpoint runs/quickstart
    python -m scripts.evaluate --checkpoint DIR --split udhr_test --per-language 0 --json
    python -m scripts.evaluate --checkpoint .data/weights/smollm2_135m --experiment gpt.smollm2_135m --limit 20

DIR is a run's workdir, a release, a Hugging Face folder or a GGUF file; --experiment names the experiment whose data is used, if
it is not the model's own. A translator is scored by BLEU and chrF, per resource bucket and per language, raw and on stripped text
(raw BLEU flatters, since much of a software message is copied), beside two baselines. A model that writes labels, tags or answers
is scored by what it writes, other models by their loss and metrics. The lines below the scores explain them.
"""

import dataclasses

from models.sharding.layouts import ONE_DEVICE
from scripts import cli


def main() -> int:
    p = cli.parser(__doc__)
    cli.add_checkpoint(p, "see above")
    p.add_argument("--experiment", default="", help="the experiment that gives data and evaluation; the model's own by default")
    p.add_argument("--split", help="held-out split; the experiment's by default")
    p.add_argument("--limit", type=int, help="the most examples to score, 0 takes all; the experiment's by default")
    p.add_argument(
        "--per-language",
        type=int,
        help="for a translator: the most sentences of each language, 0 takes all; the experiment's by default",
    )
    p.add_argument(
        "--beams", type=int, help="for a model that writes text: hypotheses of the beam search; the experiment's by default"
    )
    p.add_argument("--layout", metavar="NAME:XxY", help="run under a layout of the family; one device by default")
    p.add_argument("--languages", action="store_true", help="for a translator: print every language")
    p.add_argument("--json", action="store_true", help="print JSON")
    args = p.parse_args()

    cli.use_devices(cli.SIMULATED if args.layout else ONE_DEVICE)
    from data import progress
    from data.kinds import task_of
    from data.reading.caches import cache_folder
    from trainers.evaluation.evaluator import legend, open_evaluator
    from trainers.inference.load import load

    progress.show(not args.json)
    e, weights = cli.opened(args.checkpoint, args.step, args.dtype, args.experiment)
    given = {name: getattr(args, name) for name in ("split", "limit", "per_language", "beams")}
    given = {name: value for name, value in given.items() if value is not None}
    known = {field.name for field in dataclasses.fields(e.eval)}
    if unknown := sorted(given.keys() - known):
        raise cli.ConfigError(f"--{unknown[0].replace('_', '-')} does not apply to {e.name}, which is evaluated otherwise")
    config = dataclasses.replace(e.eval, **given)
    cache = cache_folder(e.data)
    vocabulary = weights.vocabulary or cache
    served = load(weights, e.execution, cli.named_layout(e, args.layout) if args.layout else ONE_DEVICE)
    evaluator = open_evaluator(served.model, dataclasses.replace(e, eval=config), cache, vocabulary)
    scores, text = evaluator.report(served.params, details=args.languages)
    if args.json:
        cli.print_json({"experiment": e.name, "split": config.split} | scores)
    else:
        print("\n".join([text, "", *legend(scores, task_of(e.data).meanings)]).rstrip())
    return 0


if __name__ == "__main__":
    cli.run(main)
