"""A user's table of sounds with their texts. No TensorFlow.

A table (data.reading.tables) with a row for each sound, as metadata.csv beside the files (Hugging Face's audio folders), a
manifest of JSON lines (NeMo's), or Parquet and Arrow with the files' bytes (`datasets`):

    file_name, audio, audio_filepath    its path below the table's folder; or its file, bytes or {"bytes", "path"}
    text                                what is said; `transcription`, `transcript`, `sentence` are read too; may be empty
    translation                         the same in English, if it is known
    language                            a code such as "cs", if it is not the settings' own
    split                               train, validation or test, of all rows or of none; a split that no row has is drawn
    group                               a speaker, a recording: never in two splits; each sound alone by default

A row of a part of a file, with an `offset` or a `duration` that is not the file's, is left out.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data.reading import media, tables
from data.reading.media import Medium
from data.reading.splits import Item, with_missing
from data.reading.tables import Row
from data.speech import sound
from data.speech.caches import SpeechCache
from data.speech.utterances import Splits, Utterance
from data.task import DataError

_TEXTS = ("text", "transcription", "transcript", "sentence")
_SLACK = 0.5  # seconds by which a file may be longer than its row says


def open_folder(source: Path, settings: SpeechCache, scratch: Path | None = None) -> Splits:
    """Returns the utterances of the tables of a folder, a file or a pattern.

    Args:
      scratch: the folder of a file for sounds that lie in tables.

    Raises:
      DataError: there is no table, it is damaged or names no file, or a split is unknown.
    """
    if not media.tables_of(source):
        raise DataError(f"no table of texts in {source}: expected metadata.csv with the columns file_name and text")

    def items() -> Iterator[tuple[Item, Row]]:
        for medium in media.read(source, settings.columns, media.SOUND, scratch):
            row = medium.row
            texts = {"transcribe": next(filter(None, (_text(row, column) for column in _TEXTS)), "")}
            texts["translate"] = _text(row, "translation")
            texts = {task: text for task, text in texts.items() if text}
            language = _text(row, "language") or settings.language
            utterance = Utterance(medium.name, language, texts, functools.partial(_samples, medium))
            yield Item(_text(row, "group") or medium.name, utterance), row

    return with_missing(media.by_split(items()), validation=settings.validation, test=settings.test)


def _text(row: Row, column: str) -> str:
    text = media.text_of(row.get(column), column, row.place)
    if "\n" in text and tables.form_of(Path(row.place.partition(",")[0])) == ".csv":
        raise DataError(f"{row.place}: {column} has a line break, of a quotation mark that is not closed before it?")
    return text


def _samples(medium: Medium) -> np.ndarray:
    """Returns the samples of a row's sound; raises SoundError where the row is of a part of it alone."""
    offset, duration = (_number(medium.row.get(name)) for name in ("offset", "duration"))
    if offset:
        raise sound.SoundError(f"begins {offset:g} s inside its file, and only whole files are read: cut it out")
    samples = sound.read(medium.file())
    if duration and len(samples) / sound.RATE > duration + _SLACK:
        raise sound.SoundError(f"is {len(samples) / sound.RATE:.1f} s long, and its row is of {duration:g} s alone: cut it out")
    return samples


def _number(value: Any) -> float:
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        return 0.0
