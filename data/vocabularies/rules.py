"""The rules of a tokenizer.json file that others made: how long they can make a text, and which the library itself dies of."""

import base64
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from data import untrusted
from data.vocabularies.files import VocabularyError
from models.errors import shortened

_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")
_BYTES = 4  # characters that a character becomes if its bytes are written as characters


def check_sizes(written: Mapping[str, Any], path: object) -> None:
    """Raises VocabularyError for a file of more pieces, merges or characters of added tokens than any, or with a longer piece."""
    added = written.get("added_tokens")
    texts = [str(token.get("content")) for token in added or () if isinstance(token, dict)]
    untrusted.bounded(sum(map(len, texts)), untrusted.ADDED, "characters of added tokens", VocabularyError, path)
    model = written.get("model")
    if not isinstance(model, Mapping):
        return  # the library says what is wrong
    pieces, merges = (model.get(name) or () for name in ("vocab", "merges"))
    for items, unit in ((pieces, "pieces"), (merges, "merges")):
        untrusted.bounded(len(items), untrusted.PIECES, unit, VocabularyError, path)
    spelt = (each[0] if isinstance(each, list) and each else each for each in pieces)
    affixes = (text for text in model.values() if isinstance(text, str))
    for text in itertools.chain(spelt, affixes, texts):
        if isinstance(text, str):
            untrusted.bounded(len(text), untrusted.PIECE, "characters in a piece", VocabularyError, path)
    _check_merges(model, path)


def _check_merges(model: Mapping[str, Any], path: object) -> None:
    """Raises an error if a merge's second piece lacks the prefix of pieces that continue a word.

    The library cuts the prefix off by its number of bytes, without a look at the piece: half a character is left, and the message
    that names it ends the process.
    """
    prefix = model.get("continuing_subword_prefix")
    if not prefix or not isinstance(prefix, str):
        return
    for merge in model.get("merges") or ():
        right = (merge.split(" ") if isinstance(merge, str) else merge)[-1]
        if not right.startswith(prefix):
            raise VocabularyError(
                f"{path} is damaged: continuing_subword_prefix is {shortened(prefix)!r}, and the merge {shortened(str(merge))!r} "
                "continues a word without it"
            )


def check_growth(written: Mapping[str, Any], path: object) -> None:
    """Raises VocabularyError for rules that make a text many times as long, of a file that the library has accepted.

    A rule that doubles a text, 28 times in a sequence, makes gigabytes of a word.
    """
    rules = [(part, rule) for part in _PARTS for rule in _leaves(written.get(part))]
    untrusted.bounded(len(rules), untrusted.RULES, "rules", VocabularyError, path)
    longest = math.prod(_growth(part, rule) for part, rule in rules)
    if longest > untrusted.GROWTH:
        raise VocabularyError(f"{path}: its rules can make a text {longest:,} times as long, more than {untrusted.GROWTH}")


def backtracks(written: Mapping[str, Any]) -> bool:
    """Returns whether a pattern may try a text in so many ways that the library gives up: it repeats a group, or has several
    repetitions in sequence. Patterns of released vocabularies do neither."""
    for part in _PARTS:
        for rule in _leaves(written.get(part)):
            pattern = rule.get("pattern")
            text = pattern.get("Regex", "") if isinstance(pattern, dict) else ""
            plain = re.sub(r"\[[^\]]*\]", "c", re.sub(r"\\.", "c", text))
            if re.search(r"\)[*+{]", plain) or any(len(re.findall(r"[*+}]", way)) > 2 for way in plain.split("|")):
                return True
    return False


def _leaves(rule: Any) -> Iterator[dict[str, Any]]:
    """Yields the rules of a part of the file, those of sequences one by one."""
    waiting = [rule]
    while waiting:
        rule = waiting.pop()
        below = [each for name in _SEQUENCES if isinstance(rule, dict) for each in rule.get(name) or ()]
        waiting += below
        if rule and not below:
            yield rule


def _growth(part: str, rule: Mapping[str, Any]) -> int:
    """Returns how many times as long a rule can make a text, of a character at least."""
    match rule["type"]:
        case "Replace":
            ((kind, pattern),) = rule["pattern"].items()
            content = len(rule["content"])
            return 1 + content if kind == "Regex" else max(1, math.ceil(content / max(1, len(pattern))))
        case "Prepend":
            return 1 + len(rule["prepend"])
        case "ByteLevel" if part in ("normalizer", "pre_tokenizer"):
            return _BYTES
        case "Precompiled":
            return _longest(base64.b64decode(rule["precompiled_charsmap"] or ""))
        case "TemplateProcessing":
            added = max((len(token["ids"]) for token in rule["special_tokens"].values()), default=0)
            places = [place for form in ("single", "pair") for place in rule[form]]
            copies = sum("Sequence" in place for place in places) - 2  # of the text: one alone, and one of two in a pair
            return max(1, copies) * max(1, added * len(places) // untrusted.GROWTH)
        case "BertNormalizer":
            return 3  # blanks around ideographs
        case "WordPiece" | "CTC" | "BPEDecoder":
            return 1 + sum(len(text) for text in rule.values() if isinstance(text, str) and text != rule["type"])
    return 1


def _longest(table: bytes) -> int:
    """Returns the most characters that one becomes by a table of SentencePiece's: a tree of its size, then texts."""
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1, *(len(text.decode(errors="replace")) for text in texts.split(b"\0")))


_TABLES, _TABLE = ((3, 5), 2)  # fields of SentencePiece's ModelProto with rules before and behind pieces, and of these the table


def check_sentencepiece(model: bytes, path: object) -> None:
    """Raises VocabularyError for a SentencePiece model that can make a text many times as long.

    A message of Protocol Buffers may have a field more than once; the last of them counts, and all are looked at.
    """
    for field, rules in _fields(model):
        for inner, table in _fields(rules) if field in _TABLES else ():
            if inner == _TABLE and (longest := _longest(table)) > untrusted.GROWTH:
                raise VocabularyError(
                    f"{path}: its rules can make a text {longest:,} times as long, more than {untrusted.GROWTH}"
                )


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the numbers and contents of the fields of a message that have a length; raises IndexError where it is cut short."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                _, at = _varint(message, at)
            case 2:
                size, at = _varint(message, at)
                yield key >> 3, message[at : at + size]
                at += size
            case kind:
                at += {1: 8, 5: 4}[kind]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns a number of 7 bits a byte, the last of which has no eighth, and where it ends."""
    if (number := message[at]) < 128:
        return number, at + 1
    number, shift = number & 127, 7
    while True:
        at += 1
        number |= (message[at] & 127) << shift
        if message[at] < 128:
            return number, at + 1
        shift += 7
