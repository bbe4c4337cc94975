"""Scores a trained model on held-out sentences: BLEU and chrF, per resource bucket and per language.

    python -m scripts.evaluate --checkpoint runs/quickstart
    python -m scripts.evaluate --checkpoint DIR --split udhr_test --per-language 0 --json

DIR is a run's workdir or a release. Scores are given raw and on stripped text (no placeholders, tags, punctuation, case):
raw BLEU flatters, since much of a software message is copied. Two baselines stand beside the model: the source itself as
its translation, and the same model given other sources of the same language.
"""

import dataclasses

from models.common.layout import Layout
from scripts import cli

SIMULATED = Layout(name="simulated", mesh=(("all", 8),))  # what a CPU offers to --layout


def main() -> int:
    p = cli.parser(__doc__)
    p.add_argument("--checkpoint", type=cli.folder, required=True, metavar="DIR", help="a workdir or a release")
    p.add_argument("--step", type=int, help="which checkpoint of a workdir; the newest by default")
    p.add_argument("--split", help="held-out split; the experiment's by default")
    p.add_argument("--per-language", type=int, help="at most so many sentences a language, 0 for all")
    p.add_argument("--beams", type=int)
    p.add_argument("--layout", metavar="NAME:XxY", help="decode under a layout of the family; one device by default")
    p.add_argument("--languages", action="store_true", help="print every language")
    p.add_argument("--json", action="store_true", help="for programs")
    args = p.parse_args()

    cli.use_devices(SIMULATED)
    from data.batches import cache_folder
    from trainers import translation
    from trainers.release import open_model

    e, params, folder = open_model(args.checkpoint, args.step)
    given = {"split": args.split, "per_language": args.per_language, "beams": args.beams}
    config = dataclasses.replace(e.eval, **{k: v for k, v in given.items() if v is not None})
    plan, params = cli.placed(e, params, cli.named_layout(e, args.layout) if args.layout else cli.ONE_DEVICE)
    examples = translation.read_examples(cache_folder(e.data), config.split, config.per_language)
    translate = translation.Translator(plan.model, config, folder)
    found = translation.evaluate(lambda these: translate(params, these), examples, folder)
    if args.json:
        cli.print_json({"experiment": e.name, "split": config.split} | found)
    else:
        print(translation.table(found, languages=args.languages))
    return 0


if __name__ == "__main__":
    cli.run(main)
