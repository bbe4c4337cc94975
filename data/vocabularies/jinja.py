"""Jinja as chat templates use it: in its sandbox, with what `transformers` offers to them and nothing else."""

import datetime
import json
from typing import Any, ClassVar

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from data.task import DataError
from data.vocabularies.chat_templates import BEGIN, END, TemplateRefusal
from models.errors import shortened

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
      DataError: it is no Jinja.
    """

    def __init__(self, source: str, name: str):
        env = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], keep_trailing_newline=False
        )
        env.filters["tojson"] = _tojson
        env.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: TODAY.strftime(form)}
        try:
            self._template = env.from_string(source)
        except jinja2.TemplateError as error:
            raise DataError(f"{name}: its chat template is damaged: {shortened(str(error), 200)}") from None
        blocks = (block.call.node for block in env.parse(source).find_all(nodes.CallBlock))
        self.marked = any(getattr(node, "identifier", "") == Generation.identifier for node in blocks)

    def render(self, **values: Any) -> str:
        """Returns the text; raises TemplateRefusal where the template does not take these values."""
        try:
            return self._template.render(**values)
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError) as error:
            raise TemplateRefusal(f"the chat template refuses it: {shortened(str(error), 120)}") from None


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, **options: Any) -> str:
    """JSON as `transformers` writes it in templates: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
