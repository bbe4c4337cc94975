"""Small sounds, folders of them, and a vocabulary in Whisper's form."""

import csv
import io
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from data.speech.sound import RATE, to_pcm

LANGUAGES = ("en", "cs", "de")


def tone(seconds: float, hertz: float = 440.0, rate: int = RATE) -> np.ndarray:
    """A rising tone, no two lengths or pitches of which look alike."""
    times = np.arange(round(seconds * rate)) / rate
    return (0.4 * np.sin(2 * np.pi * hertz * times * (1 + times / 4))).astype(np.float32)


def wav(samples: np.ndarray) -> bytes:
    """Returns samples from -1 to 1 as a WAV file of 16 kHz."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(to_pcm(samples).astype("<i2").tobytes())
    return file.getvalue()


def wav_header(seconds: float, rate: int = RATE) -> bytes:
    """The beginning of a WAV file of 16 bits: what is missing behind it may be a hole in a file, which is silence."""
    size = 2 * round(seconds * rate)
    fields = struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    return b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + fields + b"data" + struct.pack("<I", size)


def bad_sounds() -> dict[str, tuple[bytes, str]]:
    """Files of no use by name, each with words of the line that says so."""
    ogg = io.BytesIO()
    soundfile.write(ogg, tone(9), RATE, format="OGG")
    return {
        "text.wav": (b"no sound", "no sound that can be read"),
        "film.mp4": (struct.pack(">I", 24) + b"ftypisom" + bytes(12) + b"\0\0\0dmoov" + bytes(92), "no sound that can"),
        "film.ogg": (b"OggS\0\2" + bytes(20) + b"\1\x2a\x80theora" + bytes(35), "no sound that can be read"),
        "empty.wav": (wav(tone(0)), "has no samples"),
        "cut.ogg": (ogg.getvalue()[:9000], "cut short"),
        "slow.wav": (wav_header(0.5, 1) + bytes(8), "says 1 samples a second, expected from 1,000 to 1,000,000"),
        "fast.wav": (wav_header(0.0, 2_000_000_000) + bytes(8), "samples a second, expected from 1,000 to 1,000,000"),
    }


def write_sounds(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A folder with a table of these rows, and a sound for each: `seconds` long, 1 by default."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["file_name", "text", "translation", "language", "split", "group"]
    with (folder / "metadata.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, fields, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
    for number, row in enumerate(rows):
        (folder / row["file_name"]).write_bytes(wav(tone(row.get("seconds", 1.0), 200 + 10 * number)))
    return folder


def write_whisper_vocabulary(folder: Path) -> Path:
    """A vocabulary of bytes with Whisper's special tokens, of three languages."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["endoftext", "startoftranscript", *LANGUAGES, "translate", "transcribe", "startofprev", "nospeech"]
    tokenizer.add_special_tokens([f"<|{name}|>" for name in [*names, "notimestamps"]])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
