"""Rules of vocabularies that others made: what would become gigabytes, or end the process, is refused when the file is opened."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from data import untrusted
from data.vocabularies import rules, sentencepiece
from data.vocabularies.files import VocabularyError
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.catalogues import WORDS

DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def vocabulary(folder: Path, vocab: dict[str, int] | None = None, affix: str | None = None, **parts: Any) -> Path:
    """Writes a vocabulary of two letters with these rules."""
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "a",
        "continuing_subword_prefix": affix,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab or {"a": 0, "b": 1},
        "merges": [],
    }
    plain = {"normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}
    outer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(outer | plain | parts | {"model": model}))
    return folder


def token(content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": 2, "content": content} | flags


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def template(copies: int) -> dict[str, Any]:
    texts = [{"Sequence": {"id": "A", "type_id": 0}}] * copies
    return {"type": "TemplateProcessing", "single": texts, "pair": texts, "special_tokens": {}}


@pytest.mark.parametrize("times", [24, 28, 40])
@pytest.mark.parametrize("part", ["normalizer", "decoder"])
def test_rules_that_double_a_text_are_refused(part, times, tmp_path):
    """Before a word becomes gigabytes; eight of them are still within the bound."""
    name = {"normalizer": "normalizers", "decoder": "decoders"}[part]
    rule: Any = {"type": "Sequence", name: [DOUBLING] * times}
    with pytest.raises(VocabularyError, match=rf"can make a text {2**times:,} times as long, more than 256$"):
        Tokenizer(vocabulary(tmp_path, **{part: rule}))
    nested: Any = {"type": "Sequence", name: [{"type": "Sequence", name: [DOUBLING] * 4}] * 2}
    assert Tokenizer(vocabulary(tmp_path, **{part: nested})).size == 2


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Prepend", "prepend": "x" * 300}},
        {"normalizer": DOUBLING | {"content": "x" * 300}},
        {"normalizer": DOUBLING | {"pattern": {"Regex": "(?=.)"}, "content": "x" * 300}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 65}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 5}},
        {"post_processor": {"type": "Sequence", "processors": [template(20), template(20)]}},
        {"affix": "x" * 5000},
        {"vocab": {"a": 0, "b" * 5000: 1}},
        {"added_tokens": [token("c" * 5000)]},
        {"added_tokens": [token(f"{i:04000}") for i in range(1050)]},
    ],
    ids=lambda parts: next(iter(parts)),
)
def test_other_ways_to_make_a_text_long_are_refused(parts, tmp_path):
    """Prefixes, text in place of a letter or between letters, bytes as characters, repeated texts and long pieces are bounded."""
    with pytest.raises(VocabularyError, match=r"tokenizer\.json(: its rules can make a text| has) [\d,]+ .*, more than"):
        Tokenizer(vocabulary(tmp_path, **parts))


def test_a_vocabulary_of_more_pieces_than_any_is_refused(tmp_path, monkeypatch):
    """As is one of more merges."""
    monkeypatch.setattr(untrusted, "PIECES", 1)
    with pytest.raises(VocabularyError, match=r"tokenizer\.json has 2 pieces, more than 1$"):
        Tokenizer(vocabulary(tmp_path))


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", r"(\w+\s?)*$", "(?=(a+)+b)a", "(?:a|a)+$", "a*a*a*a*a*a*a*$"])
def test_a_pattern_that_the_library_gives_up_on_is_one_line(pattern, tmp_path, capfd):
    """The library's own account of it, many lines on standard error, is kept back."""
    tokenizer = Tokenizer(vocabulary(tmp_path, pre_tokenizer=split(pattern)))
    with pytest.raises(VocabularyError, match=r"is damaged: .*retry-limit-in-match over$") as caught:
        tokenizer.encode("a" * 300 + "!")
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr().err == ""


def test_what_others_write_to_standard_error_is_not_lost(capfd):
    """It comes at the block's end, unless a panic ended the block."""
    with untrusted.damage("x", VocabularyError, quiet=True):
        os.write(2, b"a warning\n")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "a warning\n"


def test_patterns_of_released_vocabularies_need_no_watch():
    """GPT-2's, and of OpenAI's later ones those parts that repeat most."""
    for pattern in (
        r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+",
    ):
        assert not rules.backtracks({"pre_tokenizer": split(pattern)})
    assert rules.backtracks({"normalizer": {"type": "Sequence", "normalizers": [split("(a+)+")]}})


def test_a_sentencepiece_model_that_makes_a_text_long_is_refused(tmp_path):
    """Its table is a field that may be there twice, of which the last counts; a sound model's is short."""
    path = tmp_path / "m.model"
    lines = [" ".join((WORDS * 2)[i : i + 9]) for i in range(len(WORDS))] * 9
    sentencepiece.train(lines, path, size=330)
    sentencepiece.processor(path)
    model = path.read_bytes()
    for length, field in ((300, 3), (300, 5), (200, 3)):
        table = bytes(4) + b"x" * length + b"\0"
        rules_ = b"\x12" + varint(len(table)) + table
        path.write_bytes(model + bytes([field << 3 | 2]) + varint(len(rules_)) + rules_)
        with pytest.raises(VocabularyError, match="300 times as long" if length == 300 else "damaged") as caught:
            sentencepiece.processor(path)
        assert len(str(caught.value).splitlines()) == 1
    path.write_bytes(model + b"\x1a\xff")
    with pytest.raises(VocabularyError, match=r"m\.model is damaged"):
        sentencepiece.processor(path)


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128, number >> 7])
