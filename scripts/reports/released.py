"""Parts of a page about released weights at work: a sound with its words, questions and answers, and texts by topic."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.reports.page import COLORS, Part, escaped, picture, table

if TYPE_CHECKING:
    from trainers.inference.transcription import Transcript


def transcript(samples: np.ndarray, written: "Transcript") -> Part:
    """Returns the part about a sound: its loudness over time, and its transcript.

    Args:
      samples: the sound at 16 kHz, from -1 to 1.
    """
    content = picture(loudness, samples, size=(9, 2.2)) + f"<p>{escaped(written.text)}</p>"
    note = f"{written.seconds:.0f} s of sound; the language was asked of the model: {written.language}."
    return "A sound, written down by Whisper base", content, note


def loudness(figure: Any, samples: np.ndarray) -> str:
    from data.speech.sound import RATE

    step = RATE // 50
    peaks = np.abs(samples[: len(samples) // step * step]).reshape(-1, step).max(axis=1)
    axes = figure.subplots()
    axes.fill_between(np.arange(len(peaks)) / 50, -peaks, peaks, color=COLORS["high"], lw=0)
    axes.set(xlabel="seconds", yticks=[], xlim=(0, len(samples) / RATE))
    axes.spines[["top", "right", "left"]].set_visible(False)
    return f"loudness of {len(samples) / RATE:.0f} s of sound"


def answers(pairs: Sequence[tuple[str, str]]) -> Part:
    """Returns the part about questions and their answers."""
    note = "The likeliest token each time. A model of this size writes fluently and is often wrong."
    return "Questions, answered by SmolLM2-135M in 4 bits", table(["question", "answer"], pairs), note


def topics(texts: Sequence[str], names: Sequence[str], cosines: Sequence[Sequence[float]]) -> Part:
    """Returns the part about texts and topics: a picture of their cosines [texts][topics]."""
    content = picture(similarities, (texts, names, cosines), size=(9, 4.2))
    return "Texts by topic, by MiniLM-L6", content, "Cosines of sentence vectors. Nothing was trained on these topics."


def similarities(figure: Any, data: tuple[Sequence[str], Sequence[str], Sequence[Sequence[float]]]) -> str:
    texts, names, cosines = data
    axes = figure.subplots()
    axes.imshow(cosines, aspect="auto", cmap="Blues", vmin=0)
    axes.set_xticks(range(len(names)), [textwrap.fill(name, 18) for name in names], fontsize=8)
    axes.set_yticks(range(len(texts)), texts, fontsize=8)
    for y, row in enumerate(cosines):
        nearest = max(range(len(row)), key=row.__getitem__)
        for x, cosine in enumerate(row):
            color = "white" if cosine > 0.3 else "black"
            axes.text(
                x, y, f"{cosine:.2f}", ha="center", va="center", fontsize=8, color=color, weight="bold" if x == nearest else None
            )
    return f"cosines of {len(texts)} texts with {len(names)} topics"
