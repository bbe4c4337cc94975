"""Chat templates of strangers: whatever one holds, it is rendered in bounded steps and memory, or refused in one line."""

import json
import os
import re

import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from data import untrusted
from data.vocabularies import files
from data.vocabularies.chat_templates import ChatEncoder, ChatTemplate
from data.vocabularies.jinja import Generation, Program
from data.vocabularies.marks import TemplateRefusal
from models.errors import UserError
from tests.helpers.chats import CHATML, turns, write_vocabulary

FOREVER = "{% for i in range(100000) %}{% for j in range(100000) %}BODY{% endfor %}{% endfor %}"
GROW = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = NEXT %}{% endfor %}{{ ns.x }}"
REPEAT = "{% for i in range(100000) %}BODY{% endfor %}"


def grown(start: str, following: str) -> str:
    return GROW.replace("START", start).replace("NEXT", following)


@pytest.fixture
def low(monkeypatch):
    """Bounds that are soon reached."""
    monkeypatch.setattr(untrusted, "RENDERING", 50_000)
    monkeypatch.setattr(untrusted, "RENDERED", 3 << 20)


def refusal(source: str) -> str:
    """Returns the error of a template that must not be rendered."""
    with pytest.raises(UserError) as error:
        Program(source, "FOLDER").render(100, messages=turns("Hi", "Hello"), tools=None, add_generation_prompt=False)
    text = str(error.value)
    assert "\n" not in text and len(text) < 300
    return text


