"""Prepares a cache of a gridded series: the series and its windows.

A cache holds the whole series as `frames.npy` and `times.npy` (data.grids.windows), the windows that are trained on as the
numbers of their last input frames (`train/all.array_record`), and the held-out ones as `validation.jsonl` and `test.jsonl`.
Splits follow each other in time and share no frame, and no window spans a gap in time; those that would are left out and counted.
"""

import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data.cache_maker import CacheMaker
from data.grids import checks, motion, sources, windows
from data.grids.caches import GridCache
from data.grids.sources import minutes
from data.reading import packing
from data.reading.tally import Tally
from data.task import DataError

_SLAB, _NUMBERS = 256, 1 << 26  # frames that are in memory at a time, and numbers if a frame has not more


class GridMaker(CacheMaker[GridCache]):
    """Makes a cache of a gridded series."""

    FORMAT = 2
    NOUN = "window"
    SOURCES = sources.PACKAGES

    def inputs(self) -> list[Any]:
        """Returns the names, sizes and times of a user's files."""
        if self.location.scheme != "file":
            return []
        path = self.location.path
        files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
        return [[str(f.relative_to(path.parent)), f.stat().st_size, f.stat().st_mtime_ns] for f in files]

    def open(self) -> None:
        shares = self._write_frames()
        self._divide(shares)
        if self.settings.motion:
            _write_motion(self.folder, np.concatenate(list(self.ats.values())), self.target, self.settings)

    def _write_frames(self) -> np.ndarray:
        """Writes the series; returns each frame's share of seen points that reach the event [N]."""
        s, names = self.settings, self.settings.names
        with sources.opened(s, self.root) as series:
            if len(names) != len(s.variables):
                raise DataError(f"channels={names}: {len(names)} names for {len(s.variables)} variables")
            target = s.target or names[0]
            for name in (target, *s.logarithmic):
                if name not in names:
                    raise DataError(f"no channel {name!r}; the series has {', '.join(names)}")
            self.target, self.times, self.shape = names.index(target), series.times, (series.rows, series.columns)
            shares = _write(series, s, self.target, self.folder / windows.FRAMES)
            np.save(self.folder / windows.TIMES, self.times)
            frames, factors = np.load(self.folder / windows.FRAMES, mmap_mode="r"), s.factors or (1.0,) * len(names)
            checks.refuse_unmasked(frames, s.variables, factors, self.location.name)
        return shares

    def _divide(self, shares: np.ndarray) -> None:
        """Finds the windows of each split, by the number of their last input frame.

        Raises:
          DataError: the series is too short for a window in one of its splits.
        """
        s, selection, times = self.settings, self.settings.selection, self.times
        starts = _starts(s, times)
        ends = [*starts[1:], len(times)]
        pieces, self.gaps = windows.segments(times, starts)
        self.step = float(np.median(np.diff(times) / np.timedelta64(1, "m")))
        for gap in self.gaps[:3]:
            between = f"{minutes(times[gap])} is followed by {minutes(times[gap + 1])}"
            self.progress(f"a gap in time: {between}, where the usual step is {self.step:g} minutes")
        before, after = (s.frames - 1) * s.every, s.leads
        if s.motion and before + 1 < motion.NEEDED:
            steps = f"motion is found from {motion.NEEDED} steps, which a window must have"
            raise DataError(f"frames={s.frames}, every={s.every}: {steps}")
        whole = windows.last_frames(list(zip(starts, ends, strict=True)), before, after)
        ats = windows.last_frames(pieces, before, after)
        self.cut, self.windows, self.ats = len(whole) - len(ats), dict[str, int](), dict[str, np.ndarray]()
        for split, start, end in zip(("train", "validation", "test"), starts, ends, strict=True):
            inside = ats[(ats >= start) & (ats < end)]
            if split == "train":
                self.ats[split] = inside[shares[inside] >= selection.train_share]
            else:
                self.ats[split] = inside[shares[inside] >= selection.held_share][:: selection.held_every]
            self.windows[split] = len(inside)
            if not len(self.ats[split]):
                series = f"the series has {len(times):,} steps and {len(self.gaps):,} gaps in time"
                steps = f"none of its {len(inside):,} windows of {before + 1 + after} steps can be used"
                raise DataError(f"{split}: {steps}; {series}")
        if self.gaps:
            self.progress(f"{self.cut:,} of {len(whole):,} windows left out, with a gap in time in them")
        self.trained = starts[1]

    def examples(self, split: str) -> Iterable[dict[str, Any]]:
        return ({"at": at, "time": minutes(self.times[at])} for at in map(int, self.ats[split]))

    def records(self, part: str, tally: Tally) -> Iterator[bytes]:
        tally.examples, tally.left_out = len(self.ats["train"]), self.cut
        return map(packing.record_of, self.ats["train"])

    def show(self, part: str, record: bytes) -> str:
        s, at = self.settings, int(np.frombuffer(record, "<i4")[0])
        first, last = (minutes(self.times[n]) for n in (at - (s.frames - 1) * s.every, at))
        size = f"{self.shape[0]} x {self.shape[1]} points of {', '.join(s.names)}"
        return f"{s.frames} frames of {size}, {first} to {last}; then up to {s.leads} steps of {s.names[self.target]}"

    def manifest(self) -> dict[str, Any]:
        names, times = self.settings.names, self.times
        mean, std = _moments(self.folder, self.settings, names, self.trained)
        return {
            "names": list(names),
            "target": names[self.target],
            "rows": self.shape[0],
            "columns": self.shape[1],
            "steps": len(times),
            "minutes": self.step,
            "mean": mean,
            "std": std,
            "gaps": [[minutes(times[gap]), minutes(times[gap + 1])] for gap in self.gaps],
            "held_out": {split: len(self.ats[split]) for split in self.SPLITS},
            "windows": self.windows,
        }


