"""Compiles an experiment's own train step for TPUs that are not there, and models its time; needs `make setup DEVICE=plan`.

python -m scripts.plan bert.mlperf_480b                           on TPU v4, as many chips as its layout has
python -m scripts.plan bert.mlperf_480b --topology v4:8x16x16 --json
python -m scripts.plan gpt.gspmd_1t --torus data=yz,model=x --page plan.html --hlo programs/
python -m scripts.plan gpt.maxtext_22b --search                   other layouts, assignments and recomputations, ranked
python -m scripts.plan --all                                      every pod experiment, as a table
python -m scripts.plan --calibrate                                published runs, rebuilt: where the error comes from
python -m scripts.plan --calibrate pax_16b pax_32b                these alone; "missing" are those that the table lacks

All times are modelled, none is measured. An experiment that does not fit is refused; the message says how much memory is missing,
and which plans would fit.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment
from configs.pods import PODS
from models.errors import nearest, told
from scripts import cli
from trainers.pods import libtpu
from trainers.pods.points import POINTS
from trainers.runtime.chips import PodError, Slice, parse_slice, planned_chip, set_for, usual_slice


def main() -> int:
    parser = cli.parser(__doc__)
    cli.add_experiment(parser, optional=True)
    parser.add_argument(
        "--topology",
        metavar="[Nx]GEN:AxBxC",
        help="the slice, e.g. v4:8x16x16 or v5e:16x16, or several, 2xv6e:16x16; by default the experiment's, or the usual one",
    )
    parser.add_argument(
        "--torus",
        metavar="AXIS=yz,...",
        help="where mesh axes lie on the torus, e.g. data=yz,model=x; by default as the layout says",
    )
    parser.add_argument(
        "--options",
        metavar="NAME",
        help="a set of compiler options (trainers/runtime/chips.py); by default that of the experiment",
    )
    parser.add_argument("--kernel-efficiency", type=float, default=0.5, help="assumed share of peak that attention kernels reach")
    parser.add_argument("--hlo", type=cli.folder, metavar="DIR", help="also write the compiled program to this folder")
    parser.add_argument(
        "--page",
        type=cli.folder,
        metavar="FILE",
        help="also write a page with pictures, and beside it a .trace.json for ui.perfetto.dev",
    )
    parser.add_argument("--search", action="store_true", help="compile the most promising layouts and rank them")
    parser.add_argument("--all", action="store_true", help="plan every pod experiment")
    parser.add_argument(
        "--calibrate", nargs="*", metavar="POINT", help="compile published runs, or those named, and rewrite the error"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args, overrides = parser.parse_known_args()
    if not args.experiment and args.calibrate is None and not args.all:
        raise registry.ConfigError("name an experiment (scripts.show lists them), or give --all or --calibrate")
    if not 0 < args.kernel_efficiency <= 1:
        raise registry.ConfigError(f"--kernel-efficiency {args.kernel_efficiency:g}: must be above 0 and at most 1; usual is 0.5")
    if args.page and not args.page.name:
        raise registry.ConfigError(f"--page {args.page}: no file, as plan.html")
    unused = [*overrides, *([f"--topology {args.topology}"] if args.topology else [])]
    if unused and (args.all or args.calibrate is not None):
        raise registry.ConfigError(f"{unused[0]}: --all and --calibrate have experiments and slices of their own")
    libtpu.prepare()
    if args.calibrate is not None:
        return _calibrate(args)
    if args.all:
        return _all(args)
    e = cli.chosen(args, overrides)
    e = dataclasses.replace(e, layout=dataclasses.replace(e.layout, torus=_torus(args.torus) or e.layout.torus))
    pod = _slice(args.topology, e)
    if args.search:
        return _search(args, e, pod)
    return _plan(args, e, pod)


def _torus(text: str | None) -> tuple[tuple[str, str], ...]:
    """Returns "data=yz,model=x" as pairs, the form that a layout has."""
    pairs = [tuple(part.split("=")) for part in (text or "").split(",") if part]
    if any(len(pair) != 2 for pair in pairs):
        raise PodError(f"--torus {text!r}: write AXIS=LETTERS pairs, as data=yz,model=x")
    return tuple(pairs)  # pyright: ignore[reportReturnType]


def _slice(text: str | None, e: Experiment) -> Slice:
    """Returns the slice that is asked for, or the experiment's own, or the usual slice for another number of devices."""
    if text:
        return parse_slice(text)
    own = parse_slice(PODS[e.name].slice) if e.name in PODS else None
    if own and (own.devices, own.slices) == (e.layout.devices, e.layout.slices):
        return own
    return usual_slice(planned_chip(e), e.layout.devices, e.layout.slices)


def _options(args: argparse.Namespace, e: Experiment) -> str:
    return args.options or set_for(e, _slice(args.topology, e).chip)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _settings(args: argparse.Namespace, e: Experiment) -> str:
    """Returns what a report depends on beside the experiment and the slice."""
    return f"{_options(args, e)}, kernels at {args.kernel_efficiency}"


