"""Message-catalogue formats: each parser turns a file's content into (English, translation) strings.

The catalogues are those of gettext (`.po` text, `.mo` binary) and dictionaries that share their keys with an
English one (JSON, JavaScript). Strings are returned as they are written; `data.translation.catalogues` cleans them.
"""

import json
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

_FIELD = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s*"(.*)"$')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def parse_po(text: str) -> Iterator[tuple[str, str]]:
    """Yields the usable entries of a `.po` file: translated, neither fuzzy nor obsolete.

    An entry with plural forms gives two pairs, the singular with the first form and the plural with the last;
    in a language with one form only the singular is paired. A message context is dropped.
    """
    entry: dict[str, str] = {}
    field, fuzzy = "", False
    # Not splitlines(), which also cuts at U+2028, form feeds and the like inside a string. The last comment
    # closes the last entry.
    for line in [*text.split("\n"), "#"]:
        line = line.strip()
        if line.startswith('"'):
            if field:
                entry[field] += _unescape(line[1:-1])
            continue
        match = _FIELD.match(line)
        opens = line.startswith("#") or (match and match[1] in ("msgctxt", "msgid"))
        if opens and field.startswith("msgstr"):
            if not fuzzy:
                yield from _po_pairs(entry)
            entry, field, fuzzy = {}, "", False
        if line.startswith("#~"):
            fuzzy = False  # the flags before an obsolete entry are not the next entry's
        elif line.startswith("#,"):
            fuzzy = fuzzy or "fuzzy" in line
        elif match:
            field = match[1]
            entry[field] = _unescape(match[2])


def _po_pairs(entry: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    english = entry.get("msgid")
    if not english:  # the header
        return
    forms = [text for field, text in sorted(entry.items()) if field.startswith("msgstr")]
    if forms[0]:
        yield english, forms[0]
    if len(forms) > 1 and forms[-1] and "msgid_plural" in entry:
        yield entry["msgid_plural"], forms[-1]


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "x" and len(code) == 3:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _ESCAPED.get(code, code)


def parse_mo(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields the entries of a `.mo` file; plural forms and contexts as in `parse_po`. An empty file has none.

    Layout (GNU gettext manual, "The Format of GNU MO Files"): magic, revision, count, then the offsets of two
    tables of (length, offset), originals and translations; NUL separates plural forms, EOT ends a context.
    """
    if len(content) < 28:
        return
    order = "<" if content[:4] == b"\xde\x12\x04\x95" else ">"
    count, originals, translations = struct.unpack_from(order + "3I", content, 8)

    def text(table: int, index: int) -> str:
        length, offset = struct.unpack_from(order + "2I", content, table + 8 * index)
        return content[offset : offset + length].decode("utf-8", "replace")

    for index in range(count):
        english = text(originals, index).rpartition("\x04")[2].split("\0")
        forms = text(translations, index).split("\0")
        if not english[0]:  # the header
            continue
        if forms[0]:
            yield english[0], forms[0]
        if len(english) > 1 and len(forms) > 1 and forms[-1]:
            yield english[1], forms[-1]


def strings(tree: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields the (path, string) leaves of a JSON tree; a message object's text is under `string` or `message`."""
    if isinstance(tree, str):
        yield prefix, tree
    elif isinstance(tree, dict):
        text = tree.get("string", tree.get("message"))
        if isinstance(text, str):
            yield prefix, text
        else:
            for key, branch in tree.items():
                yield from strings(branch, f"{prefix}/{key}")


def parse_json(content: bytes) -> dict[str, str]:
    """Returns the strings of a JSON catalogue by their path of keys."""
    return dict(strings(json.loads(content)))


_JSON_ESCAPE = re.compile(r'(\\["\\/bfnrtu])|\\')
_BLOCKLY_MESSAGE = re.compile(r'Blockly\.Msg\["([A-Z_0-9]+)"\] = ("(?:[^"\\]|\\.)*");')


def parse_blockly(content: bytes) -> dict[str, str]:
    """Returns the strings of a Blockly `msg/LANGUAGE.js` by their key; links to help pages are left out."""
    messages = _BLOCKLY_MESSAGE.findall(content.decode("utf-8"))
    # JavaScript allows a backslash before any character, JSON before these only.
    return {key: json.loads(_JSON_ESCAPE.sub(r"\1", text)) for key, text in messages if not key.endswith("HELPURL")}


def join(english: Mapping[str, str], translated: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Pairs the strings that have the same key on both sides."""
    return ((english[key], text) for key, text in translated.items() if key in english)
