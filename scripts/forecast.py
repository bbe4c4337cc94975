"""Draws the forecasts of a trained model beside the observations, as one page: expected rates and probabilities.

    python -m scripts.forecast --checkpoint runs/rain
    python -m scripts.forecast --checkpoint runs/rain --time 2018-05-20T14:30 --split test --to forecast.html --json

The window is the held-out one that ends at this time, else the one after which it rains most (or whatever the series is of).
"""

from pathlib import Path
from typing import Any

from models.sharding.layouts import ONE_DEVICE
from scripts import cli

SHOWN = 8  # lead times, evenly spread up to the longest
MAPS = (0, 2)  # places of the thresholds whose probabilities are drawn


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_checkpoint(parser, "a run or a release")
    parser.add_argument("--split", default="test", help="of the prepared series: test or validation")
    parser.add_argument(
        "--time",
        metavar="TIME",
        help="the last frame that the model sees, as 2018-05-20T14:30; by default that before the most of it",
    )
    parser.add_argument("--to", type=cli.folder, default=Path("forecast.html"), metavar="FILE", help="the page")
    parser.add_argument("--json", action="store_true", help="print the page's figures as JSON")
    args = parser.parse_args()
    cli.use_devices(ONE_DEVICE)
    from data.grids.task import series_of
    from data.grids.windows import Prepared
    from data.reading.caches import cache_folder

    e, weights = cli.opened(args.checkpoint, args.step, args.dtype)
    data = series_of(e.name, e.data)
    prepared = Prepared(cache_folder(data))
    at = chosen(prepared, data, args.split, args.time)
    leads = sorted({max(1, round(data.leads * (i + 1) / SHOWN)) for i in range(SHOWN)})
    drawn = forecasts(e, weights, prepared, at, leads)
    write(args.to, e, prepared, at, drawn)
    if args.json:
        keys = ("minutes", "csi", "observed_share", "probability_mean")
        figures = [{key: forecast[key] for key in keys} for forecast in drawn]
        cli.print_json({"page": str(args.to), "time": str(prepared.times[at])[:16], "forecasts": figures})
    else:
        print(args.to)
    return 0


def chosen(prepared: Any, data: Any, split: str, time: str | None) -> int:
    """Returns the number of the last frame of the window that is drawn; raises ConfigError with the nearest time there is."""
    import numpy as np

    from data.grids.windows import fitted
    from data.reading.caches import examples

    windows = list(examples(prepared.folder, split))
    if time is not None:
        try:
            wanted = np.datetime64(time)
        except ValueError:
            raise cli.ConfigError(f"--time {time!r} is no time, as 2018-05-20T14:30") from None
        nearest = min(windows, key=lambda w: abs(np.datetime64(w["time"]) - wanted))
        if np.datetime64(nearest["time"]) != wanted:
            raise cli.ConfigError(f"--time {time}: no window of {split} ends there; the nearest is {nearest['time']}")
        return nearest["at"]
    channel = prepared.manifest["names"].index(data.target)

    def much(window: dict[str, Any]) -> float:
        ats = [window["at"] + lead for lead in data.scored]
        frames = fitted(prepared.frames[ats][..., [channel]], *data.area.points)
        return float(np.nanmean(frames >= data.thresholds[-1] / 4))

    return max(windows, key=much)["at"]


