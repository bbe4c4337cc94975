"""The rules of CONTRIBUTING's section on prose that a machine can hold."""

import ast
import dataclasses
import re

import pytest

from data.paths import ROOT

ROOMS = ("configs", "data", "models", "scripts", "tests", "trainers")

# A clause in place of a noun at the beginning of a docstring, and participles in place of a local variable's noun.
OPENING = re.compile(r"(What|Of|Which|Those)\b")
LOCALS = {"found", "told", "heard", "rest"}

# Words of the glossary that name classes of one room alone, and the classes that may have one: the field calls what a decoder
# keeps of keys and values a cache.
ROOM_OF = {"Cache": "data", "Task": "data", "Kind": "data", "Layout": "models", "Experiment": "configs", "Plan": "trainers"}
KEY_VALUE_CACHES = {("models/parts/kv_cache.py", "LayerCache"), ("models/parts/decoder.py", "Cache")}

SKELETONS = "scripts/skeletons/"  # which become a family in models/ or a kind in data/

FIELDS = ["Question", "Change", "Result", "Decision", "Commit"]


@dataclasses.dataclass
class Prose:
    """The docstrings, local names and classes of all files: (place, text), (place, name), (file, name)."""

    docstrings: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    names: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    classes: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def add(self, file: str, tree: ast.Module) -> None:
        """Adds those of a file."""
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    self.names.append((f"{file}:{node.lineno}", name))
                case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    if text := ast.get_docstring(node):
                        self.docstrings.append((f"{file}:{node.body[0].lineno}", text))
                    if isinstance(node, ast.ClassDef):
                        self.classes.append((file, node.name))


@pytest.fixture(scope="module")
def prose() -> Prose:
    """Reads every file once."""
    prose = Prose()
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        prose.add(str(path.relative_to(ROOT)), ast.parse(path.read_text()))
    return prose


def test_docstrings_begin_with_a_verb_or_a_subject(prose):
    """None begins with What, Of, Which or Those."""
    assert prose.docstrings
    assert [place for place, text in prose.docstrings if OPENING.match(text)] == []


def test_locals_are_nouns(prose):
    """No variable or parameter is named for what was done to it."""
    assert prose.names
    assert [f"{place} {name}" for place, name in prose.names if name in LOCALS] == []


@pytest.mark.parametrize("word", ROOM_OF)
def test_a_word_of_the_glossary_names_things_of_one_room(prose, word):
    """A class whose name ends in the word belongs to the room of which the glossary speaks."""
    named = {(file, name) for file, name in prose.classes if name.endswith(word) and not file.startswith(("tests/", SKELETONS))}
    bad = [f"{file}: {name}" for file, name in named - KEY_VALUE_CACHES if not file.startswith(f"{ROOM_OF[word]}/")]
    assert bad == []


def test_entries_of_the_log_have_five_fields():
    """Question, change, result, decision and commit, in order, with a hash, in lines of at most 120 characters."""
    page = (ROOT / "docs" / "LOG.md").read_text()
    entries = [part for part in re.split(r"^(?=##)", page, flags=re.M) if part.startswith("### ")]
    assert len(entries) > 100
    for entry in entries:
        title = entry.splitlines()[0]
        assert re.findall(r"^- \*\*(\w+)\.\*\* \S", entry, re.M) == FIELDS, title
        assert re.search(r"\*\*Commit\.\*\* `[0-9a-f]{7,8}`", entry), title
    assert all(len(line) <= 120 for line in page.splitlines())
