"""The table of docs/WEIGHTS.md: what is tested of each model_type of Hugging Face.

.venv/bin/python -m tests.helpers.weights_table    rewrites the table
"""

import json
from collections import defaultdict
from pathlib import Path

from safetensors import safe_open

from configs import registry
from data.paths import ROOT
from models.families import FAMILIES, interchange_of
from tests.trainers.weights.test_peft import WRITTEN

PAGE = ROOT / "docs" / "WEIGHTS.md"
FIXTURES = ROOT / "tests" / "fixtures"
HEAD = ("| `model_type` | family | in and out | msgpack | generates | LoRA | layouts |", "|" + " --- |" * 7)
YES = "yes"


def _kind(folder: Path) -> str:
    return json.loads((folder / "config.json").read_text())["model_type"]


def _layouts() -> dict[str, set[str]]:
    """Returns the layouts under which models of each family are compared with one device (tests/contracts.json has them all)."""
    layouts: dict[str, set[str]] = defaultdict(set)
    for case in json.loads((ROOT / "tests" / "contracts.json").read_text())["cases"]:
        name, layout = case.split()
        layouts[registry.load(name).model.family].add(layout.partition(":")[0])
    return layouts


def lines() -> list[str]:
    """Returns the table: a line for each model_type, by family."""
    cases: dict[str, list[Path]] = defaultdict(list)
    for folder in sorted((FIXTURES / "parity").iterdir()):
        if (folder / "expected.safetensors").exists():
            cases[_kind(folder)].append(folder)
    flax = {_kind(folder) for folder in (FIXTURES / "flax").iterdir()}
    adapted = {_kind(FIXTURES / "parity" / base) for base, _ in WRITTEN}
    generates = {kind for kind, folders in cases.items() if any("greedy" in _arrays(folder) for folder in folders)}
    layouts, table = _layouts(), [*HEAD]
    for family in sorted(FAMILIES):
        interchange = interchange_of(family)
        for kind in sorted(interchange.model_types) if interchange else ():
            cells = (
                f"{len(cases[kind])} models" if len(cases[kind]) > 1 else "1 model" if cases[kind] else "",
                *(YES if kind in tested else "" for tested in (flax, generates, adapted)),
                str(len(layouts[family])),
            )
            table.append(f"| `{kind}` | {family} | {' | '.join(cells)} |".replace("  |", " |"))
    return table


def _arrays(folder: Path) -> set[str]:
    with safe_open(folder / "expected.safetensors", "np") as file:
        return set(file.keys())


def main() -> None:
    text = PAGE.read_text()
    before, _, after = text.partition(HEAD[0])
    behind = after.split("\n\n", 1)[1]
    PAGE.write_text("\n".join([before + "\n".join(lines()), "", behind]))


if __name__ == "__main__":
    main()