def _write(series: sources.Series, settings: GridCache, target: int, path: Path) -> np.ndarray:
    """Writes all frames, a slab at a time; returns each frame's share of seen points that reach the event [N]."""
    n, factors = len(series.times), settings.factors or (1.0,) * len(settings.variables)
    if len(factors) != len(settings.variables):
        raise DataError(f"factors={factors}: {len(factors)} values for {len(settings.variables)} variables")
    shape = (n, series.rows, series.columns, len(factors))
    needed, disk = 4 * math.prod(shape), shutil.disk_usage(path.parent)
    if disk.total and needed > disk.free:  # some file systems do not say
        raise DataError(f"the series has {needed:,} bytes of frames, and the disk of {path.parent} has {disk.free:,} free")
    frames = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    shares = np.zeros(n)
    at_once = max(1, min(_SLAB, _NUMBERS // max(1, math.prod(shape[1:]))))
    for start in range(0, n, at_once):
        slab = series.read(start, min(start + at_once, n), factors)
        frames[start : start + len(slab)] = slab
        seen = np.isfinite(slab[..., target]).sum(axis=(1, 2))
        shares[start : start + len(slab)] = (slab[..., target] >= settings.selection.event).sum(axis=(1, 2)) / np.maximum(seen, 1)
    frames.flush()
    return shares


def _write_motion(folder: Path, ats: np.ndarray, target: int, settings: GridCache) -> None:
    """Writes the motion at these frames, 0 at all others."""
    logarithmic = settings.names[target] in settings.logarithmic
    frames = np.load(folder / windows.FRAMES, mmap_mode="r")
    n, h, w, _ = frames.shape
    shape = (n, 2, -(-h // motion.COARSE), -(-w // motion.COARSE))
    motions = np.lib.format.open_memmap(folder / windows.MOTION, mode="w+", dtype=np.float32, shape=shape)
    for at in ats:
        last = frames[max(at + 1 - motion.NEEDED, 0) : at + 1, ..., target]
        motions[at] = motion.field(windows.transformed(last, logarithmic))
    motions.flush()


def _starts(settings: GridCache, times: np.ndarray) -> list[int]:
    """Returns the numbers of the frames with which the splits begin."""
    starts = [0]
    for name, share in (("validation", 0.7), ("test", 0.85)):
        if text := getattr(settings, name):
            try:
                starts.append(int(np.searchsorted(times, np.datetime64(text))))
            except ValueError:
                raise DataError(f"{name}={text!r}: is no time, as 2018-05-17 or 2018-05-17T12:00") from None
        else:
            starts.append(round(share * len(times)))
    if not 0 < starts[1] < starts[2] < len(times):
        raise DataError(
            f"validation={settings.validation!r}, test={settings.test!r}: must be two times, rising, inside the series, which is "
            f"{minutes(times[0])} to {minutes(times[-1])}"
        )
    return starts


def _moments(folder: Path, settings: GridCache, names: tuple[str, ...], end: int) -> tuple[list[float], list[float]]:
    """Returns mean and standard deviation of each channel as models read it, over what was seen of the training frames."""
    frames = np.load(folder / windows.FRAMES, mmap_mode="r")
    count, total, square = (np.zeros(len(names)) for _ in range(3))
    for start in range(0, end, _SLAB):
        slab = frames[start : min(start + _SLAB, end)]
        for c, name in enumerate(names):
            values = windows.transformed(slab[..., c][np.isfinite(slab[..., c])], name in settings.logarithmic)
            count[c] += values.size
            total[c] += values.sum(dtype=np.float64)
            square[c] += np.square(values, dtype=np.float64).sum()
    mean = total / np.maximum(count, 1)
    std = np.sqrt(np.maximum(square / np.maximum(count, 1) - mean**2, 0))
    return mean.tolist(), np.where(std > 0, std, 1).tolist()


MAKERS = {GridCache: GridMaker}
