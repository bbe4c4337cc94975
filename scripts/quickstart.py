"""The first run: data, training, scores, translations and a page with pictures, in under ten minutes on two cores.

    python -m scripts.quickstart                      (what `make quickstart` calls)
    python -m scripts.quickstart --train.steps 100    any field of the experiment can be changed

Running it again reuses what is there: prepared data, compiled programs, and the run itself, which goes on where it stopped.
"""

import dataclasses
import json
import os
import sys
import time
from typing import Any

from data.kinds import task_of
from data.prepare import prepare
from scripts import cli

SHOWN = ("ar", "de", "el", "es", "fi", "hi", "ja", "pl", "ru", "sw", "tr", "zh-Hans")  # as many scripts as can be

PER_LANGUAGE = 8  # test sentences scored of each language


def main() -> int:
    began = time.perf_counter()
    p = cli.parser(__doc__)
    p.add_argument(
        "--workdir", type=cli.folder, default=cli.folder("runs/quickstart"), metavar="DIR", help="runs/quickstart by default"
    )
    p.add_argument("--layout", metavar="NAME:XxY", help="a layout for the devices at hand; by default one for eight")
    args, overrides = p.parse_known_args()
    args.experiment, args.synthetic, args.tiny = "gshard_m4.quickstart", False, False
    e = cli.chosen(args, overrides)

    headline("1. Data: message catalogues of three Python packages, 96 languages into English")
    folder = prepare("m4_quickstart")

    headline("2. Training: 8 experts on 8 simulated devices")
    cli.use_devices(e.layout)
    from trainers import trainer
    from trainers.inference.decoder import Decoder
    from trainers.inference.load import load

    if code := trainer.train(e, args.workdir):
        return code

    headline("3. Scores on held-out test strings, none of which was a training target in any language")
    from scripts import report

    e, weights = cli.opened(args.workdir)
    served = load(weights, e.execution)
    config: Any = e.eval
    decoding = task_of(e.data).decoding(folder)
    decoder = Decoder(served.model, config, decoding)
    examples: list[Any] = decoding.examples(folder, dataclasses.replace(config, split="test", per_language=PER_LANGUAGE))
    outputs = decoder(served.params, examples)
    scores = decoding.scores(examples, outputs)
    scores["baselines"] = decoding.baselines(examples, lambda others: decoder(served.params, others))
    samples = [
        {"lang": x.lang, "source": x.source, "output": o, "reference": x.target} for x, o in zip(examples, outputs, strict=True)
    ]
    by_lang = {lang: [s for s in samples if s["lang"] == lang] for lang in SHOWN}
    # Languages share their English strings: the next language shows the next one.
    scores["samples"] = [mine[i % len(mine)] for i, mine in enumerate(by_lang.values()) if mine]
    (args.workdir / "evaluation.json").write_text(json.dumps(scores, indent=1))
    print(decoding.table(scores))

    headline("4. Translations")
    for s in scores["samples"]:
        print(f"{s['lang']:8} {s['source']}\n      -> {s['output']}\n     ref {s['reference']}")

    page = report.write(args.workdir, (e, weights))
    minutes = (time.perf_counter() - began) / 60
    print(f"\n{minutes:.1f} minutes. Pictures: {page.resolve()}")
    python = os.path.relpath(sys.executable)
    print(f'Try:  {python} -m scripts.translate --checkpoint {args.workdir} --from de "Passwort vergessen?"')
    return 0


def headline(text: str) -> None:
    print(f"\n\x1b[1m{text}\x1b[0m", flush=True)


if __name__ == "__main__":
    cli.run(main)
