"""Writes a run's newest checkpoint as a release: weights, vocabularies, experiment, checksums and a model card.

    python -m scripts.release runs/quickstart --to releases/m4-quickstart

scripts.translate and scripts.evaluate take the folder as --checkpoint; training starts from it with
--train.init-from releases/m4-quickstart.
"""

from scripts import cli


def main() -> int:
    p = cli.parser(__doc__)
    p.add_argument("workdir", type=cli.folder, help="the run")
    p.add_argument("--to", type=cli.folder, required=True, metavar="DIR", help="a new folder")
    p.add_argument("--step", type=int, help="which checkpoint; the newest by default")
    args = p.parse_args()

    cli.use_devices(cli.ONE_DEVICE)
    from trainers import metrics, release

    logged = [line for line in metrics.read(args.workdir) if any(k.startswith("eval/") for k in line)]
    scores = {
        k.removeprefix("eval/"): v
        for k, v in (logged[-1] if logged else {}).items()
        if k.startswith("eval/") and k.count("/") == 1
    }
    print(release.write(args.workdir, args.to, step=args.step, scores=scores))
    return 0


if __name__ == "__main__":
    cli.run(main)
