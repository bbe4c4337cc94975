"""Jinja whose templates end: what a template of a stranger's does is counted, in steps and in the characters that it makes.

Before a template is compiled, its tree is changed: a loop's or a macro's body first counts a step for what is in it, and what
makes or compares values is counted by their sizes. Calls, filters, tests, operators and outputs are counted where the sandbox
hands them over. An operation whose value may be much larger than what it is made from is refused before it is made. Nothing
depends on time.

A container counts as often as it is in others: what is done with it, such as writing it, is done as often.
"""

import functools
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from data import untrusted

# Names of the filters that count, which no template can write.
_STEP, _MADE, _COMPARED, _JOINED = "step!", "made!", "compared!", "joined!"
# Methods and filters whose value is as large as the product of what they take, or takes as long; of the second, a number is a
# width.
_PRODUCTS = {
    "format",
    "format()",
    "join",
    "lstrip",
    "max",
    "min",
    "replace",
    "rfind",
    "rindex",
    "rpartition",
    "rsplit",
    "rstrip",
    "sort",
    "strip",
    "trim",
    "unique",
}
_WIDTHS = {
    "batch",
    "center",
    "expandtabs",
    "indent",
    "ljust",
    "rjust",
    "round",
    "slice",
    "tojson",
    "truncate",
    "wordwrap",
    "zfill",
}
_SPLITS = {"batch", "list", "slice", "sort", "split", "rsplit", "splitlines", "unique"}  # make lists out of texts
# Tests of a value's type alone.
_KINDS = {
    "boolean",
    "callable",
    "defined",
    "escaped",
    "false",
    "float",
    "integer",
    "iterable",
    "mapping",
    "none",
    "number",
    "sameas",
    "sequence",
    "string",
    "true",
    "undefined",
}
# Filters that look at a value, or hand on what is in it, one at a time.
_PASSING = {
    "attr",
    "count",
    "d",
    "default",
    "first",
    "items",
    "last",
    "length",
    "map",
    "reject",
    "rejectattr",
    "select",
    "selectattr",
}
_WRITING = {"e", "escape", "indent", "join", "replace", "string", "tojson"}  # make text of what is none
# What no chat template needs, and whose costs are others than their sizes.
_FILTERS = ("filesizeformat", "forceescape", "groupby", "pprint", "random", "striptags", "sum", "urlize", "xmlattr")
_GLOBALS = ("cycler", "joiner", "lipsum")
_METHODS = ("encode", "fromkeys", "maketrans", "to_bytes", "translate")
_ITEM = 16  # characters that a place in a container counts
_WRITTEN = 12  # times as long as their sizes containers are as text, quoted and escaped
_DIGITS = 20_000  # bits of a whole number
# Widths of more than 999, or that are not in the text, of the operator % and the filter, and of the method.
_WIDE = {
    "format": re.compile(r"%(?:\([^)]*\))?[-#0 +]*(?:\d*\.)?(?:\d{4}|\*)"),
    "format()": re.compile(r"\{[^{}]*(?:\{|:[^{}]*\d{4})"),
}


class TooMuch(Exception):
    """A template does more than any that renders a conversation."""


