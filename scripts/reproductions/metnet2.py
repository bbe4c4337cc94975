"""MetNet-2 (arXiv 2111.07470): a small one, trained on eleven days of radar."""

import dataclasses
from pathlib import Path
from typing import Any

from configs import registry
from scripts.reproductions import training
from scripts.reproductions.entry import Row, reproduction

SEEDS = range(4)


@reproduction(
    "MetNet-2 (arXiv 2111.07470), by its abstract: the paper was not at hand",
    "memory",
    unit="critical success index at 0.2 mm/h",
    kind="trained",
    minutes=22,
)
def lead_times(folder: Path) -> list[Row]:
    """A network forecasts rain better than what is at hand without it, and its skill falls with the lead time. The paper compares
    with weather models; persistence and motion are the baselines of this project."""
    from scripts.lab.nowcast import baseline_scores

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
        skill, minutes = [score[f"eval/lead_{lead}/csi_0.2"] for score in scores], lead * 5
        rows.append(training.measured(f"network, {minutes} min", skill, series="network", at=minutes))
        for name, shown in names.items():
            value = base[f"{name}/lead_{lead}/csi_0.2"]
            rows.append(Row(f"{shown}, {minutes} min", None, value, series=shown, at=minutes))
            gain = training.less(skill, value)
            claims.append(training.claim(f"network less {shown}, {minutes} min", gain, 1))
    first, last = ([score[f"eval/lead_{lead}/csi_0.2"] for score in scores] for lead in (data.scored[0], data.scored[-1]))
    claims.append(training.claim("skill at 120 min less at 5 min", training.less(last, first), -1))
    windows = f"{steps} steps of 2 windows of one week in May over Germany, one day of tests"
    note = f"{len(SEEDS)} seeds, {windows}; the paper's leads are up to 12 hours"
    return [*rows, *(dataclasses.replace(c, differs=f"{c.differs}; {note}" if not c.comes_out else note) for c in claims)]


def _flat(scores: dict[str, dict[str, float]]) -> dict[str, float]:
    return {f"{name}/{score}": value for name, of_name in scores.items() for score, value in of_name.items()}
