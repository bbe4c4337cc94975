"""Prepares speech with a model's transcripts: a teacher writes down what nobody has, and both make the cache of its student.

Noisy student training (arXiv 2005.09629; of Conformers, 2010.10504, section 3): the student hears the same utterances with bands
and stretches hidden (SpecAugment), the teacher hears them whole. The teacher runs as `scripts.transcribe` in child processes, a
file of texts each (`data.speech.taught`): this process may import TensorFlow, and they import JAX. What is stopped goes on where
it was, with the same texts as if it had not been.
"""

import json
from pathlib import Path

from data import stages
from data.packages import fetch, weights
from data.paths import scratch
from data.speech import cache as maker
from data.speech import sound, sources, taught
from data.speech.settings import TFDS, Speech
from data.speech.sources import Utterance
from data.stages import Progress, stage
from scripts.recipes import teach


def label(settings: Speech, root: Path, progress: Progress) -> Path:
    """Writes the teacher's texts of a cache's training utterances that have none, unless they are written.

    Args:
      settings: the cache's settings, which name a teacher.
      root: the data folder.
      progress: called with a line for each file of texts.

    Returns:
      The folder, `data.speech.taught.folder_of`.
    """
    folder = taught.folder_of(settings, root)
    if (folder / taught.MANIFEST).exists():
        return folder
    if settings.teacher in weights.WEIGHTS:
        weights.fetch_weights(settings.teacher, root, progress)
    fetch.fetch(maker.packages_of(settings), root / "packages", progress)
    if settings.source.startswith(TFDS):
        stages.quiet_tensorflow()
    asked = taught.asked(taught.told(settings, sources.open_source(settings, root)["train"]))
    folder.mkdir(parents=True, exist_ok=True)
    for number, utterances in enumerate(asked):
        file = folder / f"{number:04}.jsonl"
        if not file.exists():
            with stage(f"texts, {number + 1} of {len(asked)}", progress), scratch(file) as temporary:
                lines = transcripts(utterances, settings.teacher, root, temporary)
                (temporary / file.name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
                (temporary / file.name).rename(file)
    with scratch(folder / taught.MANIFEST) as temporary:
        (temporary / taught.MANIFEST).write_text(json.dumps({"teacher": settings.teacher, "files": len(asked)}))
        (temporary / taught.MANIFEST).rename(folder / taught.MANIFEST)
    return folder


def transcripts(utterances: list[Utterance], teacher: str, root: Path, temporary: Path) -> list[str]:
    """Returns what a teacher writes of utterances of one language, a line of JSON each: the utterance's name, the text, and the
    least mean log-probability of a token in a window. A sound that cannot be read has no line; the cache says why."""
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
    spoken = utterances[0].language
    language = ["--language", spoken] if spoken else []
    lines: list[str] = []
    how = ["--checkpoint", checkpoint, "--no-timestamps", "--format", "json", "--batch", "8", *language]
    teach.command(root, lines.append, "transcribe", *names, *how)
    heard = map(json.loads, lines)
    return [
        json.dumps(
            {
                "name": names[transcript["file"]],
                "text": transcript["text"],
                "likelihood": min((segment["likelihood"] for segment in transcript["segments"]), default=0.0),
            },
            ensure_ascii=False,
        )
        for transcript in heard
    ]