def forecasts(e: Any, weights: Any, prepared: Any, at: int, leads: list[int]) -> list[dict[str, Any]]:
    """Returns, for each lead time, the observations [H, W] (NaN where there are none), the rate that is expected [H, W] and the
    probability of each threshold [Q, H, W]; and the CSI at the first threshold of what is more likely than not."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from data.grids import metrics, windows
    from trainers.inference.load import load
    from trainers.inference.runner import Runner

    served = load(weights, e.execution)
    edges = np.array(e.model.bins.lower_edges)
    middles = np.concatenate([[edges[0] / 2], (edges[:-1] + edges[1:]) / 2, edges[-1:]])
    places = [int(np.argmin(np.abs(edges - threshold))) + 1 for threshold in e.data.thresholds]

    def probabilities(model: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        probs_HWK = jax.nn.softmax(model(batch)[0], axis=-1)
        over_QHW = jnp.stack([jnp.sum(probs_HWK[..., place:], axis=-1) for place in places])
        return probs_HWK @ jnp.asarray(middles, probs_HWK.dtype), over_QHW

    runner = Runner(served.model, e.data.features(), 1, probabilities)
    result = []
    for lead in leads:
        row = windows.window(prepared, e.data, at, lead)
        expected_HW, over_QHW = runner(served.params, {name: x[None] for name, x in row.items()})
        seen_HW = row["weights"] > 0
        predicted, observed = over_QHW[0] >= 0.5, row["targets"] >= e.data.thresholds[0]
        counts = [np.count_nonzero(x & seen_HW) for x in (predicted & observed, predicted, observed)]
        result.append(
            {
                "lead": lead,
                "minutes": lead * prepared.manifest["minutes"],
                "observed": np.where(seen_HW, row["targets"], np.nan),
                "expected": expected_HW,
                "over": over_QHW,
                "csi": float(metrics.csi(*map(np.asarray, counts))),
                "observed_share": counts[2] / max(np.count_nonzero(seen_HW), 1),
                "probability_mean": float(over_QHW[0][seen_HW].mean()) if seen_HW.any() else 0.0,
            }
        )
    return result


def write(path: Path, e: Any, prepared: Any, at: int, forecasts: list[dict[str, Any]]) -> None:
    """Writes the page."""
    import numpy as np

    from scripts.reports import page

    def maps(figure: Any, forecasts: list[dict[str, Any]]) -> str:
        from matplotlib.colors import BoundaryNorm

        thresholds = e.data.thresholds
        levels = [thresholds[0] / 2, *thresholds, 2 * thresholds[-1], 4 * thresholds[-1]]
        rates = {"cmap": "turbo", "norm": BoundaryNorm(levels, 256, extend="max")}
        shares = {"cmap": "Blues", "vmin": 0, "vmax": 1}
        rows = [("observed", "observed", None, rates), ("expected", "expected", None, rates)]
        rows += [(f"probability of\n{thresholds[q]:g} or more", "over", q, shares) for q in MAPS if q < len(thresholds)]
        grid = figure.subplots(len(rows), len(forecasts), squeeze=False)
        for number, (line, (title, key, q, style)) in enumerate(zip(grid, rows, strict=True)):
            image = None
            for axes, forecast in zip(line, forecasts, strict=True):
                values = forecast[key] if q is None else forecast[key][q]
                if style is rates:
                    values = np.where(values >= levels[0], values, np.nan)  # what is next to nothing stays white
                image = axes.imshow(values, interpolation="nearest", **style)
                axes.set(xticks=[], yticks=[])
                if not number:
                    axes.set_title(f"{forecast['minutes']:g} min", fontsize=9)
            line[0].set_ylabel(title, fontsize=9)
            figure.colorbar(image, ax=list(line), shrink=0.8, pad=0.01)
        return f"forecasts of {e.data.target} for {len(forecasts)} lead times, below the observations"

    begun, first = str(prepared.times[at])[:16], e.data.thresholds[0]
    columns = {"minutes": "g", "csi": ".3f", "observed_share": ".3f", "probability_mean": ".3f"}
    head = ["minutes", f"CSI at {first:g}, from probability 1/2 on", "share of points where it was observed", "mean probability"]
    table = page.table(head, ([format(f[key], form) for key, form in columns.items()] for f in forecasts), range(len(head)))
    note = "The upper rows show rates in the unit of the data; values below the first level are left white."
    parts = [("Maps", page.picture(maps, forecasts, size=(1.25 * len(forecasts), 4.6)), note), ("Scores", table, "")]
    page.write(path, f"{e.name}, {begun}", f"{e.name}: {e.data.target} after {begun}", parts)


if __name__ == "__main__":
    cli.run(main)
