"""Small sounds, folders of them, and a vocabulary in Whisper's form."""

import csv
import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
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
