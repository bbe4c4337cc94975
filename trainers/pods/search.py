"""The search for the fastest plans of an experiment on a slice, and for the nearest plans that fit.

A quick estimate (trainers/pods/bound.py) drops and orders the candidates; the few best are compiled. Their reports are kept on
disk, so that a second search is instant and an interrupted one goes on where it stopped.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment
from data.paths import data_dir, digest, scratch
from models.sharding.layout import Layout, LayoutError
from trainers.chips import GIB, PodError, Slice
from trainers.pods.bound import Bound, bound
from trainers.pods.candidates import Candidate, candidates, distance
from trainers.pods.libtpu import versions

GRACE = 1.1  # how much of a chip's memory an estimate may ask for
ALIKE = 2  # plans of one layout that are compiled and fit: an error of its estimate is in all of them
ENOUGH_LESS = 0.95  # of an estimate that turned out not to fit: what another plan may ask for
TRIES = 6  # plans that are compiled to find the nearest

Say = Callable[[str], object]
Evaluate = Callable[[Candidate], dict[str, Any]]
Estimated = tuple[Candidate, Bound]


@dataclasses.dataclass(frozen=True)
class Result:
    """A candidate that was compiled, and its report."""

    candidate: Candidate
    report: dict[str, Any]

    @property
    def fits(self) -> bool:
        return self.report["fits"]

    @property
    def step_s(self) -> float:
        """Seconds, modelled from the compiled program; endless if it does not fit."""
        return self.report["modelled_step_s"] if self.fits else math.inf

    def __str__(self) -> str:
        said = f"{self.step_s:.3g} s modelled, fits" if self.fits else self.report.get("error", "does not fit")
        return f"{self.candidate.text}: {said}"


def search(
    e: Experiment, where: Slice, evaluate: Evaluate, *,
    options: str = "", best: int = 6, say: Say = print, folder: Path | None = None,
) -> list[Result]:  # fmt: skip
    """Compiles the plans of an experiment that promise most: the fastest first, those that do not fit after all last.

    Args:
      evaluate: compiles a candidate and returns its report: plain values, among them `fits` and `modelled_step_s`. For one
        that does not fit it raises a PodError that has `needed`, in GiB.
      options: the name of the set of compiler options that `evaluate` uses.
      best: how many are compiled.
      say: takes lines about the progress.
      folder: of the reports; by default one in the folder of data.
    """
    pool, memory = _estimated(e, where), where.chip.memory
    fit = sorted((item for item in pool if item[1].memory_bytes <= GRACE * memory), key=lambda item: item[1].step_s)
    say(f"{len(pool)} plans, {len(fit)} may fit {memory / GIB:.4g} GiB a chip")
    fit = fit or sorted(pool, key=lambda item: item[1].memory_bytes)  # an estimate may err by more
    reports, results, alike, seen, failed = Reports(where, options, folder), [], Counter(), set(), {}
    for candidate, estimate in fit:
        layout = candidate.experiment.layout
        figures = layout.name, f"{estimate.memory_bytes:.4g} {estimate.step_s:.4g}"  # equal: as good as the same plan
        if figures in seen or alike[layout.name] == ALIKE or _hopeless(layout, estimate, failed):
            continue
        seen.add(figures)
        result = Result(candidate, reports(evaluate, candidate))
        results.append(result)
        say(f"{len(results)}/{min(best, len(fit))} {result}")
        if result.fits:
            alike[layout.name] += 1
        else:
            failed[layout.mesh, layout.rules] = estimate.memory_bytes
        if len(results) == best:
            break
    return sorted(results, key=lambda result: result.step_s)


def nearest_that_fit(
    e: Experiment, where: Slice, evaluate: Evaluate, *,
    options: str = "", n: int = 3, say: Say = print, folder: Path | None = None,
) -> list[Result]:  # fmt: skip
    """Up to n plans that fit, for an experiment that does not, fewest changes first; arguments as in `search`.

    What the backward pass keeps changes before sizes of the mesh, and these before the layout. At most `TRIES` are compiled.
    """
    pool, limit = _estimated(e, where), where.chip.memory
    if e.layout.devices == where.chips:
        limit = min(limit, ENOUGH_LESS * bound(e, where).memory_bytes)  # it did not fit, whatever its estimate says
    reports, tried, failed = Reports(where, options, folder), [], {}
    for candidate, estimate in nearest(e, pool, limit):
        layout = candidate.experiment.layout
        if _hopeless(layout, estimate, failed):
            continue
        tried.append(Result(candidate, reports(evaluate, candidate)))
        say(f"{len(tried)} {tried[-1]}")
        if not tried[-1].fits:
            failed[layout.mesh, layout.rules] = estimate.memory_bytes
        if len(tried) == TRIES or sum(result.fits for result in tried) == n:
            break
    return [result for result in tried if result.fits]


def _hopeless(layout: Layout, estimate: Bound, failed: dict[Any, float]) -> bool:
    """Whether hardly less memory did not do for the same layout; `failed` has estimates by mesh and rules."""
    return estimate.memory_bytes > ENOUGH_LESS * failed.get((layout.mesh, layout.rules), math.inf)


def nearest(e: Experiment, pool: list[Estimated], limit: float) -> list[Estimated]:
    """Those of at most `limit` bytes, nearest to an experiment's plan first; where a mesh lies changes no memory."""
    seen, found = set(), []
    for candidate, estimate in pool:
        new = candidate.experiment
        key = dataclasses.replace(new.layout, torus=()), new.execution.remat
        if key not in seen and estimate.memory_bytes <= limit:
            found.append((candidate, estimate))
        seen.add(key)
    return sorted(found, key=lambda item: (*distance(e, item[0].experiment), item[1].step_s))


def _estimated(e: Experiment, where: Slice) -> list[Estimated]:
    return [(c, bound(c.experiment, where)) for c in candidates(e, where)]


# --- what was compiled before -------------------------------------------------------------------------------------


class Reports:
    """Reports on disk, each by everything that decides about it, written whole or not at all."""

    def __init__(self, where: Slice, options: str, folder: Path | None = None):
        self.where, self.options, self.folder = where, options, folder or data_dir() / "plans"

    def __call__(self, evaluate: Evaluate, candidate: Candidate) -> dict[str, Any]:
        """The report of a candidate: from disk, or from `evaluate` and then on disk."""
        path = self.folder / f"{self.key(candidate.experiment)}.json"
        if not path.is_file():
            text = json.dumps(_report(evaluate, candidate))
            with scratch(path) as folder:
                (folder / "new").write_text(text)
                (folder / "new").rename(path)
        return json.loads(path.read_text())

    def key(self, e: Experiment) -> str:
        """Changes with the experiment, the slice, the compiler, its options, and any source that decides about the step."""
        of_code = {"versions": versions(), "sources": sources()}
        return digest({"experiment": registry.to_json(e), "slice": str(self.where), "options": self.options, **of_code})


def _report(evaluate: Evaluate, candidate: Candidate) -> dict[str, Any]:
    try:
        return evaluate(candidate)
    except LayoutError as error:  # seen only when the whole step is traced
        return {"fits": False, "error": str(error)}
    except PodError as error:
        if (needed := getattr(error, "needed", None)) is None:
            raise  # no compiler, or no such slice: that says nothing about the plan
        return {"fits": False, "error": str(error), "hbm_gib_per_chip": needed}


@functools.cache
def sources() -> str:
    """A hash of the code that decides what a step computes and what is said of it."""
    root, found = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(path for name in ("configs", "models", "trainers") for path in (root / name).rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()
