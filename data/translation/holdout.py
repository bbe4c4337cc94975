"""A split that does not leak: by English string, with near copies purged from training.

English is the target in every language, so a split by pair would leak: the same English string would be in
training through another language. Here every pair of a held-out English string is held out, and English strings
that share half of their 4-grams with one are dropped from training. Strings are compared by `english_key`. Different English
strings can still have one translation: `data.translation.corpus` drops held-out pairs whose source string is trained on.
Everything is deterministic: no hash(), and no result depends on the order of a set.
"""

import dataclasses
import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

PLACEHOLDER = re.compile(r"%\(?\w*\)?[sdif]|\$?\{[^}]*\}|<[^>]+>|&\w+;")
_WORD_OR_ZERO = re.compile(r"[a-z0]+")
_DIGITS = re.compile(r"\d+")
_WORDS = range(5, 41)  # length of a held-out string: a sentence, neither a button's label nor a page of help
_LEAST_LANGUAGES = 3  # fewer would spend a training string on hardly any test pairs
_NGRAM = 4


def english_key(english: str) -> str:
    """Returns a normal form that identifies an English string: lower case, blanks for placeholders and tags, numbers as 0."""
    text = _DIGITS.sub("0", PLACEHOLDER.sub(" ", english.lower()))
    return " ".join(_WORD_OR_ZERO.findall(text))


def ngrams(key: str) -> set[str]:
    """Returns the distinct 4-grams of words of a key."""
    words = key.split()
    return {" ".join(words[i : i + _NGRAM]) for i in range(len(words) - _NGRAM + 1)}


def near_copies(keys: Iterable[str], held: Iterable[str]) -> set[str]:
    """Returns the `keys` that equal a `held` key or contain at least half of the 4-grams of one."""
    needed: dict[str, int] = {}
    held_with = defaultdict(list)
    for key in held:
        grams = ngrams(key)
        needed[key] = (len(grams) + 1) // 2
        for gram in grams:
            held_with[gram].append(key)

    def copies(key: str) -> bool:
        shared = Counter(owner for gram in ngrams(key) for owner in held_with.get(gram, ()))
        return any(count >= needed[owner] for owner, count in shared.items())

    return {key for key in keys if key in needed or copies(key)}


def cover(languages_of: Mapping[str, Collection[str]], wanted: Mapping[str, int]) -> list[str]:
    """Chooses few keys that together give each language its `wanted` number of pairs, if possible.

    The choice is greedy: it takes the key that adds most of the pairs still wanted, languages that want few (the small ones)
    first. Gains only shrink, so a heap of stale upper bounds finds the best key without recounting the others.

    Args:
      languages_of: the languages that each candidate is translated into.
      wanted: pairs to hold out by language.
    """
    missing = Counter({language: number for language, number in wanted.items() if number > 0})

    def gain(key: str) -> float:
        return sum(missing[lang] / wanted[lang] ** 1.5 for lang in languages_of[key] if missing[lang] > 0)

    chosen = []
    heap = [(-gain(key), key) for key in sorted(languages_of)]
    heapq.heapify(heap)
    while heap and any(number > 0 for number in missing.values()):
        _, key = heapq.heappop(heap)
        current = (-gain(key), key)
        if current[0] == 0:
            continue
        if heap and heap[0] < current:
            heapq.heappush(heap, current)
            continue
        chosen.append(key)
        missing.subtract(languages_of[key])
    return chosen


@dataclasses.dataclass(frozen=True)
class Split:
    """Disjoint sets of English keys; keys in none of them are for training.

    Attributes:
      test, validation: held out; neither has a near copy of the other's strings.
      purged: near copies of a held-out string, in no split at all.
    """

    test: frozenset[str]
    validation: frozenset[str]
    purged: frozenset[str]

    def name_of(self, key: str) -> str | None:
        """Returns the name of a key's split, or None for a purged key."""
        if key in self.test:
            return "test"
        if key in self.validation:
            return "validation"
        return None if key in self.purged else "train"


def hold_out(
    keyed_pairs: Iterable[tuple[str, str]], *, test: int, validation: int, share: float, elsewhere: Iterable[str] = ()
) -> Split:
    """Chooses the keys that are held out of (language, English key) pairs.

    Args:
      keyed_pairs: one entry for each pair of the corpus.
      test: pairs that each language gets in the test where possible (more come along with other languages).
      validation: likewise.
      share: no language asks for more than this share of its pairs, in either.
      elsewhere: keys of a test set from another source; these and their near copies are purged.
    """
    sizes: Counter[str] = Counter()
    languages_of: defaultdict[str, set[str]] = defaultdict(set)
    for language, key in keyed_pairs:
        sizes[language] += 1
        languages_of[key].add(language)
    purged = near_copies(languages_of, elsewhere)
    least = min(_LEAST_LANGUAGES, len(sizes))
    candidates = {
        key: sorted(languages)
        for key, languages in languages_of.items()
        if len(key.split()) in _WORDS and len(languages) >= least
    }

    def choose(number: int) -> frozenset[str]:
        wanted = {language: min(number, int(share * size)) for language, size in sizes.items()}
        clean = {key: languages for key, languages in candidates.items() if key not in purged}
        return frozenset(cover(clean, wanted))

    test_keys = choose(test)
    purged |= near_copies(languages_of, test_keys)  # the test strings themselves among them
    validation_keys = choose(validation)
    purged |= near_copies(languages_of, validation_keys)
    return Split(test_keys, validation_keys, frozenset(purged - test_keys - validation_keys))
