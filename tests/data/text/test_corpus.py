import numpy as np

from data.text import corpus
from data.text.corpus import Document
from tests.helpers.catalogues import WORDS


def words(seed: int, count: int = 40) -> list[str]:
    return list(np.random.default_rng(seed).choice(WORDS, count))


def document(number: int, text: str, origin: str = "o", group: str = "") -> Document:
    return Document(f"{origin}/{number}", origin, group or str(number), text)


def test_every_origin_is_held_out_by_groups():
    """One group in a hundred of each origin, one at least, is in the test, another in validation; none is in two splits."""
    some = [document(i, " ".join(words(i)), "a", f"g{i // 3}") for i in range(900)]
    some += [document(i, " ".join(words(10_000 + i)), "b") for i in range(5)]
    splits = corpus.divide_documents(some)
    groups = {split: {(d.origin, d.group) for d in documents} for split, documents in splits.items()}
    for split in ("validation", "test"):
        assert [sum(origin == name for origin, _ in groups[split]) for name in "ab"] == [3, 1]
        assert len(splits[split]) == 3 * 3 + 1 and not groups[split] & groups["train"]
    assert not groups["validation"] & groups["test"]
    assert sum(map(len, splits.values())) == len(some)


def test_the_split_does_not_depend_on_order():
    """The same documents in another order are held out alike."""
    some = [document(i, " ".join(words(i))) for i in range(300)]
    one, other = corpus.divide_documents(some), corpus.divide_documents(some[::-1])
    assert {split: set(documents) for split, documents in one.items()} == {
        split: set(documents) for split, documents in other.items()
    }


def test_near_copies():
    """A text with half of a held text's 8-grams is a near copy, whichever of the two is longer; short texts are none."""
    held = words(0, 47)  # forty 8-grams
    texts = {
        "the same": held,
        "other case": [word.upper() for word in held],
        "half": held[:27] + words(1),  # twenty of its 8-grams
        "less than half": held[:26] + words(1),
        "a part": held[5:15],
        "a part and as much": held[5:15] + words(2, 5),
        "another": words(3),
        "too short": held[:7],
    }
    documents = [document(i, " ".join(text)) for i, text in enumerate(texts.values())]
    kept = corpus.without_near_copies(documents, [document(99, ", ".join(held))])
    assert {list(texts)[documents.index(d)] for d in kept} == {"less than half", "a part and as much", "another", "too short"}


def test_overlap_counts_grams():
    """A text of 20 words has 13 grams of eight; where ten of the words are elsewhere, three grams are."""
    mine, other = words(0, 20), words(1, 30)
    documents = [document(0, " ".join(mine))], [document(1, " ".join(other[:9] + mine[:10] + other[9:]))]
    assert corpus.overlap(*documents) == 3 / 13


def test_repeated_texts_are_read_once(tiny_text):
    """A text that comes again, in whatever document, is left out, and so is an empty one."""
    from data.text.sources import CORPORA, Source

    (first, *_) = CORPORA["english_small"]

    def entries(package):
        return iter([("a", "a", "text"), ("b", "b", "text"), ("c", "c", ""), ("d", "d", "other")])

    documents = corpus.read([Source("x", first.package, entries), Source("y", first.package, entries)], tiny_text)
    assert [d.id for d in documents] == ["x/a", "x/d"]
