"""Names and kinds of Whisper's tokens. Plain Python, no JAX."""

import re
from collections.abc import Callable, Sequence

START, END, NO_TIMESTAMPS, BEFORE = "<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>", "<|startofprev|>"
TASKS = ("transcribe", "translate")
LATEST_START = 50  # timestamps, a second, in which the first words of a window begin
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_ENGLISH_END = 50_256  # the English-only vocabulary is that of GPT-2, whose last id this is


def is_multilingual(end: int) -> bool:
    """Returns whether a vocabulary whose text ends with this id has tokens of languages that its models know."""
    return end != _ENGLISH_END


def no_speech(encode: Callable[[str], Sequence[int]]) -> list[int]:
    """Returns the ids of pieces that are no speech: signs of music, brackets of remarks (OpenAI's `non_speech_tokens`)."""
    symbols = list('"#()*+/:;<=>@[\\]^_`{|}~「」『』')
    symbols += ["<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"]
    symbols += ["[[", "]]", "{{", "}}", "♪♪", "♪♪♪"]
    music = set("♩♪♫♬♭♮♯")
    tokens = {encode(" -")[0], encode(" '")[0]}
    for symbol in [*symbols, *music]:
        for ids in (encode(symbol), encode(f" {symbol}")):
            if len(ids) == 1 or symbol in music:
                tokens.add(ids[0])
    return sorted(tokens)
