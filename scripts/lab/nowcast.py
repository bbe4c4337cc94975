"""Scores nowcasts on held-out windows of a gridded series: persistence, translation, optical flows, and a trained model.

    python -m scripts.lab.nowcast metnet2.quickstart --split test
    python -m scripts.lab.nowcast metnet2.quickstart --split test --checkpoint runs/rain --json

The experiment says which windows, lead times and thresholds. Baselines see the whole grid and every step; all are scored on the
same points. A model's probabilities decide from where the validation split says. "motion" is the field that a model with
`data.ahead` is given (data/grids/motion.py). Optical flow is OpenCV's (dense inverse search, Kroeger et al. 2016, arXiv
1603.03590, on two frames that are two steps apart), along which the last frame is carried on; it needs opencv-python-headless,
which the project does not require, and is left out without it.
"""

import dataclasses
from typing import Any

import numpy as np

from models.sharding.layouts import ONE_DEVICE
from scripts import cli
from trainers.text_table import text_table

_SCALE = 32.0  # of log(1 + rain) as a picture of 8 bits


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("experiment", help="an experiment on a gridded series")
    parser.add_argument("--split", default="test", help="of the prepared series: test, the default, or validation")
    parser.add_argument("--limit", type=int, default=0, help="at most so many windows; 0 takes all")
    parser.add_argument("--checkpoint", type=cli.folder, metavar="DIR", help="a run or a release, scored as well")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    cli.use_devices(ONE_DEVICE)
    from configs import registry
    from data.grids.task import series_of

    e = registry.load(args.experiment)
    data = series_of(e.name, e.data)
    scores_by_name = baseline_scores(data, args.split, args.limit)
    if args.checkpoint:
        scores_by_name["model"] = model_scores(args.checkpoint, args.split, args.limit)
    if args.json:
        cli.print_json({"experiment": e.name, "split": args.split, "scores": scores_by_name})
    else:
        print("\n".join(table(data, scores_by_name)))
    return 0


def optical_flow(frames_THW: np.ndarray, lead: int) -> np.ndarray:
    """Returns the last frame, carried on along the flow of the last two steps, which stands still where it is."""
    import cv2  # pyright: ignore[reportMissingImports]

    from data.grids.baselines import moved

    apart = min(2, len(frames_THW) - 1)
    before, after = (
        np.minimum(np.log1p(np.maximum(x, 0)) * _SCALE, 255).astype(np.uint8) for x in (frames_THW[-1 - apart], frames_THW[-1])
    )
    flow_HW2 = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM).calc(before, after, None)
    step_2HW = np.moveaxis(flow_HW2, -1, 0)[::-1].astype(float) / apart  # OpenCV has columns first
    total = np.zeros_like(step_2HW)
    grid = np.indices(frames_THW.shape[1:]).astype(float)
    from scipy import ndimage

    for _ in range(lead):  # semi-Lagrangian: back along the flow, a step at a time
        places = grid - total
        total += np.stack([ndimage.map_coordinates(part, places, order=1, mode="nearest") for part in step_2HW])
    return moved(frames_THW[-1], total)


def carried(frames_THW: np.ndarray, lead: int) -> np.ndarray:
    """Returns the last frame, carried on along its motion."""
    from data.grids import motion

    field = motion.field(np.log1p(np.maximum(frames_THW[-motion.NEEDED :], 0)))
    places = motion.origins(field, lead, *frames_THW.shape[1:])
    return np.nan_to_num(motion.carried(frames_THW[-1][..., None], places))[..., 0]


def baseline_scores(data: Any, split: str, limit: int) -> dict[str, dict[str, float]]:
    """Returns the CSI of each baseline by lead time and threshold, as "lead_12/csi_0.2", its mean absolute error as "crps"."""
    from data.grids import windows
    from data.grids.baselines import NOWCASTS
    from data.reading.caches import cache_folder, examples, read_manifest

    nowcasts = dict(NOWCASTS)
    if read_manifest(cache_folder(data))["motion"]:
        nowcasts["motion"] = carried
    try:
        import cv2  # noqa: F401  # pyright: ignore[reportMissingImports]

        nowcasts["optical flow"] = optical_flow
    except ImportError:
        pass
    prepared = windows.Prepared(cache_folder(data))
    channel = prepared.manifest["names"].index(data.target)
    shape = (len(data.scored), len(data.thresholds), 3)
    counts = {name: (np.zeros(shape), np.zeros((len(data.scored), 2))) for name in nowcasts}
    before = (data.frames - 1) * data.every
    for example in examples(prepared.folder, split, limit):
        at = example["at"]
        frames = np.nan_to_num(prepared.frames[at - before : at + 1, ..., channel])
        for i, lead in enumerate(data.scored):
            observed = windows.fitted(prepared.frames[at + lead : at + lead + 1, ..., [channel]], *data.area.points)[0, ..., 0]
            seen = np.isfinite(observed)
            for name, nowcast in nowcasts.items():
                forecast = windows.fitted(nowcast(frames, lead)[None, ..., None], *data.area.points)[0, ..., 0][seen]
                table, error = counts[name]
                for q, threshold in enumerate(data.thresholds):
                    f, o = forecast >= threshold, observed[seen] >= threshold
                    table[i, q] += (f & o).sum(), f.sum(), o.sum()
                error[i] += np.abs(forecast - observed[seen]).sum(), seen.sum()
    return {name: _named(data, *tables) for name, tables in counts.items()}


def _named(data: Any, table: np.ndarray, error: np.ndarray) -> dict[str, float]:
    from data.grids.metrics import csi

    scores = {}
    for i, lead in enumerate(data.scored):
        for q, threshold in enumerate(data.thresholds):
            scores[f"lead_{lead}/csi_{threshold:g}"] = float(csi(*table[i, q]))
        scores[f"lead_{lead}/crps"] = float(error[i, 0] / max(error[i, 1], 1))
    return scores


def model_scores(checkpoint: Any, split: str, limit: int) -> dict[str, float]:
    """Returns the scores of a trained model by its own evaluation."""
    from data.reading.caches import cache_folder
    from trainers.evaluation.evaluator import open_evaluator
    from trainers.inference.load import load

    e, weights = cli.opened(checkpoint)
    config: Any = e.eval
    e = dataclasses.replace(e, eval=dataclasses.replace(config, split=split, limit=limit))
    served = load(weights, e.execution)
    cache = cache_folder(e.data)
    scores = open_evaluator(served.model, e, cache, weights.vocabulary or cache)(served.params)
    return {name.removeprefix("eval/"): value for name, value in scores.items()}


def table(data: Any, scores_by_name: dict[str, dict[str, float]]) -> list[str]:
    """Returns the CSI at each threshold, and the CRPS, by lead time, as lines of text."""
    from data.grids import windows
    from data.reading.caches import cache_folder

    minutes = windows.Prepared(cache_folder(data)).manifest["minutes"]
    head = ["", "", *(f"{lead * minutes:g} min" for lead in data.scored)]
    rows = [
        [score, name, *(f"{scores[f'lead_{lead}/{score}']:.3f}" for lead in data.scored)]
        for score in (*(f"csi_{t:g}" for t in data.thresholds), "crps")
        for name, scores in scores_by_name.items()
    ]
    return text_table(head, rows, range(2, len(head)))


if __name__ == "__main__":
    cli.run(main)
