"""Tests of speech as ids: Whisper's targets, and characters."""

import pytest

from data.speech.vocabulary import (
    TIMESTAMPS,
    Characters,
    VocabularyError,
    WhisperVocabulary,
    open_vocabulary,
    spoken,
    write_characters,
)
from tests.helpers.sounds import write_whisper_vocabulary


@pytest.fixture
def whisper(tmp_path) -> WhisperVocabulary:
    vocabulary = open_vocabulary(write_whisper_vocabulary(tmp_path))
    assert isinstance(vocabulary, WhisperVocabulary)
    return vocabulary


def test_a_target_says_language_and_task_first(whisper):
    """256 bytes, the end, the start, three languages, two tasks: language, task, no timestamps, " Ahoj", the end."""
    assert whisper.end == 256 and whisper.start == 257 and whisper.timestamp == 266
    assert whisper.size == 266 + TIMESTAMPS
    target = whisper.target("Ahoj", "cs", "transcribe")
    assert target[:3] == [259, 262, 265] and target[-1] == 256
    assert whisper.decode(target[3:]) == "Ahoj" == whisper.decode([*target[3:], 70, 71])
    assert whisper.decode([266, *target[3:-1], 300]) == "Ahoj"  # timestamps are no text


@pytest.mark.parametrize(("language", "task", "message"), [("cz", "transcribe", "'cs'"), ("cs", "translates", "'translate'")])
def test_an_unknown_language_or_task_is_named(whisper, language, task, message):
    """The nearest one is named."""
    with pytest.raises(VocabularyError, match=f"did you mean {message}"):
        whisper.prefix(language, task)


def test_characters_are_letters_digits_and_blanks(tmp_path):
    """Case and punctuation go; what is seen less than three times is no character; the blank of CTC is 0."""
    write_characters(["Ahoj, světe!", "ahoj světe", "AHOJ... svĚte q"] * 1, tmp_path / "tokenizer.json")
    characters = open_vocabulary(tmp_path)
    assert isinstance(characters, Characters) and characters.blank == 0
    ids = characters.target("Světe,  ahoj", "cs", "transcribe")
    assert characters.decode(ids) == "světe ahoj" and len(ids) == 10 and 0 not in ids
    with pytest.raises(VocabularyError, match="'q' is no character"):
        characters.text_ids("ahoj q")
    with pytest.raises(VocabularyError, match="'п' is no character"):
        characters.text_ids("привет")


def test_what_is_spoken_has_no_punctuation():
    """Scores compare words alone."""
    assert spoken("  „Co je TO?“ - řekl:  don't…") == "co je to řekl don't"
