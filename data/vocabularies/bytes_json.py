"""The vocabulary of bytes (ByT5, arXiv 2105.13626), which has no file of pieces, as a tokenizer.json. No TensorFlow.

A byte's id is the byte + 3, behind padding, end and unknown; after the bytes come the marks of spans. A folder says by the class
of its tokenizer that it has this vocabulary.
"""

from typing import Any

CLASS = "ByT5Tokenizer"  # of `transformers`
MARKS = 125  # of spans, as released; 384 ids in all
_SPECIAL = ("<pad>", "</s>", "<unk>")
_END = _SPECIAL[1]
NAMED = dict(zip(("pad_token", "eos_token", "unk_token"), _SPECIAL, strict=True))


def tokenizer_json(marks: int) -> dict[str, Any]:
    """Returns the content of the tokenizer.json of bytes and of so many marks of spans."""
    first = len(_SPECIAL)
    special = dict(enumerate(_SPECIAL)) | {first + 256 + i: f"<extra_id_{i}>" for i in range(marks)}
    pieces = {piece: id_ for id_, piece in special.items()} | {piece: first + byte for byte, piece in enumerate(_characters())}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {"SpecialToken": {"id": _END, "type_id": 0}}
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    known = {_END: {"id": _END, "ids": [_SPECIAL.index(_END)], "tokens": [_END]}}
    around = {"single": [a, end], "pair": [a, end, b, end], "special_tokens": known}
    return {
        "version": "1.0",
        "added_tokens": [{"id": id_, "content": piece} | flags for id_, piece in special.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {"type": "TemplateProcessing"} | around,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": pieces, "merges": []},
    }


def _characters() -> list[str]:
    """Returns the character that stands for each byte in GPT-2's byte-level vocabularies."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]
