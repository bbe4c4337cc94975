"""A calculator of arithmetic in plain text. It reads the syntax tree and evaluates nothing else: no names, no calls but sqrt."""

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

Number = int | float

_LONGEST = 200  # characters of an expression
_LARGEST = 2**1024  # no number, intermediate ones included, reaches this; as for floats

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"})
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def calculate(text: str) -> str | None:
    """Returns the value of an arithmetic expression, or None where the text is none or its value is no moderate number.

    It knows numbers, + - * / // % ** ^ × ÷, brackets and sqrt(x); an "=" or "?" may end the text. A number alone is no
    expression. A whole number is written as such, another one with 12 significant digits.
    """
    expression = _THOUSANDS.sub("", text.strip().rstrip("=? ").translate(_SIGNS))
    if len(expression) > _LONGEST:
        return None
    try:
        tree = ast.parse(expression, mode="eval").body
        if isinstance(tree, ast.Constant):
            return None
        value = _value(tree)
    except (ArithmeticError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def _value(node: ast.AST) -> Number:
    """Returns the value of a syntax tree; raises ValueError for what is no arithmetic, or too large."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            pass
        case ast.BinOp(left, ast.Pow(), right):
            value = _power(_value(left), _value(right))
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
            value = _OPERATORS[type(sign)](_value(left), _value(right))
        case ast.UnaryOp(sign, operand) if type(sign) in _OPERATORS:
            value = _OPERATORS[type(sign)](_value(operand))
        case ast.Call(ast.Name("sqrt"), [argument], []):
            value = math.sqrt(_value(argument))
        case _:
            raise ValueError(f"no arithmetic: {ast.dump(node)}")
    if not abs(value) < _LARGEST:  # infinity and NaN too
        raise ValueError("too large a number")
    return value


def _power(base: Number, exponent: Number) -> Number:
    """Returns a power that is known to be moderate before it is computed, and is a real number."""
    if abs(base) > 1 and exponent * math.log2(abs(base)) > math.log2(_LARGEST):
        raise ValueError("too large a power")
    value = base**exponent
    if isinstance(value, complex):
        raise ValueError("no real number")
    return value
