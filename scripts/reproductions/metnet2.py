"""MetNet-2 (arXiv 2111.07470): a small one, trained on eleven days of radar."""

import dataclasses
from pathlib import Path
from typing import Any

from configs import registry
from scripts.reproductions import training
from scripts.reproductions.entry import Row, reproduction

SEEDS = (0, 1)


@reproduction("MetNet-2, Figures 2 and 3", unit="critical success index at 0.2 mm/h", kind="trained", minutes=11)
def lead_times(folder: Path) -> list[Row]:
    """The network forecasts rain better than persistence and motion at every lead time, and its skill falls with it."""
    from scripts.bench_nowcast import baseline_scores

    steps = 300
    e = registry.load("metnet2.quickstart")
    arm = training.arm("metnet2", training.shortened(e, steps, "--data.batch_size=2", warm=False))
    runs = training.train(folder, [arm], SEEDS)["metnet2"]
    config: Any = e.eval
    test = dataclasses.replace(config, split="test")
    scores = [training.evaluated(run, "test", lambda e: dataclasses.replace(e, eval=test)) for run in runs]
    data: Any = arm.experiment.data
    base = training.kept(runs[0], "baselines", lambda: _flat(baseline_scores(data, "test", 0)))
    rows, claims = [], []
    names = {"persistence": "persistence", "motion": "the last frame, moved"}
    for lead in data.scored:
        found, minutes = [score[f"eval/lead_{lead}/csi_0.2"] for score in scores], lead * 5
        rows.append(training.measured(f"network, {minutes} min", found, series="network", at=minutes))
        for name, shown in names.items():
            value = base[f"{name}/lead_{lead}/csi_0.2"]
            rows.append(Row(f"{shown}, {minutes} min", None, value, series=shown, at=minutes))
            gain = training.less(found, value)
            claims.append(training.claim(f"network less {shown}, {minutes} min", gain, 1))
    first, last = (
        [score[f"eval/lead_{lead}/csi_0.2"] for score in scores] for lead in (data.scored[0], data.scored[-1])
    )
    claims.append(training.claim("skill at 120 min less at 5 min", training.less(last, first), -1))
    note = (
        f"{steps} steps of 2 windows of one week in May over Germany; the paper's leads are up to 12 hours, over years"
    )
    return [*rows, *(dataclasses.replace(c, differs=f"{c.differs}; {note}" if not c.agrees else note) for c in claims)]


def _flat(scores: dict[str, dict[str, float]]) -> dict[str, float]:
    return {f"{name}/{score}": value for name, found in scores.items() for score, value in found.items()}