@pytest.mark.parametrize(
    "source",
    [
        FOREVER,
        FOREVER.replace("range(100000) %}BODY", "range(100000) if false %}"),
        FOREVER.replace("BODY", "{{ [1] | map('step!', -10 ** 12) | list }}"),
        FOREVER.replace("BODY", "{% continue %}"),
        "{% for x in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}",
        "{% macro f(n) %}{% if n %}{% set x = f(n - 1) ~ f(n - 1) %}{% endif %}{% endmacro %}{{ f(100) }}",
        REPEAT.replace("BODY", "{{ range(100000)" + " | map('string')" * 40 + " | list | length }}"),
        REPEAT.replace("BODY", "{% set x = range(100000) | sort %}"),
        REPEAT.replace("BODY", "{% set x = -1 in (range(100000) | map('string')) %}"),
        "{% set b = 'a' * 1000000 %}" + REPEAT.replace("BODY", "{% if 'b' in b %}{% endif %}"),
        "{% set b = 'a' * 1000000 %}" + REPEAT.replace("BODY", "{% set x = b.count('ab') %}"),
        "{% set b = 'a' * 1000000 %}{{ b.rfind('b' + b[1:]) }}",
    ],
)
def test_a_template_that_would_run_on_is_stopped(source, low):
    """Loops, recursion and long comparisons take a number of steps, not a time, and the error says so."""
    assert re.match("FOLDER: its chat template (takes|makes) more than", refusal(source))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10 ** 10 }}",
        "{% set x = 'a' * 10 ** 10 %}",
        "{{ ([1] * 10 ** 10) | length }}",
        grown("'a'", "ns.x ~ ns.x"),
        grown("'a'", "ns.x + ns.x"),
        grown("[1]", "ns.x + ns.x"),
        grown("[1]", "[ns.x, ns.x]"),
        grown("(1,)", "(ns.x, ns.x)"),
        grown("{}", "{'a': ns.x, 'b': ns.x}"),
        grown("{}", "dict(a=ns.x, b=ns.x)"),
        grown("[]", "ns.x + ['a' * 1000000]"),
        "{% set a = namespace() %}{% set a.a = [a] %}{{ a }}",
        "{% set b = 'a' * 1000000 %}" + REPEAT.replace("BODY", "{% set x = b[1:] %}"),
        REPEAT.replace("BODY", "x" * 100_000),
        "{{ ('<' * 10000000) | e }}",
        "{% set x %}{{ 'a' * 1000000 }}{% endset %}" + REPEAT.replace("BODY", "{% set x %}{{ x }}{{ x }}{% endset %}"),
    ],
)
def test_a_template_that_would_grow_is_stopped(source, low):
    """Texts, lists that hold themselves many times, and outputs have a number of characters."""
    assert re.match("FOLDER: its chat template (takes|makes) more than", refusal(source))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' | center(10 ** 10) }}",
        "{{ 'a'.ljust(10 ** 10) }}",
        "{{ 'a'.zfill(10 ** 10) }}",
        "{{ ('a\n' * 1000) | indent(10 ** 9) }}",
        "{{ [1, 2] | tojson(indent=10 ** 9) }}",
        "{{ 1.5 | round(10 ** 9) }}",
        "{{ [1] | batch(10 ** 9, 'x') | list }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10 ** 9, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10 ** 9) }}",
        "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
        "{{ ('{0}' * 100000).format('x' * 100000) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
        "{{ range(100000) | join('b' * 1000000) }}",
        "{{ range(100000) | map('string') | join('b' * 1000000) }}",
        "{{ ('b' * 1000000).join(range(100000) | map('string')) }}",
        "{{ (-9) ** (9 ** 7) }}",
        grown("3", "ns.x * ns.x"),
        "{{ ('f' * 10000000) | int(base=16) % 7 }}",
        "{{ lipsum(n=10 ** 9) }}",
        "{{ ('www.' * 100000) | urlize }}",
        "{{ 'a'.encode('idna') }}",
        "{{ strftime_now('%Y' * 1000000) }}",
        "{% for i in range(10 ** 12) %}{% endfor %}",
    ],
)
def test_one_operation_cannot_make_much(source):
    """Widths, replacements, formats and powers are refused before what they would make is made."""
    assert refusal(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ 1 % 0 }}",
        "{{ 10.0 ** 400 }}",
        "{{ 10 ** 5000 }}",
        "{{ a.b.c }}",
        "{{ a() }}",
        "{{ {[]: 1} }}",
        "{{ None + 1 }}",
        "{{ ''.join([1]) }}",
        "{{ '%c' % 10 ** 9 }}",
        "{% include 'a' %}",
        "{% extends self %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ raise_exception() }}",
        "{{ raise_exception('a\n' * 9999) }}",
        "{{ strftime_now(1) }}",
        "{{ strftime_now('\\ud800') }}",
        "{{ '\\ud800' }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ [1] | selectattr('a', 'nosuchtest') | list }}",
    ],
)
def test_what_python_raises_refuses_the_conversation(source):
    """Whatever class of error a template meets while it is rendered, it is a refusal in one line."""
    with pytest.raises(TemplateRefusal):
        Program(source, "FOLDER").render(100, messages=[], tools=None)


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{% if 1 %}",
        "{% nosuch %}",
        "{{ 1 | nosuch }}",
        "{{ 1 is nosuch }}",
        "{% break %}",
        "{{ 'a }}",
        "{% macro f(a, a) %}{% endmacro %}",
        "{% block a %}{% endblock %}{% block a %}{% endblock %}",
        "{{ f(a=1, a=2) }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "[" * 5000 + "]" * 5000 + " }}",
        "{{ " + "not " * 9999 + "1 }}",
        "{{ a" + ".a" * 20000 + " }}",
        "{{ 1" + " + 1" * 20000 + " }}",
        "{{ 1" + " if 0 else 1" * 9999 + " }}",
        "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
        "{% for i in [1] %}" * 99 + "{% endfor %}" * 99,
        "{% if 0 %}" + "{% elif 0 %}" * 10000 + "{% endif %}",
        "x" * 300_000,
    ],
)
def test_what_is_no_template_is_refused(source):
    """Faults of syntax, nesting and length are found before anything is rendered."""
    assert "FOLDER: its chat template " in refusal(source)


