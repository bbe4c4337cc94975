"""The settings of prepared caches of speech, and the caches that have a name. No TensorFlow."""

import dataclasses
from typing import ClassVar

from data.own_cache import TableCache
from data.reading import media
from data.speech.config import SpeechData
from data.speech.vocabulary import TASKS
from models.errors import nearest

CHARACTERS = "characters"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeechCache(TableCache):
    """Settings of a cache of utterances.

    Attributes:
      source: a key of `data.speech.sources.PACKAGES`; or "tfds:NAME", a data set of TFDS with sounds and texts; or
        "folder:DIR", "file:PATH" or "files:PATTERN", a table of sounds with their texts (`data.speech.folders`).
      seconds: of a row. Longer utterances are left out.
      slots: the most utterances of a training row; 1 leaves each alone.
      targets_length: tokens of a row's texts; 0 keeps no texts, and utterances without one are used as well.
      vocabulary: "characters", those of the training texts; or a key of `data.packages.weights.WEIGHTS`.
      tasks: what is learned of an utterance, a part of the cache each: "transcribe" is its text, "translate" the English one.
      language: of utterances whose source does not say it.
      validation, test: shares of the groups (a game's levels) that are held out where the source has no such split.
      labelled: how many training utterances keep their texts; 0 leaves all theirs.
      teacher: a Whisper model that transcribes the training utterances without a transcript (`data.speech.pseudo_labels`): a
        key of `data.packages.weights.WEIGHTS`, or a checkpoint as `scripts.transcribe` takes it. "" leaves them out.
      likelihood: the least mean log-probability of a token of the teacher's texts; what it is less sure of is left out.
    """

    kind: ClassVar[str] = "speech"
    made_of: ClassVar[str] = (
        "a folder of sounds with metadata.csv, or another table of sounds, with the columns file_name, audio or "
        "audio_filepath, and text (translation, language, split, group)"
    )

    seconds: float = 16.0
    slots: int = 1
    targets_length: int = 128
    vocabulary: str = CHARACTERS
    tasks: tuple[str, ...] = ("transcribe",)
    language: str = "en"
    validation: float = 0.08
    test: float = 0.12
    labelled: int = 0
    teacher: str = ""
    likelihood: float = -1.0

    def __post_init__(self) -> None:
        if self.labelled < 0:
            raise ValueError(f"labelled={self.labelled}: must be 0 or more")
        if self.teacher and "transcribe" not in self.tasks:
            raise ValueError(f"teacher={self.teacher!r}: writes transcripts, which tasks={self.tasks} has not")
        for task in self.tasks:
            if task not in TASKS:
                raise ValueError(f"tasks={self.tasks}: no task {task!r}{nearest(task, TASKS)}")
        SpeechData(batch_size=1, seconds=self.seconds, slots=self.slots, targets_length=self.targets_length)  # checks them

    @property
    def derived_by(self) -> str:
        return self.teacher

    def encoded_with(self, tokenizer: str) -> "SpeechCache":
        """Returns these settings with a released vocabulary, such as "whisper_base"; "" leaves them as they are."""
        return dataclasses.replace(self, vocabulary=tokenizer or self.vocabulary)

    @classmethod
    def is_made_of(cls, source: str, columns: str) -> bool:
        """Returns whether a source is a table of sounds."""
        return media.first(source, columns, media.SOUND) is not None or media.is_described(source, media.SOUNDS)


CACHES = (SpeechCache,)
ENTRIES = {
    # The Czech game, 1.62 h, levels apart: for models that write letters; for Whisper, as text and in English; unlabelled.
    "fillets": SpeechCache(source="fillets", slots=4, language="cs", targets_length=512),
    "fillets_whisper": SpeechCache(
        source="fillets", vocabulary="whisper_base", language="cs", targets_length=128, seconds=8.0, slots=4
    ),
    "fillets_english": SpeechCache(
        source="fillets", vocabulary="whisper_base", tasks=("translate",), language="cs", targets_length=96, seconds=8.0, slots=4
    ),
    # A quarter of its texts; and Whisper's for the rest.
    "fillets_few": SpeechCache(source="fillets", slots=4, language="cs", targets_length=512, labelled=340),
    "fillets_taught": SpeechCache(
        source="fillets", slots=4, language="cs", targets_length=512, labelled=340, teacher="whisper_base"
    ),
    "unlabelled": SpeechCache(source="unlabelled", slots=4, targets_length=0, language=""),
    "librivox": SpeechCache(source="librivox", vocabulary="whisper_tiny_en", validation=0.2, test=0.6),
    # Public sets, which TFDS must have prepared.
    "librispeech": SpeechCache(source="tfds:librispeech:2.1.0", seconds=24.0, slots=2, targets_length=512),
    "common_voice_cs": SpeechCache(source="tfds:common_voice/cs:2.0.0", seconds=12.0, targets_length=256, language="cs"),
}
