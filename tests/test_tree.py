"""The shape of the tree: which folder may import which, and that no modules import each other in a circle."""

import ast
from collections.abc import Iterator
from pathlib import Path

from data.paths import ROOT

FLOORS = ("models", "data", "configs", "trainers", "scripts")  # each imports those before it alone


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))}


def imported(path: Path, *, at_import: bool) -> Iterator[str]:
    """Yields the project's modules that a file imports, those inside functions and for type checkers only on demand."""
    body: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while body:
        node = body.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in names if name in MODULES or node.module in MODULES)
        deferred = isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        if not (at_import and deferred):
            body += ast.iter_child_nodes(node)


def test_imports_go_one_way():
    """A folder imports itself and those below it, also inside functions."""
    places = {floor: i for i, floor in enumerate(FLOORS)}
    arrows = [(name, other) for name, path in MODULES.items() for other in imported(path, at_import=False)]
    assert len(arrows) > 1000
    assert not [f"{a} -> {b}" for a, b in arrows if places[a.split(".")[0]] < places[b.split(".")[0]]]


def test_no_modules_import_each_other_in_a_circle():
    """Modules can be put in an order in which each imports only earlier ones."""
    graph = {name: set(imported(path, at_import=True)) - {name} for name, path in MODULES.items()}
    while ready := {name for name, others in graph.items() if not others}:
        graph = {name: others - ready for name, others in graph.items() if name not in ready}
    assert not graph, {name: sorted(others) for name, others in graph.items()}


def test_files_are_short():
    """No module has more than about 500 lines."""
    assert not {name: n for name, path in MODULES.items() if (n := len(path.read_text().splitlines())) > 550}
