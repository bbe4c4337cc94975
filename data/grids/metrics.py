"""Scores of forecasts from counts: by lead time L, threshold Q and probability P, which is 0, 1/P, 2/P and so on.

A forecast says how likely it is that a value reaches a threshold. An event counts as forecast from some probability on.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from data.task import Sum

MEANINGS = {
    "csi": "critical success index at this threshold: hits over all events that were forecast or observed",
    "brier": "the mean squared error of the probability that the threshold is reached",
    "reliability": "the part of it that comes of probabilities which are not the observed frequencies",
    "crps": "continuous ranked probability score: the error of the whole distribution, in the values' unit",
}
"""Explains these scores (data.task.Task.meanings)."""


def csi(hits: np.ndarray, forecast: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Returns the critical success index: hits over all events that were forecast or observed; 0 where there is none."""
    return hits / np.maximum(forecast + observed - hits, 1e-9)


def best_cuts(hits_LQP: np.ndarray, forecast_LQP: np.ndarray) -> np.ndarray:
    """Returns the place [L, Q] of the probability from which on events are best taken as forecast, by the CSI.

    Args:
      hits_LQP: points where the event came, of those whose probability is at least p / P.
      forecast_LQP: all such points; at p = 0 these are all points.
    """
    return np.argmax(csi(hits_LQP, forecast_LQP, hits_LQP[..., :1]), axis=-1)


def reliability(hits_LQP: np.ndarray, forecast_LQP: np.ndarray) -> np.ndarray:
    """Returns the reliability term [L, Q] of the Brier score: the mean squared distance of probabilities from what came."""
    places = hits_LQP.shape[-1]
    zero = np.zeros_like(hits_LQP[..., :1])
    within, came = (-np.diff(np.concatenate([x, zero], axis=-1)) for x in (forecast_LQP, hits_LQP))
    middle = (np.arange(places) + 0.5) / places
    error = within * (middle - came / np.maximum(within, 1e-9)) ** 2
    return error.sum(axis=-1) / np.maximum(within.sum(axis=-1), 1e-9)


def scores(totals: Mapping[str, Sum], cuts_LQ: np.ndarray, thresholds: Sequence[float], leads: Sequence[int]) -> dict[str, float]:
    """Returns CSI, Brier score and reliability at each threshold, and CRPS, for each of some lead times.

    Args:
      totals: `exceeded` [L, Q, P] as in `best_cuts`, `brier` [L, Q] and `crps` [L], as sums over points.
      cuts_LQ: the probabilities that decide, of `best_cuts`.
      leads: lead times, from 1 on.
    """
    hits_LQP, forecast_LQP = (np.asarray(x, np.float64) for x in (totals["exceeded"].sum, totals["exceeded"].over))
    decided = np.expand_dims(cuts_LQ, -1)
    hits_LQ, forecast_LQ = (np.take_along_axis(x, decided, -1)[..., 0] for x in (hits_LQP, forecast_LQP))
    csi_LQ, reliability_LQ = csi(hits_LQ, forecast_LQ, hits_LQP[..., 0]), reliability(hits_LQP, forecast_LQP)
    brier_LQ, crps_L = (np.asarray(totals[k].sum) / np.maximum(totals[k].over, 1) for k in ("brier", "crps"))
    values = {}
    for lead in leads:
        for q, threshold in enumerate(thresholds):
            for name, table in (("csi", csi_LQ), ("brier", brier_LQ), ("reliability", reliability_LQ)):
                values[f"lead_{lead}/{name}_{threshold:g}"] = float(table[lead - 1, q])
        values[f"lead_{lead}/crps"] = float(crps_L[lead - 1])
    return values
