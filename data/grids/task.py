"""Gridded series as a task: frames in, the distribution of a later frame out."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from data import paths
from data.config import DataConfig
from data.grids import metrics, windows
from data.grids.config import GridData
from data.grids.windows import Prepared
from data.reading.caches import examples
from data.task import DataError, Example, HeldOutExamples, Sum, Task
from models.families import ModelConfig


def series_of(experiment: str, data: DataConfig) -> GridData:
    """Returns an experiment's data as a gridded series; raises DataError where it is none."""
    if not isinstance(data, GridData):
        raise DataError(f"{experiment}: its data is no gridded series")
    return data


@runtime_checkable
class ForecastsGrids(Protocol):
    """The configuration of a model that reads frames and forecasts classes at the points of a grid."""

    @property
    def channels(self) -> int: ...

    @property
    def masks(self) -> int: ...

    @property
    def leads(self) -> int: ...

    @property
    def grid(self) -> tuple[int, int]: ...

    @property
    def thresholds(self) -> tuple[float, ...]: ...

    @property
    def ahead(self) -> bool: ...


class GridTask(Task[GridData]):
    """Windows of a prepared series (data.grids.maker)."""

    # --- reading ---

    def check(self, manifest: Mapping[str, Any], model: ModelConfig) -> None:
        data = self.data
        for name in data.channels:
            if name not in manifest["names"]:
                raise DataError(f"data.channels: cache {data.cache!r} has no {name!r}, but {', '.join(manifest['names'])}")
        past, has = (data.frames - 1) * data.every, (manifest["frames"] - 1) * manifest["every"]
        if past > has:
            raise DataError(
                f"data.frames={data.frames}, every={data.every}: cache {data.cache!r} has windows of {has} steps before the last "
                f"frame, not {past}"
            )
        if data.leads > manifest["leads"]:
            raise DataError(f"data.leads={data.leads}: cache {data.cache!r} has windows up to {manifest['leads']}")
        if data.ahead and not manifest["motion"]:
            raise DataError(f"data.ahead: cache {data.cache!r} was prepared without --motion")
        self._check_model(model)

    def decided(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the variables, where the series lacks one; the frames and lead times, where it has windows of fewer."""
        data, names = self.data, tuple(manifest["names"])
        decided: dict[str, Any] = {}
        if not {*data.channels} <= {*names}:
            decided |= {"channels": names, "target": manifest["target"]}
        if (data.frames - 1) * data.every > (manifest["frames"] - 1) * manifest["every"]:
            decided |= {name: manifest[name] for name in ("frames", "every")}
        if data.leads > (leads := manifest["leads"]):
            decided |= {"leads": leads, "scored": tuple(lead for lead in data.scored if lead <= leads) or (leads,)}
        return decided | {"ahead": data.ahead and manifest["motion"]}

    def sizes(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        data = self.data
        return {"values": data.values, "masks": len(data.channels), "leads": data.leads, "ahead": data.ahead}

    def _check_model(self, model: ModelConfig) -> None:
        data = self.data
        if not isinstance(model, ForecastsGrids):
            raise DataError(f"a model of family {model.family!r} forecasts no grids")
        ours = {
            "channels": data.values,
            "masks": len(data.channels),
            "leads": data.leads,
            "grid": data.area.points,
            "thresholds": data.thresholds,
            "ahead": data.ahead,
        }
        for name, value in ours.items():
            if getattr(model, name) != value:
                raise DataError(f"model.{name}={getattr(model, name)}: the data has {value}")

    def synthetic_key(self, model: ModelConfig) -> str:
        return str(self.data.features())

    def synthetic(self, rng: np.random.Generator, model: ModelConfig) -> Example:
        """Returns showers that move steadily over a grid without edges; a tenth of the positions is not seen."""
        self._check_model(model)
        data = self.data
        area, shape_HW = data.area, data.area.positions
        showers_HW = rng.exponential(size=shape_HW) * (rng.random(shape_HW) < 0.3)
        speed, lead = rng.integers(-1, 2, 2), int(rng.integers(1, data.leads + 1))
        rates_HW = showers_HW * 3 * data.thresholds[0]

        def after(steps: int) -> np.ndarray:
            return np.roll(rates_HW, speed * steps, axis=(0, 1))

        past = [after((1 - data.frames + t) * data.every) for t in range(data.frames)]
        seen = (rng.random((data.frames, *shape_HW, len(data.channels))) > 0.1).astype(np.float32)
        seen_V = np.broadcast_to(seen[..., None, :], (*seen.shape[:-1], data.values // len(data.channels), seen.shape[-1]))
        values = np.log1p(np.stack(past))[..., None] * seen_V.reshape(*seen.shape[:-1], data.values)
        top, left = (area.height - area.target_height) // 2, (area.width - area.target_width) // 2
        inner = after(lead)[top : top + area.target_height, left : left + area.target_width]
        target = np.kron(inner, np.ones((area.scale, area.scale)))
        weights = (rng.random(area.points) > 0.1).astype(np.float32)
        row = {
            "inputs": values.astype(np.float32),
            "seen": seen,
            "lead_time": np.array(lead, np.int32),
            "targets": (target * weights).astype(np.float32),
            "weights": weights,
        }
        if data.ahead:
            ahead = np.ones((*shape_HW, data.values + len(data.channels)), np.float32)
            ahead[..., : data.values] = np.log1p(after(lead))[..., None]
            row["ahead"] = ahead
        return row

    def assets(self, folder: Path | None, model: ModelConfig) -> Prepared | None:
        return Prepared(folder) if folder else None

    @property
    def augmentation(self) -> str:
        """Random data comes as the model gets it; of a cache, a window is cut out."""
        fields = vars(self.data) | vars(self.data.area)  # in one, as in the fingerprints of runs made before
        window = {name: value for name, value in fields.items() if name not in _NOT_OF_WINDOWS}
        return paths.digest(window)[:16] if self.data.cache else ""

    def augment(self, row: Example, rng: np.random.Generator, assets: Prepared | None) -> Example:
        """Returns the window whose last frame the row names, at a lead time that is drawn, mirrored at random if at all."""
        assert assets is not None
        lead = int(rng.integers(1, self.data.leads + 1))
        over = (rng.random(2) < 0.5).tolist() if self.data.flip else (False, False)
        return windows.window(assets, self.data, int(row["at"]), lead, over)

    # --- evaluation ---

    def held_out(self, cache: Path, vocabulary: Path, split: str, limit: int) -> HeldOutExamples:
        """Returns the split's windows, each at every lead time that is scored, cut out when they are asked for."""
        ats = [example["at"] for example in examples(cache, split, limit)]
        rows = HeldOutWindows(Prepared(cache), self.data, ats)
        return HeldOutExamples(rows, len(ats))

    def scores(
        self, totals: Mapping[str, Sum], examples: HeldOutExamples, outputs: Sequence[np.ndarray] = ()
    ) -> dict[str, float]:
        """Returns the scores with the probabilities that are best on these very windows."""
        return self.scores_at(totals, self.choose_thresholds(totals))

    def choose_thresholds(self, totals: Mapping[str, Sum]) -> np.ndarray:
        """Returns, by lead time and threshold, from which probability on an event counts as forecast (data.grids.metrics)."""
        return metrics.best_cuts(np.asarray(totals["exceeded"].sum), np.asarray(totals["exceeded"].over))

    def scores_at(self, totals: Mapping[str, Sum], thresholds: np.ndarray) -> dict[str, float]:
        """Returns the scores by lead time, as "lead_12/csi_0.2", with the probabilities that `choose_thresholds` returned."""
        return metrics.scores(totals, thresholds, self.data.thresholds, self.data.scored)

    @property
    def directions(self) -> Mapping[str, bool]:
        each = {"csi": False, "brier": True, "reliability": True}
        return {"crps": True} | {f"{name}_{t:g}": less for t in self.data.thresholds for name, less in each.items()}

    @property
    def meanings(self) -> Mapping[str, str]:
        return metrics.MEANINGS

    def card(self, manifest: Mapping[str, Any]) -> list[str]:
        names = ", ".join(manifest["names"])
        return [
            f"Trained on {self.rows(manifest):,} windows of `{manifest['cache']}` (fingerprint {manifest['fingerprint'][:16]}).",
            f"Channels: {names}; a step is {manifest['minutes']:g} minutes, the longest lead time {self.data.leads} steps.",
        ]


class HeldOutWindows(Sequence[Example]):
    """Held-out windows, each at every lead time that is scored, cut out when they are asked for."""

    def __init__(self, prepared: Prepared, data: GridData, ats: Sequence[int]):
        self.prepared, self.data = prepared, data
        self.places = [(at, lead) for at in ats for lead in data.scored]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [windows.window(self.prepared, self.data, *place) for place in self.places[index]]
        return windows.window(self.prepared, self.data, *self.places[index])

    def __iter__(self) -> Iterator[Example]:
        return (self[i] for i in range(len(self)))


# Fields of the configuration that a row's arrays do not depend on; on those of the area they do.
_NOT_OF_WINDOWS = ("area", "cache", "batch_size", "scored", "thresholds", "seed")
task = GridTask