def _planned(args: argparse.Namespace, e: Experiment, pod: Slice) -> dict[str, Any]:
    """Returns an experiment's report; writes its program to the folder of --hlo."""
    from trainers.pods import report

    planned, text = report.plan(e, pod, _options(args, e), kernel_efficiency=args.kernel_efficiency)
    if args.hlo:
        _write(args.hlo / f"{e.name}.{pod.chip.name}.hlo.txt", text)
    return planned


def _plan(args: argparse.Namespace, e: Experiment, pod: Slice) -> int:
    from trainers.pods import page, report, search, trace
    from trainers.pods.topology import DoesNotFit

    try:
        planned = _planned(args, e, pod)
    except DoesNotFit as refusal:
        _say(f"{refusal}; looking for the nearest plans that fit")
        evaluate = functools.partial(_report, args, pod)
        near = search.nearest_that_fit(e, pod, evaluate, settings=_settings(args, e), say=_say)
        planned = {"experiment": e.name, "topology": str(pod), "fits": False, "hbm_gib_per_chip": refusal.needed}
        planned |= {"hbm_limit_gib": refusal.limit, "nearest": _as_data(near)}
        if args.json:
            cli.print_json(planned)
        raise PodError(f"{refusal}; the nearest that fit: " + ("; ".join(map(str, near)) or "none was found")) from None
    if args.page:
        events = args.page.with_suffix(".trace.json")
        _write(args.page, page.page(planned, events.name))
        _write(events, json.dumps(trace.trace(planned)))
    cli.print_json(planned) if args.json else print(report.as_text(planned))
    return 0 if planned["checks_passed"] else 1


def _report(args: argparse.Namespace, pod: Slice, candidate: Any) -> dict[str, Any]:
    """Returns a candidate's report, for a search."""
    from trainers.pods import report

    e = candidate.experiment
    return report.plan(e, pod, _options(args, e), kernel_efficiency=args.kernel_efficiency)[0]


def _search(args: argparse.Namespace, e: Experiment, pod: Slice) -> int:
    from trainers.pods import search

    evaluate = functools.partial(_report, args, pod)
    results = search.search(e, pod, evaluate, settings=_settings(args, e), say=_say)
    cli.print_json(_as_data(results)) if args.json else print("\n".join(map(str, results)))
    return 0


def _as_data(results: list[Any]) -> list[dict[str, Any]]:
    return [{"plan": result.candidate.text, **result.report} for result in results]


def _all(args: argparse.Namespace) -> int:
    from trainers.pods import report, search
    from trainers.pods.layout_candidates import Candidate

    rows, refused = [], []
    for name in PODS:
        e = registry.load(name)
        pod = _slice(None, e)
        reports = search.Reports(pod, _settings(args, e))  # what was compiled before is not compiled again
        try:
            planned = _planned(args, e, pod) if args.hlo else reports(functools.partial(_report, args, pod), Candidate(e, name))
        except PodError as refusal:
            planned = {"fits": False, "error": str(refusal)}
        if not planned["fits"]:  # an hour's other rows are not lost by it
            refused.append(name)
            _say(f"error: {planned['error']}")
            continue
        rows.append(planned)
        _say("\n".join([*report.table(rows[-1:]), *(f"{name}: {problem}" for problem in planned["problems"])]))
    cli.print_json(rows) if args.json else print("\n".join(report.table(rows)))
    if refused:
        raise PodError(f"{len(refused)} of {len(PODS)} experiments have no plan: {', '.join(refused)}")
    return 1 if any(row["problems"] for row in rows) else 0


def _calibrate(args: argparse.Namespace) -> int:
    from models.parts.attention import splash
    from trainers.hlo.parsing import HloError
    from trainers.pods import calibration, report

    rows, refused = calibration.stored(), []
    for name in _points(args.calibrate, {row["name"] for row in rows}):
        point = POINTS[name]
        try:
            with contextlib.nullcontext() if point.kernel else splash.without_kernel():
                planned, text = report.plan(
                    point.experiment(),
                    parse_slice(point.topology),
                    args.options or point.options,
                    kernel_efficiency=args.kernel_efficiency,
                )
        except (PodError, HloError) as refusal:  # the points behind it are not lost by it
            refused.append(name)
            _say(f"error: {name}: {told(refusal)}")
            continue
        if args.hlo:
            _write(args.hlo / f"{name}.hlo.txt", text)
        row = calibration.row(name, planned)
        rows = calibration.write([row])  # at once: what is stopped goes on with "missing"
        _say(f"{name}: {row} {'; '.join(planned['problems'])}")
    cli.print_json(rows) if args.json else print("\n".join(calibration.table(rows)))
    if refused:
        raise PodError(f"{len(refused)} points have no plan: {', '.join(refused)}")
    return 0


def _points(names: list[str], known: set[str]) -> list[str]:
    """Returns the points to be compiled: those named, all without names, and for "missing" those that are not known."""
    for name in names:
        if name not in POINTS and name != "missing":
            raise PodError(f"--calibrate {name}: no such point{nearest(name, (*POINTS, 'missing'))}")
    chosen = [name for name in POINTS if name in names or ("missing" in names and name not in known)]
    return chosen if names else list(POINTS)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    _say(f"wrote {path}")


if __name__ == "__main__":
    cli.run(main)
