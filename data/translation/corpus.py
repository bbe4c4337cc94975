"""Divides a catalogue's pairs into the splits that the TFDS builder writes, without TensorFlow."""

from collections import Counter, defaultdict
from pathlib import Path

from data.translation import catalogues, udhr
from data.translation.catalogues import Catalogue, Pair
from data.translation.holdout import english_key, hold_out

Splits = dict[str, dict[str, list[Pair]]]  # split name to language to pairs


def divide(catalogue: Catalogue, folder: Path) -> Splits:
    """Reads a catalogue's packages in `folder` into its splits, each by language."""
    named = None if isinstance(catalogue.languages, int) else catalogue.languages
    pairs = catalogues.read(catalogue.sources, folder, named)
    if isinstance(catalogue.languages, int):
        sizes = Counter(pair.language for pair in pairs)
        # Ties are broken by name, so that the choice of languages doesn't depend on the order of packages.
        kept = set(sorted(sizes, key=lambda language: (-sizes[language], language))[: catalogue.languages])
    else:
        kept = set(catalogue.languages)
    elsewhere = udhr.read(folder / catalogue.udhr.file, kept) if catalogue.udhr else {}
    return divide_pairs(catalogue, [pair for pair in pairs if pair.language in kept], elsewhere)


def divide_pairs(catalogue: Catalogue, pairs: list[Pair], elsewhere: Splits | None = None) -> Splits:
    """Divides pairs into `train`, `validation` and `test`; those without an English word are left out.

    The split is by English string (see `data.translation.holdout`). Different English strings may have the same translation
    in a language: a held-out pair whose source string is in that language's training is left out as well.

    Args:
      catalogue: its settings say how many pairs to hold out.
      pairs: all pairs of one corpus.
      elsewhere: held-out splits from another source; training has no near copy of theirs either.
    """
    elsewhere = elsewhere or {}
    keys = {english: english_key(english) for english in {pair.english for pair in pairs}}
    split = hold_out(
        ((pair.language, keys[pair.english]) for pair in pairs if keys[pair.english]),
        test=catalogue.test,
        validation=catalogue.validation,
        share=catalogue.share,
        elsewhere={
            english_key(pair.english)
            for languages in elsewhere.values()
            for language_pairs in languages.values()
            for pair in language_pairs
        },
    )
    splits: Splits = {name: defaultdict(list) for name in ("train", "validation", "test")}
    for pair in pairs:
        key = keys[pair.english]
        name = split.name_of(key) if key else None
        if name:
            splits[name][pair.language].append(pair)
    train = splits.pop("train")
    trained = {(pair.language, pair.source) for language_pairs in train.values() for pair in language_pairs}
    held_out = {name: _unseen(languages, trained) for name, languages in {**splits, **elsewhere}.items()}
    return {"train": train, **held_out}


def _unseen(languages: dict[str, list[Pair]], trained: set[tuple[str, str]]) -> dict[str, list[Pair]]:
    """Returns the pairs whose (language, source string) is not trained on; languages without any are dropped."""
    kept = {language: [pair for pair in pairs if (language, pair.source) not in trained] for language, pairs in languages.items()}
    return {language: pairs for language, pairs in kept.items() if pairs}
