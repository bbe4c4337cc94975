"""Transcribes speech that nobody transcribed: another model's transcripts, with people's own, make the cache of its student.

Noisy student training (arXiv 2005.09629; of Conformers, 2010.10504, section 3): the student hears the same utterances with bands
and stretches hidden (SpecAugment), the teacher hears them whole. The teacher runs as `scripts.transcribe` in child processes, a
file of texts each (`data.speech.pseudo_labels`): this process may import TensorFlow, and they import JAX. What is stopped goes on
where it was, with the same texts as if it had not been.
"""

import json
from pathlib import Path
from typing import Any

from data import stages
from data.cache_maker import maker_of
from data.packages import fetch, weights
from data.packages.locations import Location
from data.paths import scratch
from data.speech import pseudo_labels, sound, sources
from data.speech.caches import SpeechCache
from data.speech.utterances import Utterance
from data.stages import Progress, stage
from scripts.recipes import prepare as recipes


def derive(settings: SpeechCache, root: Path, progress: Progress) -> SpeechCache:
    """Writes the teacher's texts of a cache's training utterances that have none, unless they are written.

    Args:
      settings: the cache's settings, which name a teacher.
      root: the data folder.
      progress: called with a line for each file of texts.

    Returns:
      The settings.
    """
    texts = pseudo_labels.texts_of(settings, root)
    if texts.is_complete():
        return settings
    if settings.teacher in weights.WEIGHTS:
        weights.fetch_weights(settings.teacher, root, progress)
    fetch.fetch(maker_of("", settings, root, progress).packages(), root / "packages", progress)
    if Location.of(settings.source).scheme == "tfds":
        stages.quiet_tensorflow()
    training = pseudo_labels.with_transcripts(settings, sources.open_source(settings, root)["train"])
    batches = pseudo_labels.untranscribed(training)
    for number, utterances in enumerate(batches):
        file = f"{number:04}.jsonl"
        if not (texts.folder / file).exists():
            with stage(f"texts, {number + 1} of {len(batches)}", progress), scratch(texts.folder / file) as temporary:
                texts.write(file, transcripts(utterances, settings.teacher, root, temporary))
    texts.finish(teacher=settings.teacher, files=len(batches))
    return settings


def transcripts(utterances: list[Utterance], teacher: str, root: Path, temporary: Path) -> list[dict[str, Any]]:
    """Returns a teacher's transcripts of utterances of one language: the utterance's name, the text, and the least mean
    log-probability of a token in a window. A sound that cannot be read has none; the cache says why."""
    names: dict[str, str] = {}
    for number, utterance in enumerate(utterances):
        path = temporary / f"{number:04}.wav"
        try:
            sound.write(path, utterance.read())
        except sound.SoundError:
            continue
        names[str(path)] = utterance.name
    if not names:
        return []
    checkpoint = teacher if teacher in weights.WEIGHTS else Path(teacher).absolute()
    language = ["--language", utterances[0].language] if utterances[0].language else []
    lines: list[str] = []
    options = ["--checkpoint", checkpoint, "--no-timestamps", "--format", "json", "--batch", "8", *language]
    recipes.command(root, lines.append, "transcribe", *names, *options)
    return [
        {
            "name": names[transcript["file"]],
            "text": transcript["text"],
            "likelihood": min((segment["likelihood"] for segment in transcript["segments"]), default=0.0),
        }
        for transcript in map(json.loads, lines)
    ]