def test_counting_changes_nothing(tmp_path):
    """A template with every kind of node and many filters writes what Jinja's sandbox writes of it without a meter."""
    source = """{% macro box(a, b=2) %}[{{ caller(a) }}{{ b }}{{ varargs }}{{ kwargs }}]{% endmacro %}
        {%- call(z) box(1, 2, 3, c=4) %}q{{ z }}{% endcall %}{% set ns = namespace(last=-1, text='') %}
        {%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
        {%- for m in messages[::-1] if m.content %}{% set ns.text = ns.text ~ m.content[:1] + m['role'] %}
            {{- loop.cycle('x', 'y') }}{{ loop.previtem.role if loop.previtem }}{{ loop.index % 2 }}{% endfor %}
        {%- for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }},{% else %}none{% endfor %}
        {{- ns.last }}{{ ns.text }}{{ messages | tojson(indent=2) }}{{ messages | length }}{{ messages | first }}
        {%- set block %}a{{ 1 }}{% endset %}{{ block }}{% filter upper %}x{{ 'y' }}{% endfilter %}
        {{- messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('; ') }}
        {{- [1, 2] + [3] }}{{ {'a': (1, 2)} }}{{ -3 }}{{ not 1 }}{{ 2 ** 3 }}{{ 7 / 2 }}{{ 'x' * 3 }}{{ nothing | default('d') }}
        {{- none }}{{ range(3) | list }}{{ [3, 1] | sort | reverse | list }}{{ 3.14159 | round(2) }}{{ 'a\nb' | indent }}
        {{- '%s %d' % ('b', 3) }}{{ '{{2024}} {:>3} {x}'.format(1, x=2) }}{{ '5% (2024) {}'.format(1) }}{{ '2024 %5.1f' % 1 }}
        {{- ' a '.strip().replace('a', 'bc').split('b') }}
        {{- 1 < 2 < 3 }}{{ 'a' in 'abc' }}{{ 'user' in ['user'] and 1 is not none }}{{ {'b': 1} | dictsort }}{{ 10 ** 9 * 0.5 }}
        {%- generation %}{{ messages[-1].content | trim | upper }}{% endgeneration %}{% block end %}{{ nothing }}{% endblock %}"""
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    plain.filters["tojson"] = lambda value, indent: json.dumps(value, indent=indent)
    values = dict(messages=turns("why", "so", "é", "yes\n"), tools=None)
    assert Program(source, "FOLDER").render(100, **values).isascii() is False
    values["messages"] = turns("why", "so", "and", "yes\n")
    assert Program(source, "FOLDER").render(100, **values) == plain.from_string(source).render(**values)


def test_a_long_conversation_is_no_attack(tmp_path):
    """Bounds grow with the conversation: one of two million characters is rendered, and one of 2,000 turns."""
    template = ChatTemplate(write_vocabulary(tmp_path))
    long = turns("a" * 1_000_000, "b" * 1_000_000)
    assert template(long) == "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in long)
    assert template(turns(*["hello"] * 2000)).count("hello") == 2000


@pytest.mark.parametrize(
    "make, part",
    [
        (os.mkfifo, "is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
        (lambda path: path.mkdir(), "is no regular file"),
        (lambda path: path.write_bytes(b"\xff{}"), "is damaged: byte 0 is no UTF-8"),
        (lambda path: path.write_text(""), "leaves out what the assistant says"),
        (
            lambda path: path.write_text("{{ messages[0].content }}<|im_end|>"),
            "leaves out what the assistant says|does not begin",
        ),
        (lambda path: path.write_text("{% generation %}{% endgeneration %}"), "leaves out what the assistant says"),
    ],
)
def test_a_template_that_is_no_file_is_refused(tmp_path, make, part):
    """A pipe is not waited for and a device not read; an empty template has no end of a turn."""
    make(write_vocabulary(tmp_path, None) / files.TEMPLATE)
    with pytest.raises(UserError, match=part) as error:
        _ = ChatEncoder(tmp_path).end
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template": [{}]},
        {"chat_template": [1]},
        {"chat_template": {}},
        {"chat_template": 7},
        {"chat_template": []},
        {"chat_template": [{"name": "default"}]},
        {"chat_template": [{"name": [], "template": CHATML}]},
        {"chat_template": [{"name": "default", "template": 7}]},
    ],
    ids=str,
)
def test_a_template_of_another_type_is_refused(tmp_path, fields):
    """A value of another type in tokenizer_config.json in place of a template is no template."""
    config = write_vocabulary(tmp_path, None) / files.CONFIG
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    with pytest.raises(UserError, match="no chat template"):
        ChatTemplate(tmp_path)


@pytest.mark.parametrize("token", [{}, {"content": 7}, [], 7, None, {"content": {"content": "a"}}], ids=str)
def test_a_special_token_of_another_type_has_no_name(tmp_path, token):
    """A template that names it writes nothing, as with one that is missing."""
    config = write_vocabulary(tmp_path, "{{ bos_token }}" + CHATML) / files.CONFIG
    config.write_text(json.dumps(json.loads(config.read_text()) | {"bos_token": token}))
    assert ChatTemplate(tmp_path)(turns("a")) == "<|im_start|>user\na<|im_end|>\n"
