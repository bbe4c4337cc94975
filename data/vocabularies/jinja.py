"""Jinja as chat templates use it: in its sandbox and in bounds, with what `transformers` offers to them and nothing else."""

import datetime
import json
from typing import Any, ClassVar

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from data import untrusted
from data.task import DataError
from data.vocabularies.marks import BEGIN, END, TemplateRefusal
from data.vocabularies.metered import MeteredEnvironment, TooMuch
from models.errors import shortened, told

# What Llama 3's template takes where no clock is: a row must not depend on the day.
TODAY = datetime.datetime(2024, 7, 26)


class Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`: what the assistant says."""

    tags: ClassVar = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        return f"{BEGIN}{caller()}{END}"


class Program:
    """A template that can be rendered.

    Args:
      source: its text.
      name: of its folder, for errors.

    Attributes:
      marked: whether it has `{% generation %}` blocks.

    Raises:
      DataError: it is no Jinja, or too long.
    """

    def __init__(self, source: str, name: str):
        untrusted.bounded(len(source), untrusted.TEMPLATE, "characters", DataError, f"{name}: its chat template")
        self._name = name
        self._env = env = MeteredEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], keep_trailing_newline=False
        )
        env.filters["tojson"] = _tojson
        env.globals |= {"raise_exception": _refuse, "strftime_now": _today}
        env.metered()
        try:
            with untrusted.damage(f"{name}: its chat template", DataError):
                tree = env.parse(source)
                blocks = [block.call.node for block in tree.find_all(nodes.CallBlock)]
                self._template = env.from_string(tree)
        except MemoryError:  # of Python's compiler, which has a stack of its own
            raise DataError(f"{name}: its chat template is nested too deep") from None
        self.marked = any(getattr(node, "identifier", "") == Generation.identifier for node in blocks)

    def render(self, given: int, **values: Any) -> str:
        """Returns the text of a conversation of so many characters.

        Raises:
          DataError: the template does more than any that renders such a conversation.
          TemplateRefusal: the template does not take these values.
        """
        self._env.meter.reset(given)
        try:
            text = self._template.render(**values)
        except TooMuch as problem:
            raise DataError(f"{self._name}: its chat template {problem}") from None
        except Exception as problem:  # whatever Python's operators and methods raise
            raise TemplateRefusal(f"the chat template refuses it: {shortened(told(problem), 120)}") from None
        most = 4 * untrusted.TEMPLATE + 8 * given
        untrusted.bounded(len(text), most, "characters", DataError, f"{self._name}: a conversation in its chat template")
        try:
            text.encode()
        except UnicodeEncodeError:  # half a character of UTF-16, which JSON and Jinja can write
            raise TemplateRefusal("its text is no Unicode") from None
        return text


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, **options: Any) -> str:
    """JSON as `transformers` writes it in templates: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _today(form: str) -> str:
    if len(form) > 100:
        raise ValueError(f"a date in a form of {len(form):,} characters")
    return TODAY.strftime(form)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
