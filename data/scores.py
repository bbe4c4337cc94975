"""Scores of translations as strings: corpus BLEU and chrF by sacrebleu, which is imported when something is scored."""

from collections.abc import Sequence

MEANINGS = {
    "bleu": "sequences of up to four words that outputs share with the references, 0 to 100",
    "chrf": "sequences of up to six characters that outputs share with the references, 0 to 100",
}
"""Explains these scores (data.task.Task.meanings)."""


def bleu(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns corpus BLEU, 0 to 100, with sacrebleu's own tokenization (13a)."""
    import sacrebleu

    return {"bleu": sacrebleu.corpus_bleu(predictions, [targets]).score}


def chrf(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns corpus chrF, 0 to 100: character n-grams up to 6, recall weighted twice."""
    import sacrebleu

    return {"chrf": sacrebleu.corpus_chrf(predictions, [targets]).score}
