"""Parts of a page about a model that writes texts for pictures or sounds: its scores, baselines, and examples."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from configs.experiment import Experiment
from models.protocol import Model
from scripts.reports.page import Part, escaped, png_data, table
from trainers.inference.load import Served

SHOWN = 48  # examples on the page
DIGITS = {"examples": 0, "exact": 3, "wer": 3}  # decimals of a score; 1 of others

Scores = Mapping[str, Mapping[str, float]]


def suits(e: Experiment, _: Model) -> bool:
    features = e.data.features()
    return "targets" in features and not {"images", "frames"}.isdisjoint(features)


def parts(e: Experiment, served: Served) -> list[Part]:
    """Returns the parts, from the split that the run was evaluated on."""
    from data.reading.caches import cache_folder
    from trainers.evaluation.decoded import DecodingEvaluator

    folder = cache_folder(e.data)
    evaluator = DecodingEvaluator(served.model, e, folder, folder)
    decoding, examples = evaluator.decoding, evaluator.examples
    outputs = evaluator.decoder(served.params, examples)
    scores: dict[str, Any] = dict(decoding.scores(examples, outputs))
    baselines = evaluator.baselines(served.params)
    some = np.linspace(0, len(examples) - 1, min(SHOWN, len(examples))).astype(int).tolist()
    cards = "".join(card(decoding.encode(examples[at]), examples[at], outputs[at]) for at in some)
    languages = by_language(scores, baselines)
    return [
        ("Scores and baselines", scores_table({k: v for k, v in (scores | baselines).items() if "/" not in k}), ""),
        ("chrF by language", scores_table(languages) if languages else "", ""),
        (f"{len(some)} of {len(examples):,} held-out examples", f'<div class="cards">{cards}</div>', ""),
    ]


def scores_table(scores: Scores) -> str:
    """Returns a table with a row for each name and a column for each score."""
    columns = list(dict.fromkeys(name for row in scores.values() for name in row))

    def cell(row: Mapping[str, float], column: str) -> str:
        return f"{row[column]:,.{DIGITS.get(column, 1)}f}" if column in row else ""

    rows = ([name, *(cell(row, column) for column in columns)] for name, row in scores.items())
    return table(["", *columns], rows, range(1, len(columns) + 1))


def by_language(scores: Scores, baselines: Scores) -> dict[str, dict[str, float]]:
    """Returns the chrF of the model, and of each baseline, for each source and language."""
    languages = {name: {"model": row["chrf"]} for name, row in scores.items() if "/" in name}
    for name, row in baselines.items():
        baseline, _, language = name.partition("/")
        if language in languages:
            languages[language][baseline] = row["chrf"]
    return languages


def card(row: Mapping[str, np.ndarray], example: Any, output: str) -> str:
    """Returns an example: its picture or the frames of its sound, its text, and the model's."""
    from PIL import Image

    if "images" in row and row["images_segments"].any():
        values = row["images"][0]
    else:
        values = np.flipud(row["frames"][row["frames_segments"] > 0].T)
    scaled = (values - values.min()) / max(float(np.ptp(values)), 1e-6)
    buffer = io.BytesIO()
    Image.fromarray((255 * scaled).astype(np.uint8)).save(buffer, format="png")
    return (
        f'<div class="card"><img width="96" height="96" alt="" src="{png_data(buffer)}"><br>'
        f"<b>{escaped(getattr(example, 'language', ''))}</b> {escaped(example.text)}<br><b>written</b> {escaped(output)}</div>"
    )
