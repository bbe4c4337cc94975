"""Scores of transcripts and of translated speech: word and character error rates by jiwer, chrF and BLEU by sacrebleu."""

from collections.abc import Sequence

import jiwer

from data import scores as strings
from data.speech.vocabulary import spoken

MEANINGS = strings.MEANINGS | {
    "wer": "word error rate: words substituted, inserted or left out, over those of the references",
    "cer": "the same of characters",
    "impossible": "the share of texts that are too long for their sound",
}
"""Explains these scores (data.task.Task.meanings)."""


def error_rates(references: Sequence[str], outputs: Sequence[str]) -> dict[str, float]:
    """Returns "wer" and "cer": substitutions, insertions and deletions over the references' words or characters.

    Both sides are compared as they are spoken: in lower case, without punctuation. A reference without words is left out.
    """
    pairs = [(spoken(r), spoken(o)) for r, o in zip(references, outputs, strict=True)]
    pairs = [(reference, output) for reference, output in pairs if reference]
    if not pairs:
        return {"wer": 0.0, "cer": 0.0}
    references, outputs = map(list, zip(*pairs, strict=True))
    return {"wer": float(jiwer.wer(references, outputs)), "cer": float(jiwer.cer(references, outputs))}


def scores(references: Sequence[str], outputs: Sequence[str], task: str) -> dict[str, float]:
    """Returns the scores of outputs: of transcripts the error rates and chrF, of translations chrF and BLEU."""
    chrf = strings.chrf(references, outputs) if references else {"chrf": 0.0}
    if task == "transcribe":
        return error_rates(references, outputs) | chrf
    return chrf | (strings.bleu(references, outputs) if references else {"bleu": 0.0})
