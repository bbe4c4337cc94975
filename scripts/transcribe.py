"""Writes down what is said in sound files, or translates it into English, with a Whisper model.

    python -m scripts.transcribe talk.ogg --checkpoint whisper_base                    # released weights, see below
    python -m scripts.transcribe *.wav --checkpoint DIR --language cs --translate --format srt --out subtitles
    python -m scripts.transcribe lecture.mp3 --checkpoint runs/czech --format json > lecture.json

DIR is a run's workdir, a release, a Hugging Face folder, a folder with CTranslate2's model.bin, or the name of released weights
that `scripts.prepare_data NAME` has fetched. Files of any length and format that libsndfile reads are cut into windows of 30 s,
and windows of several files are transcribed together. The language is asked of the model unless it is given. A file that
cannot be read is named on stderr, and the others go on; the exit code is then 1.
"""

import argparse
import dataclasses
import html
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.errors import nearest
from models.sharding.layouts import ONE_DEVICE
from scripts import cli

if TYPE_CHECKING:
    import numpy as np

FORMATS = ("text", "json", "srt", "vtt")


def main() -> int:
    parser = cli.parser(__doc__)
    parser.add_argument("file", nargs="+", type=Path, help="sound files")
    cli.add_checkpoint(parser, "see above")
    parser.add_argument("--language", default="", metavar="CODE", help="of the speech, e.g. cs; asked of the model by default")
    parser.add_argument("--translate", action="store_true", help="write English instead of what is said")
    parser.add_argument("--no-timestamps", action="store_true", help="texts without times, a segment for each window")
    parser.add_argument("--beams", type=int, default=1, help="hypotheses of a beam search; 1 is greedy")
    parser.add_argument("--batch", type=int, default=0, metavar="N", help="windows at a time; by default up to 8 files'")
    parser.add_argument("--format", default="text", metavar="F", help=f"one of {', '.join(FORMATS)}")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--out", type=Path, metavar="DIR", help="a file for each sound in this folder, not standard output")
    args = parser.parse_args()
    form = checked_format(args)
    outputs = outputs_of(args.file, args.out, "txt" if form == "text" else form) if args.out else {}

    cli.use_devices(ONE_DEVICE)
    from data import progress
    from data.speech import sound
    from data.speech.vocabulary import WhisperVocabulary, open_vocabulary
    from trainers.inference.load import load
    from trainers.inference.transcription import Recording, Transcribe, Transcriber

    weights, execution = cli.opened_to_serve(args.checkpoint, args.step, args.dtype)
    if weights.vocabulary is None:
        raise cli.ConfigError(f"{args.checkpoint}: there is no vocabulary (tokenizer.json) beside the weights")
    vocabulary = open_vocabulary(weights.vocabulary)
    if not isinstance(vocabulary, WhisperVocabulary):
        raise cli.ConfigError(f"{args.checkpoint}: its vocabulary has no languages and timestamps: no Whisper")
    how = Transcribe(timed=not args.no_timestamps, beams=args.beams, batch_size=args.batch or min(8, len(args.file)))
    served = load(weights, execution)
    transcriber = Transcriber(served.model, vocabulary, how)
    prefix = transcriber.prefix(args.language, "translate" if args.translate else "transcribe")
    progress.show(not args.json)
    failures, began, seconds = 0, time.perf_counter(), 0.0

    def failed(path: Path, why: str) -> None:
        nonlocal failures
        failures += 1
        progress.say(f"error: {path}: {why}")

    done: dict[Path, str] = {}
    with progress.bar("transcribing", sum(map(sound.seconds, args.file)), "s of sound") as advance:
        recordings = (Recording(path, counted(sound.blocks(path), advance), [*prefix]) for path in args.file)
        for recording in transcriber(served.params, recordings, failed):
            path, transcript = recording.name, recording.transcript
            seconds += transcript.seconds
            text = written(transcript, path, form)
            if args.out:
                args.out.mkdir(parents=True, exist_ok=True)
                outputs[path].write_text(text, encoding="utf-8")
            done[path] = text
    if not args.out:
        several = len(args.file) > 1 and form == "text"
        for path in args.file:  # in the order in which they were given
            if path in done:
                print(f"{path}: {done[path]}" if several else done[path], end="")
    spent = time.perf_counter() - began
    print(
        f"{seconds:.1f} s of sound in {spent:.1f} s, {len(done)} of {len(args.file)} files"
        + (f"; {failures} could not be read" if failures else ""),
        file=sys.stderr,
    )
    return 1 if failures else 0


def checked_format(args: argparse.Namespace) -> str:
    """Returns the output's format; raises ConfigError where it, or a number beside it, cannot be."""
    form = "json" if args.json else args.format
    if form not in FORMATS:
        raise cli.ConfigError(f"--format {form!r}: no such format{nearest(form, FORMATS)}")
    for name in ("beams", "batch"):
        if getattr(args, name) < (name == "beams"):
            raise cli.ConfigError(f"--{name} {getattr(args, name)}: expected a positive number")
    return form


def outputs_of(files: list[Path], folder: Path, suffix: str) -> dict[Path, Path]:
    """Returns the file of each sound's transcript; raises ConfigError where two would have the same."""
    sounds: dict[Path, Path] = {}
    for path in files:
        output = folder / f"{path.name}.{suffix}"
        if sounds.setdefault(output, path) != path:
            raise cli.ConfigError(
                f"--out {folder}: {sounds[output]} and {path} would both be {output.name}; choose a folder for each"
            )
    return {path: output for output, path in sounds.items()}


def counted(blocks: "Iterator[np.ndarray]", advance: Callable[[float], Any]) -> "Iterator[np.ndarray]":
    """Yields a sound's blocks, each counted in seconds once it is asked for the next: they are read as they are transcribed."""
    from data.speech.sound import RATE

    for block in blocks:
        yield block
        advance(len(block) / RATE)


def written(transcript: Any, path: Path, form: str) -> str:
    """Returns a transcript in one of FORMATS; a line's end is included."""
    if form == "json":
        fields = dataclasses.asdict(transcript) | {"file": str(path), "text": transcript.text}
        return json.dumps(fields, ensure_ascii=False) + "\n"
    if form == "text":
        return f"{transcript.text}\n"
    blocks = ["WEBVTT\n\n"] if form == "vtt" else []
    for number, segment in enumerate(transcript.segments, 1):
        counted = f"{number}\n" if form == "srt" else ""
        text = " ".join(segment.text.split())  # an empty line would end what is shown
        text = text.replace("-->", "->") if form == "srt" else html.escape(text, quote=False)
        blocks.append(f"{counted}{clock(segment.start, form)} --> {clock(segment.end, form)}\n{text}\n\n")
    return "".join(blocks)


def clock(seconds: float, form: str) -> str:
    """Returns a time as subtitles have it: 01:02:03,450, or in WebVTT with a point."""
    milliseconds = round(seconds * 1000)
    hours, remaining = divmod(milliseconds, 3_600_000)
    minutes, remaining = divmod(remaining, 60_000)
    return f"{hours:02}:{minutes:02}:{remaining // 1000:02}{',' if form == 'srt' else '.'}{remaining % 1000:03}"


if __name__ == "__main__":
    cli.run(main)