class Meter:
    """The budget that a template has left."""

    def __init__(self):
        self.reset(0)

    def reset(self, given: int) -> None:
        """Begins anew, with as many characters of conversation."""
        self._steps = untrusted.RENDERING
        self._room = self._most = untrusted.RENDERED + 32 * given

    def step(self, steps: float, characters: int = 0) -> bool:
        """Counts steps and characters; returns True."""
        self._steps -= abs(steps)
        self._room -= abs(characters)
        if self._steps < 0:
            raise TooMuch(f"takes more than {untrusted.RENDERING:,} steps")
        if self._room < 0:
            raise TooMuch(f"makes more than {self._most:,} characters")
        return True

    def size(self, value: Any) -> int:
        """Returns the characters that a value counts."""
        if isinstance(value, str):
            return len(value)
        total, left = 0, [value]
        while left:
            value = left.pop()
            self._steps -= 0.5
            if isinstance(value, (str, bytes)):
                total += len(value)
            elif isinstance(value, int):
                self.bits(value.bit_length())
            elif isinstance(value, (Mapping, Namespace)):
                value = value if isinstance(value, Mapping) else getattr(value, "_Namespace__attrs")  # noqa: B009
                left += value.keys()
                left += value.values()
                total += _ITEM * len(value)
            elif isinstance(value, range):
                self._steps -= len(value) / 10  # what is done with it may go through it
            elif isinstance(value, (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)):
                left += value
                total += _ITEM * len(value)
            total += 1
            if total > self._room:
                self.step(0, total)
        return total

    def bits(self, number: int) -> None:
        """Refuses a whole number of so many bits, with which a processor is long at work."""
        if number > _DIGITS:
            raise TooMuch(f"computes a number of more than {_DIGITS:,} bits")

    def written(self, value: Any) -> Any:
        """Counts a value that becomes text, and returns it."""
        self.step(1, self.size(value) if isinstance(value, str) else _WRITTEN * self.size(value))
        return value

    def passed(self, value: Any, steps: float = 1) -> Any:
        """Returns a value, of a generator one that counts so many steps for each that it makes."""
        self.step(steps)
        return (item for item in value if self.step(steps)) if isinstance(value, Iterator) else value

    def made(self, value: Any) -> Any:
        """Counts a value that was made, and returns it as `passed` does."""
        self.step(0, self.size(value))
        return self.passed(value)

    def compared(self, value: Any) -> Any:
        """Counts a value that is compared, and returns it."""
        self.step(1 + self.size(value) / 1000)
        return value

    def before(self, name: str, first: Any, others: Iterable[Any]) -> None:
        """Counts what is to be done with values; refuses what might make much more of them."""
        size, reach = self.size(first), 1
        for other in others:
            number = isinstance(other, int) and name in _WIDTHS
            reach += abs(other) if number else self.size(other)
            self.step(abs(other) if number else 0)
        if name in _WIDE:
            if _WIDE[name].search(str(first).replace("{{", "").replace("}}", "")):
                raise TooMuch("formats with widths of more than 999")
            reach += 1000
        if name in _PRODUCTS | _WIDTHS:
            self.step(size * reach / 1000)
            if size * reach > 4 * self._most:
                raise TooMuch(f"may make more than {4 * self._most:,} characters at once, in '{name}'")
        self.step(1 + size / 1000, _ITEM * size if name in _SPLITS and isinstance(first, str) else 0)


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with a meter, which is reset before each rendering."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, **options: Any):
        self.meter = meter = Meter()

        @jinja2.pass_context  # so that no output is computed while a template is compiled
        def finalize(context: Any, value: Any) -> Any:
            del context
            return meter.written(value)

        # Nothing is computed before it can be counted.
        super().__init__(**options, optimized=False, finalize=finalize)
        for name in _FILTERS:
            self.filters.pop(name, None)
        for name in _GLOBALS:
            self.globals.pop(name, None)

    def metered(self) -> None:
        """Counts what the filters and tests do that were added so far."""
        self.filters = {name: self._counted(name, made) for name, made in self.filters.items()} | {
            _STEP: self.meter.step,
            _MADE: self.meter.made,
            _COMPARED: self.meter.compared,
            _JOINED: self._joined,
        }
        self.tests = {name: test if name in _KINDS else self._counted(name, test) for name, test in self.tests.items()}

    def _counted(self, name: str, made: Callable[..., Any]) -> Callable[..., Any]:
        passed = int(hasattr(made, "jinja_pass_arg"))

        @functools.wraps(made)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if name in _PASSING:
                path = sum(len(text) for text in (*args[passed + 1 :], *kwargs.values()) if isinstance(text, str))
                return self.meter.passed(made(*args, **kwargs), 1 + path / 10)  # of attributes of attributes
            if name == "join":  # of a generator as well, which has no size
                args = (*args[:passed], list(args[passed]), *args[passed + 1 :])
            first, *others = args[passed:]
            self.meter.before(name, first, [*others, *kwargs.values()])
            if name in _WRITING:
                self.meter.written(first)
            return self.meter.made(made(*args, **kwargs))

        return counted

    def _joined(self, values: list[Any]) -> str:
        return "".join([str(self.meter.written(value)) for value in values])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Counting().visit(super()._parse(source, name, filename))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _METHODS and super().is_safe_attribute(obj, attr, value)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, Macro):
            self.meter.step(1 + len(args) + len(kwargs))
        else:
            bound = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
            name = getattr(bound, "__name__", "")
            name = "format()" if name in ("format", "format_map") else name
            args = tuple(list(value) if isinstance(value, (Iterator, range)) else value for value in args)  # have no size
            self.meter.before(name, getattr(bound, "__self__", None), [*args, *kwargs.values()])
        return self.meter.made(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        numbers = [x for x in (left, right) if isinstance(x, int)]
        if operator == "%" and isinstance(left, str):
            self.meter.before("format", left, [right])
        elif len(numbers) == 2:
            bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
            self.meter.bits(bits)
        elif operator == "*" and numbers and not isinstance(left, float) and not isinstance(right, float):
            self.meter.step(1, max(numbers[0], 0) * self.meter.size(right if left is numbers[0] else left))
        return self.meter.made(super().call_binop(context, operator, left, right))


class _Counting(NodeTransformer):
    """Changes the tree of a template so that what it does is counted."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        step = _step(node)
        if node.test is not None:
            node.test = nodes.And(step, node.test, lineno=node.lineno)
        return self._body(node, step)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._body(node, _step(node))

    visit_CallBlock = visit_Block = visit_Macro

    def _body(self, node: Any, step: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through(_JOINED, nodes.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return _through(_MADE, node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_List(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _through(_MADE, node)
        node.arg = _compared(node.arg)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _compared(node.expr)
        for operand in node.ops:
            operand.expr = _compared(operand.expr)
        return node


def _step(node: nodes.Node) -> nodes.Filter:
    """Returns the expression that counts a step through a body: its operations, an eighth of a step each, and its text."""
    inside = list(node.find_all(nodes.Node))
    text = sum(len(each.data) for each in inside if isinstance(each, nodes.TemplateData))
    steps, text = (nodes.Const(number, lineno=node.lineno) for number in (1 + len(inside) / 8, text))
    return _through(_STEP, steps, text)


def _through(name: str, node: nodes.Expr, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


def _compared(node: nodes.Expr) -> nodes.Expr:
    return node if isinstance(node, nodes.Const) else _through(_COMPARED, node)
