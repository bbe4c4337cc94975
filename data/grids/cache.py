"""Prepares a cache of a gridded series, in stages.

    packages      <data>/packages/           the source's package, checked by SHA-256
    cache         <data>/caches/NAME/        the series and its windows

A cache holds the whole series as `frames.npy` and `times.npy` (data.grids.windows), the windows that are trained on as the
numbers of their last input frames (`train/all.array_record`), and the held-out ones as `validation.jsonl` and `test.jsonl`.
Splits follow each other in time and share no frame, and no window spans a gap in time; those that would are left out and counted.
"""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from data.grids import checks, motion, sources, windows
from data.grids.settings import FILE, Grids
from data.packages.fetch import Package
from data.reading import caches, packing
from data.stages import Progress, stage
from data.task import DataError

FORMAT = 2  # version of the cache's format; increase it whenever the same packages would give another cache
PART = "all"
SPLITS = ("train", "validation", "test")
_SLAB, _NUMBERS = 256, 1 << 26  # frames that are in memory at a time, and numbers if a frame has not more


def packages_of(settings: Grids) -> tuple[Package, ...]:
    """Returns the packages that must be fetched."""
    return sources.package_of(settings)


def depends_on(cache: str, settings: Grids, root: Path) -> list[Any]:
    """Returns the inputs of a cache beside its settings and packages: the names, sizes and times of a user's files."""
    if not settings.source.startswith(FILE):
        return []
    path = Path(settings.source.removeprefix(FILE))
    files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
    return [[str(f.relative_to(path.parent)), f.stat().st_size, f.stat().st_mtime_ns] for f in files]


def build(settings: Grids, root: Path, folder: Path, progress: Progress) -> dict[str, Any]:
    """Fills a new cache's folder; returns its part of the manifest.

    Raises:
      DataError: the series cannot be read, or is too short for a window in one of its splits.
    """
    with stage("series", progress), sources.opened(settings, root) as series:
        names = settings.names
        if len(names) != len(settings.variables):
            raise DataError(f"channels={names}: {len(names)} names for {len(settings.variables)} variables")
        target = settings.target or names[0]
        for name in (target, *settings.logarithmic):
            if name not in names:
                raise DataError(f"no channel {name!r}; the series has {', '.join(names)}")
        times = series.times
        shares = _write(series, settings, names.index(target), folder / windows.FRAMES)
        np.save(folder / windows.TIMES, times)
        frames, factors = np.load(folder / windows.FRAMES, mmap_mode="r"), settings.factors or (1.0,) * len(names)
        checks.refuse_unmasked(frames, settings.variables, factors, settings.source.removeprefix(FILE))
    starts = _starts(settings, times)
    pieces, gaps = windows.segments(times, starts)
    step = float(np.median(np.diff(times) / np.timedelta64(1, "m")))
    for gap in gaps[:3]:
        progress(
            f"a gap in time: {_told(times[gap])} is followed by {_told(times[gap + 1])}, where the usual step is {step:g} minutes"
        )
    if settings.motion and (settings.frames - 1) * settings.every + 1 < motion.NEEDED:
        raise DataError(
            f"frames={settings.frames}, every={settings.every}: motion is found from {motion.NEEDED} steps, which a window must "
            "have"
        )
    before, after = (settings.frames - 1) * settings.every, settings.leads
    uncut = windows.last_frames(list(zip(starts, [*starts[1:], len(times)], strict=True)), before, after)
    ats = windows.last_frames(pieces, before, after)
    ends = [*starts[1:], len(times)]
    of_split = {split: ats[(ats >= start) & (ats < end)] for split, start, end in zip(SPLITS, starts, ends, strict=True)}
    counts = {split: len(found) for split, found in of_split.items()}
    for split, found in of_split.items():
        if split == "train":
            of_split[split] = found[shares[found] >= settings.train_share]
        else:
            of_split[split] = found[shares[found] >= settings.held_share][:: settings.held_every]
        if not len(of_split[split]):
            raise DataError(
                f"{split}: none of its {counts[split]:,} windows of {before + 1 + after} steps can be used; the series has "
                f"{len(times):,} steps and {len(gaps):,} gaps in time"
            )
    if gaps:
        progress(f"{len(uncut) - len(ats):,} of {len(uncut):,} windows left out, with a gap in time in them")
    with stage("windows", progress):
        (folder / "train").mkdir()
        train = of_split["train"].astype(np.int32)
        packing.write_rows(folder / "train" / f"{PART}.array_record", (row for row in train[:, None]))
        for split in SPLITS[1:]:
            found = ({"at": at, "time": _told(times[at])} for at in map(int, of_split[split]))
            caches.write_examples(folder / f"{split}.jsonl", found)
        if settings.motion:
            _write_motion(folder, np.concatenate(list(of_split.values())), names.index(target), target in settings.logarithmic)
        mean, std = _moments(folder, settings, names, ends[0])
    return {
        "names": list(names),
        "target": target,
        "rows": series.rows,
        "columns": series.columns,
        "steps": len(times),
        "minutes": step,
        "mean": mean,
        "std": std,
        "gaps": [[_told(times[gap]), _told(times[gap + 1])] for gap in gaps],
        "parts": {PART: {"examples": len(train), "rows": len(train), "left_out": len(uncut) - len(ats)}},
        "held_out": {split: len(of_split[split]) for split in SPLITS[1:]},
        "windows": counts,
    }


def _write(series: sources.Series, settings: Grids, target: int, path: Path) -> np.ndarray:
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
        shares[start : start + len(slab)] = (slab[..., target] >= settings.event).sum(axis=(1, 2)) / np.maximum(seen, 1)
    frames.flush()
    return shares


def _write_motion(folder: Path, ats: np.ndarray, target: int, logarithmic: bool) -> None:
    """Writes the motion at these frames, 0 at all others."""
    frames = np.load(folder / windows.FRAMES, mmap_mode="r")
    n, h, w, _ = frames.shape
    shape = (n, 2, -(-h // motion.COARSE), -(-w // motion.COARSE))
    found = np.lib.format.open_memmap(folder / windows.MOTION, mode="w+", dtype=np.float32, shape=shape)
    for at in ats:
        last = frames[max(at + 1 - motion.NEEDED, 0) : at + 1, ..., target]
        found[at] = motion.field(windows.transformed(last, logarithmic))
    found.flush()


def _starts(settings: Grids, times: np.ndarray) -> list[int]:
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
            f"{_told(times[0])} to {_told(times[-1])}"
        )
    return starts


def _moments(folder: Path, settings: Grids, names: tuple[str, ...], end: int) -> tuple[list[float], list[float]]:
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


def _told(time: np.datetime64) -> str:
    return str(np.datetime_as_string(time, unit="m"))
