"""Small vocabularies in the form of released families': what puts tokens around a text, and which file says what ends one.

Plain data, as they were released, with fewer tokens; tests/helpers/released_vocabularies.py writes them.
"""

import dataclasses
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
LEARNED = (
    "every vocabulary has pieces of several letters, which it has learned from words such as these, there or here. "
    "the cat on the mat"
)
FIRST = ("<unk>", "<s>", "</s>", "<pad>", "<eos>", "<bos>")  # special tokens that have the first ids with SentencePiece's pieces
TEXTS = ("the cat sat.", "a dog, the cat", "", " the dog ran", "x", "on and on", "what is it", "all or none,")
TOKENS = 8  # of a continuation


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A vocabulary and the files beside it.

    Attributes:
      model: the case of tests/parity/cases that continues its texts.
      form: byte-level BPE, or SentencePiece's pieces.
      special: its special tokens.
      around: the template of its post-processor; "" for one that adds nothing, and None for none.
      files: tokenizer_config.json and special_tokens_map.json.
      model_ends: `eos_token_id` of config.json, one or several.
      generation: that of generation_config.json; None writes no such file.
      version: of `transformers`.
    """

    model: str
    form: str
    special: tuple[str, ...]
    around: str | None
    files: dict[str, dict[str, Any]]
    model_ends: str | tuple[str, ...]
    generation: str | tuple[str, ...] | None = None
    version: int = 5


def _config(tokenizer_class: str, **settings: Any) -> dict[str, dict[str, Any]]:
    return {"tokenizer_config.json": {"tokenizer_class": tokenizer_class} | settings}


def _token(piece: str) -> dict[str, Any]:
    """A token as older files describe it."""
    return {"__type": "AddedToken", "content": piece, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


_LLAMA = ("<unk>", "<s>", "</s>")
_LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>")
_GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_PHI3 = (*_LLAMA, "<|endoftext|>", "<|assistant|>", "<|end|>", "<|user|>")
_OLMO = ("<|endoftext|>", "<|pad|>")
_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
_GPT_OSS = ("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|call|>")
_BEGIN, _END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_MAP = {"special_tokens_map.json": {"bos_token": _token("<s>"), "eos_token": _token("</s>"), "unk_token": _token("<unk>")}}
_PLAIN = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")

VOCABULARIES = {
    # Version 5 builds the vocabularies of this class anew, and a text's first blank is then no token of its own.
    "llama1": Vocabulary("llama", "pieces", _LLAMA, "<s> $A", _config("LlamaTokenizer") | _MAP, "</s>", version=4),
    "llama2": Vocabulary(
        "llama",
        "pieces",
        _LLAMA,
        "<s> $A",
        _config("LlamaTokenizer", add_bos_token=True, add_eos_token=False, bos_token=_token("<s>"), eos_token=_token("</s>")),
        "</s>",
        "</s>",
        version=4,
    ),
    "llama3": Vocabulary(
        "llama_llama3",
        "bytes",
        _LLAMA3,
        "<|begin_of_text|> $A",
        _config("PreTrainedTokenizerFast", bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"),
        "<|end_of_text|>",
        "<|end_of_text|>",
    ),
    "llama3_instruct": Vocabulary(
        "llama_llama3",
        "bytes",
        _LLAMA3,
        "<|begin_of_text|> $A",
        _config("PreTrainedTokenizerFast", bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"),
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    ),
    "mistral": Vocabulary(
        "mistral", "pieces", _LLAMA, "<s> $A", _config("LlamaTokenizer", add_bos_token=True, **_PLAIN), "</s>", "</s>"
    ),
    "mixtral": Vocabulary(
        "mixtral", "pieces", _LLAMA, "<s> $A", _config("LlamaTokenizerFast", add_bos_token=True, **_PLAIN), "</s>", "</s>"
    ),
    "gemma2": Vocabulary(
        "gemma2",
        "pieces",
        _GEMMA,
        "<bos> $A",
        _config("GemmaTokenizer", bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"),
        "<eos>",
        ("<eos>", "<end_of_turn>"),
    ),
    "gemma3": Vocabulary(
        "gemma3",
        "pieces",
        _GEMMA,
        "<bos> $A",
        _config("GemmaTokenizer", bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"),
        ("<eos>", "<end_of_turn>"),
    ),
    "qwen2": Vocabulary(
        "qwen2",
        "bytes",
        _QWEN,
        "",
        _config("Qwen2Tokenizer", add_bos_token=False, bos_token=None, eos_token="<|endoftext|>", pad_token="<|endoftext|>"),
        "<|endoftext|>",
        "<|endoftext|>",
    ),
    "qwen3_instruct": Vocabulary(
        "qwen3",
        "bytes",
        _QWEN,
        "",
        _config("Qwen2Tokenizer", add_bos_token=False, bos_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>"),
        "<|im_end|>",
        ("<|im_end|>", "<|endoftext|>"),
    ),
    "phi3": Vocabulary(
        "phi3",
        "pieces",
        _PHI3,
        "$A",
        _config("LlamaTokenizer", add_bos_token=False, add_eos_token=False, **_PLAIN | dict(eos_token="<|endoftext|>")),
        "<|endoftext|>",
        ("<|endoftext|>", "<|assistant|>", "<|end|>"),
    ),
    "phi4": Vocabulary(
        "phi3",
        "bytes",
        _QWEN,
        "",
        _config("GPT2Tokenizer", bos_token="<|endoftext|>", eos_token="<|im_end|>", pad_token="<|endoftext|>"),
        ("<|endoftext|>", "<|im_end|>"),
    ),
    "olmo2": Vocabulary(
        "olmo2",
        "bytes",
        _OLMO,
        "",
        _config("GPT2Tokenizer", add_bos_token=False, bos_token="<|endoftext|>", eos_token="<|endoftext|>", pad_token="<|pad|>"),
        "<|endoftext|>",
        "<|endoftext|>",
    ),
    "olmoe": Vocabulary(
        "olmoe",
        "bytes",
        _OLMO,
        "$A",
        _config("GPTNeoXTokenizer", add_bos_token=False, add_eos_token=False, bos_token=None, eos_token="<|endoftext|>"),
        "<|endoftext|>",
    ),
    "smollm2_instruct": Vocabulary(
        "llama_tied",
        "bytes",
        _QWEN,
        None,
        _config("GPT2Tokenizer", bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"),
        "<|im_end|>",
        "<|im_end|>",
    ),
    "smollm3": Vocabulary(
        "smollm3",
        "bytes",
        (*_LLAMA3[:2], *_QWEN[1:]),
        "",
        _config("PreTrainedTokenizerFast", bos_token=None, eos_token="<|im_end|>", pad_token="<|im_end|>"),
        "<|im_end|>",
        "<|im_end|>",
    ),
    # Its post-processor adds nothing; version 4 obeys `add_bos_token` of this class, as when the model was released.
    "deepseek_v3": Vocabulary(
        "deepseek_v3_plain",
        "bytes",
        _DEEPSEEK,
        "",
        _config("LlamaTokenizerFast", add_bos_token=True, add_eos_token=False, bos_token=_token(_BEGIN), eos_token=_token(_END)),
        _END,
        _END,
        version=4,
    ),
    "gpt_oss": Vocabulary(
        "gpt_oss_plain",
        "bytes",
        _GPT_OSS,
        "",
        _config("PreTrainedTokenizerFast", bos_token="<|startoftext|>", eos_token="<|return|>", pad_token="<|endoftext|>"),
        "<|return|>",
        ("<|return|>", "<|endoftext|>", "<|call|>"),
    ),
    "gpt2": Vocabulary("gpt2", "bytes", ("<|endoftext|>",), "", _config("GPT2Tokenizer"), "<|endoftext|>", "<|endoftext|>"),
    # No release: an end behind every text, and one that has the name of another's.
    "closed": Vocabulary(
        "llama", "pieces", (*_LLAMA, "<|endoftext|>"), "<s> $A </s>", _config("PreTrainedTokenizerFast", **_PLAIN), "</s>", "</s>"
    ),
}
