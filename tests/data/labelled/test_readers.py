from collections import Counter

import pytest

from data.labelled import readers
from data.reading.splits import Item, divide, text_key
from tests.helpers.archives import tarball
from tests.helpers.labelled_packages import INDEX, write_zip


def test_a_summary_is_one_example(tmp_path):
    """Packages that share a summary are one example, with the section that most of them are in, of its source's group.

    A component is no part of a section, a section that isn't among the labels is left out, the first version counts.
    """
    index = write_zip(tmp_path / "index.zip", INDEX)
    assert list(readers.debian_sections(index)) == [
        Item("cat", {"text": "the cats (library)", "label": "libs"}),
        Item("mat", {"text": "a mat on the cat", "label": "games"}),
    ]


def test_descriptions_are_those_of_the_summaries(tmp_path):
    """The examples are those of the summaries, each with the rest of the description."""
    index = write_zip(tmp_path / "index.zip", INDEX)
    described = list(readers.debian_descriptions(index))
    assert [item.example.pop("pair") for item in described] == [
        "The cat sat on the mat.\nAnother paragraph.",
        "Who sat on the cat?",
    ]
    assert described == list(readers.debian_sections(index))


def test_similar_texts_come_once(tmp_path):
    """A summary goes with the first paragraph; a pair with a text that was there before is left out."""
    index = write_zip(tmp_path / "index.zip", INDEX)
    assert [item.example for item in readers.debian_similar(index)] == [
        {"text": "the cats (library)", "pair": "The cat sat on the mat."},
        {"text": "a mat on the cat", "pair": "Who sat on the cat?"},
    ]


@pytest.mark.parametrize(
    "tag, universal",
    [
        ("nn", "NOUN"),
        ("nn-tl-hl", "NOUN"),
        ("np$-tl", "NOUN"),
        ("ppss+md", "PRON"),
        ("md*", "VERB"),
        ("*", "ADV"),
        ("*-hl", "ADV"),
        ("fw-at+nn-tl", "X"),
        ("--", "."),
        ("(-hl", "."),
        ("to", "PRT"),
    ],
)
def test_tags(tag, universal):
    """Marks are dropped, the first of two words counts, foreign words are X."""
    assert readers.universal_tag(tag) == universal


def test_sentences_and_chunks(tmp_path, monkeypatch):
    """A line of Brown is a sentence; a chunk is as many sentences as fill it, a short rest is dropped."""
    line = "\tThe/at cat/nn and/or/cc ``/`` sat/vbd ''/'' ./.\n"
    package = tarball(tmp_path / "brown.tgz", {"package/ca01": f"\n\n{line}\n\n{line * 4}".encode()})
    words, tags = ["The", "cat", "and/or", "``", "sat", "''", "."], ["DET", "NOUN", "CONJ", ".", "VERB", ".", "."]
    assert list(readers.brown_tags(package)) == [Item("ca01", {"words": words, "tags": tags}, "news")] * 5
    monkeypatch.setattr(readers, "_CHUNK", 15)
    sentence = 'The cat and/or " sat " .'
    assert list(readers.brown_genres(package)) == [
        Item("ca01", {"text": " ".join([sentence] * 3), "label": "news"}, "news"),
        Item("ca01", {"text": " ".join([sentence] * 2), "label": "news"}, "news"),
    ]


HTML = b"""\
From: a@b
Subject: =?utf-8?q?Re=3A_[list]_caf=C3=A9?=
Content-Type: multipart/mixed; boundary=X

--X
Content-Type: text/html; charset=utf-8
Content-Transfer-Encoding: quoted-printable

<html><style>p {}</style><p>Sea=
s &amp; <b>caf=C3=A9</b><!-- > hidden -->
--X
Content-Type: image/png

no text
--X--
"""


def test_mails(tmp_path):
    """Subject and body are kept as a reader sees them, other headers are not; the same body counts once.

    A mail belongs to its subject's discussion, or to itself if it has no subject.
    """
    plain = b"Received: by x\nSubject: [list] caf\xc3\xa9\n\n> Seas\n\nYes \xe9\n"
    files = {
        "package/data/easy-ham-1/1.txt": HTML,
        "package/data/easy-ham-1/1.json": b"the same",
        "package/data/hard-ham-1/2.txt": plain,
        "package/data/spam-2/3.txt": b"Subject: other\n\n>>seas YES \xe9",
        "package/data/spam-2/4.txt": b"X-No: subject\nContent-Type: text/plain; charset=nonsense\n\nBuy 99 now",
    }
    items = list(readers.spam(tarball(tmp_path / "mails.tgz", files)))
    assert [(item.example["label"], item.example["text"]) for item in items] == [
        ("ham", "Re: [list] café\nSeas & café"),
        ("ham", "[list] café\n> Seas Yes é"),
        ("spam", "Buy 99 now"),
    ]
    assert [item.group for item in items] == ["café", "café", "buy 0 now"]


def texts_of(example: dict, sides: tuple[str, ...]) -> set[str]:
    return {text_key(example[side]) for side in sides if side in example}


@pytest.mark.network
@pytest.mark.parametrize(
    "name, examples, test",
    [
        pytest.param("debian_sections", 59_399, 3_881, marks=pytest.mark.slow),
        pytest.param("debian_descriptions", 59_399, 3_881, marks=pytest.mark.nightly),
        pytest.param("debian_similar", 39_235, 2_619, marks=pytest.mark.nightly),
        ("brown_tags", 57_340, 5_902),
        ("brown_genres", 6_020, 626),
        pytest.param("spam", 5_656, 1_140, marks=pytest.mark.slow),
    ],
)
def test_the_real_packages(real, name, examples, test):
    """The real packages give the examples that they were measured to hold, in splits without a text in common.

    Debian's index is whatever the archive has today, so that its numbers may change by some percent.
    """
    task, package = real(name)
    splits = divide(task.read(package), validation=task.validation, test=task.test)
    some = 0.1 if name.startswith("debian") else 0
    assert sum(map(len, splits.values())) == pytest.approx(examples, rel=some)
    assert len(splits["test"]) == pytest.approx(test, rel=some)
    if name == "brown_tags":  # short sentences come again in other documents
        assert set(task.labels) == {tag for example in splits["test"] for tag in example["tags"]}
        return
    # Packages of several sources describe themselves in the same words, below another summary.
    sides = ("text",) if name == "debian_descriptions" else ("text", "pair")
    texts = {split: {text for example in some for text in texts_of(example, sides)} for split, some in splits.items()}
    assert not texts["train"] & texts["test"] and not texts["train"] & texts["validation"]
    assert not texts["test"] & texts["validation"]
    labels = Counter(example.get("label", "") for example in splits["train"])
    assert set(labels) == (set(task.labels) or {""})
