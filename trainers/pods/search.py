"""The search for the fastest plans of an experiment on a slice, and for the nearest plans that fit.

A quick estimate (trainers/pods/bound.py) filters and sorts the candidates; the few best are compiled. Their reports are kept on
disk, so that a second search is instant and an interrupted one continues where it stopped.
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
from data.paths import data_dir, digest, write_whole
from models.sharding.layout import Layout, LayoutError
from trainers.hlo.formatting import seconds
from trainers.hlo.parsing import HloError
from trainers.pods.bound import Bound, bound
from trainers.pods.calibration import calibrated
from trainers.pods.layout_candidates import Candidate, candidates, distance
from trainers.pods.libtpu import versions
from trainers.pods.topology import RefusedError
from trainers.runtime.chips import GIB, PodError, Slice

GRACE = 1.1  # the share of a chip's memory that an estimate may need
ALIKE = 2  # fitting plans of one layout that are compiled: an error of its estimate affects all of them
ENOUGH_LESS = 0.95  # another plan may need this share of an estimate that did not fit
TRIES = 6  # plans that `nearest_that_fit` compiles at most

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
        """Seconds, modelled from the compiled program; infinite if the plan does not fit, or a check of its price has failed."""
        return self.report["modelled_step_s"] if self.fits and not self.report["problems"] else math.inf

    def __str__(self) -> str:
        if not self.fits:
            return f"{self.candidate.text}: {self.report.get('error', 'does not fit')}"
        if self.report["problems"]:
            return f"{self.candidate.text}: no step time, {self.report['problems'][0]}"
        return f"{self.candidate.text}: {seconds(self.step_s)} modelled, fits"


def search(
    e: Experiment,
    pod: Slice,
    evaluate: Evaluate,
    *,
    settings: str = "",
    best: int = 6,
    say: Say = print,
    folder: Path | None = None,
) -> list[Result]:
    """Compiles the most promising plans of an experiment; returns the fastest first, and those that do not fit last.

    The experiment's own plan, if it has as many devices, is always among them, so that a search finds nothing slower.

    Args:
      evaluate: compiles a candidate and returns its report: plain values, among them `fits` and `modelled_step_s`. For one
        that does not fit it raises a PodError that has `needed`, in GiB.
      settings: what the reports of `evaluate` depend on beside the plan: compiler options and the like.
      best: the number of plans that are compiled.
      say: is given lines about the progress.
      folder: where reports are kept; by default a folder in that of data.
    """
    pool, memory = _estimated(e, pod), pod.chip.memory
    fit = sorted((item for item in pool if item[1].memory_bytes <= GRACE * memory), key=lambda item: item[1].step_s)
    say(f"{len(pool)} plans, {len(fit)} may fit {memory * pod.chip.devices / GIB:.4g} GiB a chip")
    fit = fit or sorted(pool, key=lambda item: item[1].memory_bytes)  # an estimate may err by more
    own = [item for item in pool if item[0].experiment == e]
    fit = [*own, *(item for item in fit if item not in own)]
    reports, results, num_fitting, seen, failed = Reports(pod, settings, folder), [], Counter(), set(), {}
    for candidate, estimate in fit:
        layout = candidate.experiment.layout
        figures = (layout.name, f"{estimate.memory_bytes:.4g} {estimate.step_s:.4g}")  # equal figures: taken for the same plan
        if figures in seen or num_fitting[layout.name] == ALIKE or _hopeless(layout, estimate, failed):
            continue
        seen.add(figures)
        result = Result(candidate, reports(evaluate, candidate))
        results.append(result)
        say(f"{len(results)}/{min(best, len(fit))} {result}")
        if result.fits:
            num_fitting[layout.name] += 1
        else:
            failed[layout.mesh, layout.rules] = estimate.memory_bytes
        if len(results) == best:
            break
    return sorted(results, key=lambda result: result.step_s)


def nearest_that_fit(
    e: Experiment, pod: Slice, evaluate: Evaluate, *, settings: str = "", n: int = 3, say: Say = print, folder: Path | None = None
) -> list[Result]:
    """Returns up to n plans that fit, for an experiment that does not, fewest changes first; arguments as in `search`.

    The remat policy changes before sizes of the mesh, and these before the layout. At most `TRIES` plans are compiled.
    """
    pool, limit = _estimated(e, pod), pod.chip.memory
    if e.layout.devices == pod.devices:
        limit = min(limit, ENOUGH_LESS * bound(e, pod).memory_bytes)  # it did not fit, whatever its estimate says
    reports, tried, failed = Reports(pod, settings, folder), [], {}
    for candidate, estimate in nearest(e, pool, limit):
        layout = candidate.experiment.layout
        if _hopeless(layout, estimate, failed):
            continue
        tried.append(Result(candidate, reports(evaluate, candidate)))
        say(f"{len(tried)} {tried[-1]}")
        if not tried[-1].fits:
            failed[layout.mesh, layout.rules] = estimate.memory_bytes
        if len(tried) == TRIES or sum(math.isfinite(result.step_s) for result in tried) == n:
            break
    return [result for result in tried if math.isfinite(result.step_s)]


def _hopeless(layout: Layout, estimate: Bound, failed: dict[Any, float]) -> bool:
    """Returns whether a similar or smaller estimate failed with the same layout; `failed` has estimates by mesh and rules."""
    return estimate.memory_bytes > ENOUGH_LESS * failed.get((layout.mesh, layout.rules), math.inf)


def nearest(e: Experiment, pool: list[Estimated], limit: float) -> list[Estimated]:
    """Returns the plans of at most `limit` bytes, nearest to the experiment's own first.

    Of plans that differ in their placement on the torus alone, which changes no memory, only the first counts.
    """
    seen, matches = set(), []
    for candidate, estimate in pool:
        new = candidate.experiment
        key = dataclasses.replace(new.layout, torus=()), new.execution
        if key not in seen and estimate.memory_bytes <= limit:
            matches.append((candidate, estimate))
        seen.add(key)
    return sorted(matches, key=lambda item: (*distance(e, item[0].experiment), item[1].step_s))


def _estimated(e: Experiment, pod: Slice) -> list[Estimated]:
    return [(c, bound(c.experiment, pod)) for c in candidates(e, pod)]


# --- reports on disk ----------------------------------------------------------------------------------------------


class Reports:
    """Reports on disk, each under a key of everything that affects it; they are written atomically."""

    def __init__(self, pod: Slice, settings: str, folder: Path | None = None):
        self.pod, self.settings, self.folder = pod, settings, folder or data_dir() / "plans"

    def __call__(self, evaluate: Evaluate, candidate: Candidate) -> dict[str, Any]:
        """Returns the report of a candidate from disk, or from `evaluate`, and then saves it."""
        path = self.folder / f"{self.key(candidate.experiment)}.json"
        if not path.is_file():
            write_whole(path, json.dumps(_report(evaluate, candidate)))
        report = json.loads(path.read_text())
        return report | calibrated(report) if "expected_mfu" in report else report  # by the calibration of today

    def key(self, e: Experiment) -> str:
        """Returns a key that changes with the experiment, the slice, the compiler, the settings, and any source of the step."""
        code = {"versions": versions(), "sources": sources()}
        return digest({"experiment": registry.to_json(e), "slice": str(self.pod), "settings": self.settings, **code})


def _report(evaluate: Evaluate, candidate: Candidate) -> dict[str, Any]:
    try:
        return evaluate(candidate)
    except (LayoutError, HloError, RefusedError) as error:  # raised only once the whole step is traced, or compiled
        return {"fits": False, "error": str(error)}
    except PodError as error:
        if (needed := getattr(error, "needed", None)) is None:
            raise  # no compiler, or an unknown slice, says nothing about the plan
        return {"fits": False, "error": str(error), "hbm_gib_per_chip": needed}


@functools.cache
def sources() -> str:
    """Returns a hash of the source files that decide what a step computes and what its report contains."""
    root, hasher = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(path for name in ("configs", "data", "models", "trainers") for path in (root / name).rglob("*.py")):
        hasher.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return hasher.hexdigest()
