"""Rewrites the golden dumps: each experiment's config, parameter table and decay groups, as sorted text lines.

    make golden

tests/configs/test_experiments.py compares them, so that a diff shows which experiments a change touches.
"""

from configs import registry
from data.paths import ROOT
from scripts import cli

FOLDER = ROOT / "configs" / "golden"


def dump(name: str) -> str:
    """Returns the golden text of an experiment."""
    from trainers.hlo import tables

    e = registry.load(name)
    description = tables.describe(e)
    lines = sorted(registry.lines(e))
    for t in description["tensors"]:
        shape = "x".join(map(str, t["shape"]))
        decay = "decayed" if t["decayed"] else "not decayed"
        lines.append(f"tensor {t['name']}: {shape} ({' '.join(t['axes'])}) {t['spec']} {decay}")
    return "\n".join([*lines, f"parameters: {description['parameters']}", ""])


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for stale in {path.stem for path in FOLDER.glob("*.txt")} - set(registry.names()):
        (FOLDER / f"{stale}.txt").unlink()
    for name in registry.names():
        (FOLDER / f"{name}.txt").write_text(dump(name))
    print(f"{len(registry.names())} dumps in {FOLDER}")
    return 0


if __name__ == "__main__":
    cli.run(main)
