"""Retrieval from a made-up dictionary: terms first, then snippets by rank."""

import json
import zipfile

import numpy as np
import pytest

from tests.helpers.archives import fetched
from trainers.inference.tools import reference, retrieval
from trainers.inference.tools.retrieval import Index
from trainers.inference.tools.toolset import Toolset

SNIPPETS = [
    "lark / n. / A singing bird.",
    "lark / v. i. / To sport; to frolic.",
    "wren / n. / A small bird, a bird of hedges.",
    "glass / n. / A hard, brittle substance.",
    "frolic / n. / A merry prank.",
]


@pytest.fixture
def index(tmp_path) -> Index:
    assert retrieval.build(SNIPPETS, tmp_path) == len(SNIPPETS)
    return Index(tmp_path)


def test_a_term_comes_before_what_mentions_it(index):
    """Snippets about the term stand in their own order, then those that hold its words, then nothing."""
    assert index("lark", 8) == SNIPPETS[:2]
    assert index("frolic", 8) == [SNIPPETS[4], SNIPPETS[1]]
    assert index("frolic", 1) == [SNIPPETS[4]]
    assert index("zebra", 8) == []
    assert index("", 8) == []


@pytest.mark.parametrize("query", ["Lark", "larks", " lark? ", "What is a lark?", "define lark", "what does 'lark' mean?"])
def test_a_term_is_found_however_it_is_asked_for(index, query):
    """Case, a plural, a question and its article do not hide the term."""
    assert index(query, 2) == SNIPPETS[:2]


def test_ranks_are_those_of_bm25(index):
    """Both birds are found, the one that says "bird" twice first; the weights are the formula's, computed by hand."""
    assert index("birds", 8) == [SNIPPETS[2], SNIPPETS[0]]
    lengths = [5, 7, 9, 6, 5]  # words, the term and its part of speech included
    frequency = np.log(1 + (5 - 2 + 0.5) / (2 + 0.5))
    expected = [
        frequency * count / (count + 1.2 * (0.25 + 0.75 * length / np.mean(lengths)))
        for count, length in ((1, lengths[0]), (2, lengths[2]))
    ]
    number = index._word_ids["bird"]
    start, end = index._starts[number], index._starts[number + 1]
    assert list(index._snippet_ids[start:end]) == [0, 2]
    np.testing.assert_allclose(index._weights[start:end], expected, rtol=1e-6)


def test_the_toolset_joins_its_tools_in_order(index):
    """The calculator's output comes before retrieval's; a tool that cannot read the query adds nothing."""
    toolset = Toolset(index)
    assert toolset("135+7721") == ["7856"]
    assert toolset("lark") == SNIPPETS[:2]
    assert toolset("zebra") == []
    assert Toolset()("lark") == [] and Toolset()("2*3") == ["6"]


def test_the_dictionary_is_cut_into_senses():
    """Each numbered sense and each article is a snippet; etymology, quotations, notes and phrases are not in it."""
    text = (
        'Dog, n. [AS. docga; akin to D. dog.] 1. (Zool.) A quadruped. "Every dog has his day." --Shak.\n'
        "Note: There are many breeds.\n2. A mean fellow; a wretch. [Colloq.] --Pope.\nDog days, hot days.\n"
        "Dog, v. t. [imp. Dogged.] To hunt."
    )
    assert list(reference.dictionary_snippets(("dog", "dog", text))) == [
        "dog / n. / (Zool.) A quadruped.",
        "dog / n. / A mean fellow; a wretch.",
        "dog / v. t. / To hunt.",
    ]
    assert list(reference.dictionary_snippets(("unshaven", "", "Unshaven See shaven."))) == ["unshaven / See shaven."]


def test_a_long_text_is_cut_at_a_sentence():
    """A snippet ends with a sentence or, where the first is too long, with a word."""
    sentence = "It has " + "very " * 30 + "many words."
    assert reference.clipped(f"Short. {sentence} {sentence}") == f"Short. {sentence}"
    words = reference.clipped("word " * 100)
    assert len(words) <= 240 and set(words.split()) == {"word"}


def test_the_index_is_made_once(tmp_path, monkeypatch):
    """It is made from the packages, found again, and made anew when its format changes."""
    package = zipfile.ZipFile(tmp_path / "index.zip", "w")
    package.writestr("Packages", "Package: curl\nDescription-md5: aa\n")
    package.writestr("Translation-en", "Description-md5: aa\nDescription-en: transfers data\n It knows URLs.\n")
    package.close()
    monkeypatch.setattr(reference, "_SNIPPETS", {"descriptions": reference.package_snippets})
    monkeypatch.setattr(reference, "SOURCES", {"descriptions": reference.SOURCES["descriptions"]})
    monkeypatch.setattr(reference.fetch, "fetch", lambda packages, folder, progress: [_copied(tmp_path, folder)])
    assert reference.prepared(tmp_path) is None

    reports: list[str] = []
    folder = reference.prepare(tmp_path, reports.append)
    index = reference.prepared(tmp_path)
    assert index and index("curl", 8) == ["curl / Debian package / transfers data. It knows URLs."]
    assert json.loads((folder / "reference.json").read_text())["snippets"] == 1

    reports.clear()
    reference.prepare(tmp_path, reports.append)
    assert reports == [f"reference: up to date in {folder}"]
    monkeypatch.setattr(reference, "FORMAT", reference.FORMAT + 1)
    reports.clear()
    reference.prepare(tmp_path, reports.append)
    assert len(reports) == 4


def _copied(source, folder):
    folder.mkdir(exist_ok=True)
    path = folder / "debian-index.zip"
    path.write_bytes((source / "index.zip").read_bytes())
    return path


@pytest.mark.slow
@pytest.mark.network
def test_the_real_dictionary():
    """GCIDE has 172 thousand senses, each a line of its own; nearly all of them have a part of speech."""
    source = reference.SOURCES["gcide"]
    entries = source.entries(fetched(source.package) / source.package.file)
    snippets = [snippet for entry in entries for snippet in reference.dictionary_snippets(entry)]
    assert len(snippets) == 172_799
    assert all("\n" not in snippet for snippet in snippets)
    assert sum(snippet.count(" / ") >= 2 for snippet in snippets) > 0.9 * len(snippets)
    assert "paris / n. / The chief city of France." in snippets
