"""Draws a run that writes texts of pictures or sounds as one self-contained page: its loss, its scores, what it writes of what.

    python -m scripts.report_texts runs/emoji

Scores the split that the run was evaluated on, beside its task's baselines, by source and language; writes DIR/index.html.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.experiment import Experiment
from models.errors import UserError
from scripts import cli, pages
from scripts.pages import COLORS, escaped, picture

SHOWN = 48  # examples on the page
DIGITS = {"examples": 0, "exact": 3, "wer": 3}  # behind the point of a score; 1 of others


def write(workdir: Path, e: Experiment, weights: Any) -> Path:
    """Writes DIR/index.html and returns its path; raises UserError for a model that writes no texts of pictures or sounds."""
    import matplotlib

    matplotlib.use("agg")

    from data.reading.caches import cache_folder
    from trainers.evaluation.decoded import DecodingEvaluator
    from trainers.inference.load import load
    from trainers.monitoring import history

    served = load(weights, e.execution)
    if not {"images", "frames"} & e.data.features().keys() or "targets" not in e.data.features():
        raise UserError(f"{e.name}: this model does not write texts of pictures or sounds")
    folder = cache_folder(e.data)
    evaluator = DecodingEvaluator(served.model, e, folder, folder)
    decoding, examples = evaluator.decoding, evaluator.examples
    outputs = evaluator.decoder(served.params, examples)
    scores: dict[str, Any] = dict(decoding.scores(examples, outputs))
    baselines = evaluator.baselines(served.params)
    some = np.linspace(0, len(examples) - 1, min(SHOWN, len(examples))).astype(int).tolist()
    cards = "".join(card(decoding.encode(examples[at]), examples[at], outputs[at]) for at in some)
    parts = [
        ("Loss over steps", picture(curve, [line for line in history.logged(workdir) if "loss" in line]), ""),
        ("Scores", table({k: v for k, v in (scores | baselines).items() if "/" not in k}), ""),
        ("chrF by language", table(languages) if (languages := by_language(scores, baselines)) else "", ""),
        (f"{len(some)} of {len(examples):,} held-out examples", f'<div class="cards">{cards}</div>', ""),
    ]
    style = (
        " .cards { display: flex; flex-wrap: wrap; gap: 12px; } .card b { color: #666; }"
        " .card { width: 210px; font-size: 13px; overflow-wrap: anywhere; } .card img { width: 96px; height: 96px; }"
    )
    return pages.write(workdir / "index.html", e.name, e.name, parts, style=style)


def curve(figure: Any, lines: Sequence[Mapping[str, Any]]) -> str:
    """Draws the training loss."""
    axes = figure.subplots()
    marker = "." if len(lines) < 20 else ""  # a line of one point would not be seen
    axes.plot([line["step"] for line in lines], [line["loss"] for line in lines], color=COLORS["high"], marker=marker)
    axes.set(xlabel="step", ylabel="training loss, nats", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    return "training loss over steps"


def table(scores: Mapping[str, Mapping[str, float]]) -> str:
    """Returns rows of numbers as a table."""
    columns = list(dict.fromkeys(name for row in scores.values() for name in row))
    rows = ([name, *(_number(row, column) for column in columns)] for name, row in scores.items())
    return pages.table(["", *columns], rows, range(1, len(columns) + 1))


def _number(row: Mapping[str, float], column: str) -> str:
    return f"{row[column]:,.{DIGITS.get(column, 1)}f}" if column in row else ""


def by_language(
    scores: Mapping[str, Mapping[str, float]], baselines: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Returns the chrF of the model, and of each baseline, for each source and language."""
    parts = {name: {"model": row["chrf"]} for name, row in scores.items() if "/" in name}
    for name, row in baselines.items():
        baseline, _, part = name.partition("/")
        if part in parts:
            parts[part][baseline] = row["chrf"]
    return parts


def card(row: Mapping[str, np.ndarray], example: Any, output: str) -> str:
    """Returns an example: its picture or the frames of its sound, what it is called, and what the model writes."""
    if "images" in row and row["images_segments"].any():
        image = row["images"][0]
        shown = (image - image.min()) / max(float(np.ptp(image)), 1e-6)
    else:
        frames = row["frames"][row["frames_segments"] > 0]
        shown = np.flipud((frames - frames.min()).T / max(float(np.ptp(frames)), 1e-6))
    language = escaped(getattr(example, "language", ""))
    return (
        f'<div class="card">{_image(shown)}<br><b>{language}</b> {escaped(example.text)}<br>'
        f"<b>written</b> {escaped(output)}</div>"
    )


def _image(values: np.ndarray) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray((255 * values).astype(np.uint8)).save(buffer, format="png")
    return f'<img width="96" height="96" alt="" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def main() -> int:
    return pages.of_model(__doc__, write)


if __name__ == "__main__":
    cli.run(main)
