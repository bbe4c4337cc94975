"""Draws a run as one self-contained page: curves, restarts, lost steps, stalls, expert load, hosts, and what its model says.

    python -m scripts.report runs/mine
    python -m scripts.report runs/mine --outputs

Reads metrics.jsonl, run.jsonl and hosts.jsonl, and needs no checkpoint; writes DIR/report.html. With --outputs the newest
checkpoint's model adds what it does on the split that the run was evaluated on: a classifier of pictures its mistakes, what it
confuses and where it looks; a writer of texts for pictures or sounds its scores, the baselines and examples; and translations
are drawn from evaluation.json, which scripts.quickstart writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from configs.registry import ConfigError
from models.errors import UserError
from models.sharding.layouts import ONE_DEVICE
from scripts import cli
from scripts.reports import page, run

if TYPE_CHECKING:
    from configs.experiment import Experiment
    from trainers.weights.source import Weights


def write(workdir: Path, model: tuple[Experiment, Weights] | None = None) -> Path:
    """Writes DIR/report.html and returns its path.

    Args:
      model: the experiment and the weights whose outputs are drawn as well.

    Raises:
      ConfigError: no run has logged a step in the folder.
      UserError: no part of the page draws the outputs of such a model.
    """
    from trainers.monitoring.history import read

    history = read(workdir)
    if not history.steps:
        raise ConfigError(f"{workdir}: no run has logged a step there")
    parts = [*run.parts(history), *(outputs(workdir, *model) if model else ())]
    title = history.experiment or workdir.name
    heading = f"{title}, step {history.steps[-1]['step']:,}: {history.state}"
    return page.write(workdir / "report.html", title, heading, parts, before=run.facts(history))


def outputs(workdir: Path, e: Experiment, weights: Weights) -> list[page.Part]:
    """Returns the parts about a model's outputs; raises UserError if there are none."""
    from scripts.reports import pictures, texts, translations
    from trainers.inference.load import load

    if translations.suits(workdir):
        return translations.parts(workdir, e)
    served = load(weights, e.execution)
    for module in (pictures, texts):
        if module.suits(e, served.model):
            return module.parts(e, served)
    raise UserError(
        f"--outputs: {e.name} neither classifies pictures nor writes texts of pictures or sounds, and {workdir} has no "
        f"{translations.FILE}"
    )


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("workdir", type=cli.folder, help="a run's working folder")
    parser.add_argument("--outputs", action="store_true", help="run the newest checkpoint's model, and draw its outputs")
    args = parser.parse_args()
    model = None
    if args.outputs:
        cli.use_devices(ONE_DEVICE)
        model = cli.opened(args.workdir)
    print(write(args.workdir, model))
    return 0


if __name__ == "__main__":
    cli.run(main)
