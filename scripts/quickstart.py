"""The first run: data, training, scores, translations and a page with pictures, in about five minutes on two cores.

    python -m scripts.quickstart                      (what `make quickstart` calls)
    python -m scripts.quickstart --train.steps=100    any field of the experiment can be changed
    python -m scripts.quickstart gshard_m4.quickstart --workdir runs/hundred      96 languages, few strings of each

Running it again reuses what is there: prepared data, compiled programs, and the run itself, which goes on where it stopped.
"""

import concurrent.futures
import dataclasses
import json
import os
import shlex
import sys
import time
from typing import Any

from data import progress
from data.kinds import task_of
from scripts import cli

SHOWN = 12  # translations that are printed

SCORED, LEAST = 300, 8  # test sentences: about so many in all, and at least so many of each language


def main() -> int:
    began = time.perf_counter()
    p = cli.parser(__doc__)
    p.add_argument("experiment", nargs="?", default="gshard_m4.iberian", help="a translator; %(default)s by default")
    p.add_argument(
        "--workdir", type=cli.folder, default=cli.folder("runs/quickstart"), metavar="DIR", help="runs/quickstart by default"
    )
    p.add_argument("--layout", metavar="NAME:XxY", help="a layout for the devices at hand; by default one for eight")
    args, overrides = p.parse_known_args()
    args.synthetic, args.tiny = False, False
    e = cli.chosen(args, overrides)
    cli.use_devices(e.layout)
    from data.prepare import prepare
    from data.reading.caches import read_manifest
    from trainers import runlog, trainer
    from trainers.inference.decoder import Decoder
    from trainers.inference.load import load

    progress.show()
    cli.headline("1. Data: message catalogues of Python packages")
    with concurrent.futures.ThreadPoolExecutor(1) as beside:  # XLA compiles on the core that a preparation leaves idle
        ahead = None if runlog.events(args.workdir) else beside.submit(trainer.compile_ahead, e)
        folder = prepare(e.data.cache)
        if ahead:
            ahead.result()
    languages = read_manifest(folder)["languages"]
    pairs = sum(language["pairs"] for language in languages.values())
    print(f"{pairs:,} strings with their translations into English, from {', '.join(languages)}")

    cli.headline("2. Training: 8 experts on 8 simulated devices")
    if code := trainer.train(e, args.workdir):
        return code

    cli.headline("3. Scores on held-out test strings, none of which was a training target in any language")
    from scripts import report
    from scripts.reports import translations

    e, weights = cli.opened(args.workdir)
    served = load(weights, e.execution, e.layout)  # as the trainer evaluates: the compiled search is the same
    config: Any = e.eval
    decoding = task_of(e.data).decoding(folder)
    per_language = max(LEAST, SCORED // len(languages))
    decoder = Decoder(served.model, config, decoding)
    examples: list[Any] = decoding.examples(folder, dataclasses.replace(config, split="test", per_language=per_language))
    outputs = decoder(served.params, examples)
    scores = decoding.scores(examples, outputs)
    scores["baselines"] = decoding.baselines(examples, lambda others: decoder(served.params, others))
    translated = zip(examples, outputs, strict=True)
    samples = [{"lang": x.lang, "source": x.source, "output": o, "reference": x.target} for x, o in translated]
    scores["samples"] = some(samples)
    (args.workdir / "evaluation.json").write_text(json.dumps(scores, indent=1))
    print(decoding.table(scores, details=len(languages) <= SHOWN))

    cli.headline("4. Translations of held-out strings")
    for s in scores["samples"]:
        print(f"{s['lang']:8} {s['source']}\n      -> {s['output']}\n     ref {s['reference']}")

    page = report.write(args.workdir, (e, weights))
    minutes = (time.perf_counter() - began) / 60
    print(f"\n{minutes:.1f} minutes. Pictures: {page.resolve()}")
    python = os.path.relpath(sys.executable)
    if scores["all"]["stripped_bleu"] < translations.BELIEVABLE:
        print(translations.NO_TRANSLATOR)
    if sample := right(samples):
        translate = f"scripts.translate --checkpoint {os.path.relpath(args.workdir)} --from {sample['lang']}"
        print(f"One that it has right:\n      {python} -m {translate} {shlex.quote(sample['source'])}")
    print(f"Try:  {python} -m scripts.show {e.name} --collectives      how its tokens travel")
    print(f"      {python} -m scripts.demo                                  what released weights do")
    return 0


def some(samples: list[dict[str, str]]) -> list[dict[str, str]]:
    """Returns SHOWN of the samples, in equal steps over the languages, and over the sentences of each."""
    by_lang: dict[str, list[dict[str, str]]] = {}
    for sample in samples:
        by_lang.setdefault(sample["lang"], []).append(sample)
    languages = sorted(by_lang)
    # Languages share their English strings: the next language shows the next one.
    return [
        (mine := by_lang[languages[i * max(len(languages), SHOWN) // SHOWN % len(languages)]])[i * len(mine) // SHOWN]
        for i in range(SHOWN)
    ]


def right(samples: list[dict[str, str]]) -> dict[str, str] | None:
    """Returns the longest of the samples whose words are all those of its reference; None if there is none."""
    from data.translation.decoding import strip

    equal = [s for s in samples if strip(s["output"]) == strip(s["reference"])]
    return max(equal, key=lambda s: len(s["source"]), default=None)


if __name__ == "__main__":
    cli.run(main)
