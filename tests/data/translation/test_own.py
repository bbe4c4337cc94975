"""A user's own translations, from every form to rows."""

import dataclasses
import gzip
import json
import random
from xml.sax.saxutils import escape

import pytest

from data.prepare import prepare, settings_from
from data.reading.caches import examples, read_manifest
from data.reading.splits import text_key
from data.task import DataError
from data.translation import own
from data.translation.decoding import TranslationDecoding
from data.translation.maker import Released, Trained
from tests.helpers.catalogues import WORDS
from tests.helpers.own_data import NESTED, TABLES, contents, scores_of, table, write_csv, write_lines
from tests.helpers.rows import read_rows, unpack
from tests.helpers.vocabularies import write_pieces

_CHANCE = random.Random(0)
ENGLISH = [" ".join(_CHANCE.choices(WORDS, k=8)).capitalize() + "." for _ in range(60)]
ROWS = [{"en": text, "de": text.translate(str.maketrans("aeiou", "äöïüy"))} for text in ENGLISH]


def _aligned(path, compress=lambda content: content, suffix=""):
    path.mkdir()
    for code in ("en", "de"):
        (path / f"corpus.{code}{suffix}").write_bytes(compress("".join(row[code] + "\n" for row in ROWS).encode()))


def _tmx(path):
    units = [
        f'<tu><tuv xml:lang="EN-us"><seg>{escape(row["en"])}<ph x="1">&lt;b&gt;</ph></seg></tuv>'
        f'<tuv xml:lang="de"><seg><hi>{escape(row["de"][:3])}</hi>{escape(row["de"][3:])}</seg></tuv></tu>'
        for row in ROWS
    ]
    path.write_text(f'<?xml version="1.0"?><tmx version="1.4"><header/><body>{"".join(units)}</body></tmx>', encoding="utf-8")


def _po(path):
    messages = [f"msgid {json.dumps(row['en'])}\nmsgstr {json.dumps(row['de'], ensure_ascii=False)}\n" for row in ROWS]
    header = 'msgid ""\nmsgstr ""\n"Language: de\\n"\n'
    (path / "locale" / "xx" / "LC_MESSAGES").mkdir(parents=True)
    (path / "locale" / "xx" / "LC_MESSAGES" / "app.po").write_text("\n".join([header, *messages]), encoding="utf-8")


FORMS = {
    **{name: table(name, ROWS) for name in TABLES},
    **{f"objects {name}": table(name, [{"translation": row} for row in ROWS]) for name in NESTED},
    "codes rows.jsonl": lambda path: write_lines(path, [{"id": 1, "en_US": row["en"], "deu_Latn": row["de"]} for row in ROWS]),
    "aligned": _aligned,
    "aligned.gz": lambda path: _aligned(path, gzip.compress, ".gz"),
    "memory.tmx": _tmx,
    "messages": _po,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The contents of the cache that `test_a_mixture_is_trained_on_own_translations_and_scored` has."""
    root = tmp_path_factory.mktemp("aligned")
    _aligned(root / "aligned")
    return contents(prepare("mine", settings_from(str(root / "aligned")), data_dir=root, progress=len))


def pairs_of(cache, language, lengths=(64, 48)):
    """Returns the pairs of a language's training rows."""
    vocabularies = Trained(cache)
    rows = [unpack(row, lengths) for row in read_rows(cache / f"train/{language}.array_record")]
    return {(vocabularies._source.decode(source), vocabularies.decode(target.tolist())) for row in rows for source, target in row}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_translations_becomes_rows(tmp_path, trained, name):
    """All pairs, from German into English, are in one split each; three rows are shown with their tags. The contents are those
    that a mixture is trained on below, whatever the form."""
    source = tmp_path / name.rpartition(" ")[2]
    FORMS[name](source)
    lines = []
    cache = prepare("mine", settings_from(str(source)), data_dir=tmp_path, progress=lines.append)
    assert contents(cache) == trained
    manifest = read_manifest(cache)
    assert (manifest["to"], [*manifest["languages"]], manifest["left_out"]) == ("en", ["de"], 0)
    held = [pair for split in ("validation", "test") for pair in examples(cache, split)]
    pairs = pairs_of(cache, "de")
    assert len(held) == 9 and len(pairs) == manifest["languages"]["de"]["pairs"] == 51
    assert pairs | {(pair["source"], pair["target"]) for pair in held} == {(row["de"], row["en"]) for row in ROWS}
    assert sum(line.startswith("read ") for line in lines) == 1  # the names of the files
    shown = [line for line in lines if line.startswith("a row of de: <de> ")]
    assert 1 <= len(shown) <= 3 and " </s> => " in shown[0]


def test_another_target_and_several_sources(tmp_path):
    """Every language but the target is a part; equal targets are in one split in all of them, and columns name languages."""
    rows = [{"german": row["de"], "en": row["en"], "fr": row["en"].upper()} for row in ROWS]
    write_csv(tmp_path / "a.csv", rows)
    settings = dataclasses.replace(settings_from(str(tmp_path / "a.csv"), "de=german"), to="de")
    cache = prepare("mine", settings, data_dir=tmp_path, progress=len)
    manifest = read_manifest(cache)
    assert (manifest["to"], [*manifest["languages"]]) == ("de", ["en", "fr"])
    held = {text_key(pair["target"]) for split in ("validation", "test") for pair in examples(cache, split)}
    trained = {text_key(target) for language in ("en", "fr") for _, target in pairs_of(cache, language)}
    assert len(held) == 9 and not held & trained
    decoding = TranslationDecoding(cache)
    assert decoding.example("en", "a").to == "de"
    with pytest.raises(DataError, match=r"the model translates into 'de' alone, not into 'en'; did you mean 'de'\?"):
        decoding.encode(decoding.example("fr", "a", "en"))
    with pytest.raises(DataError, match="to='da': no text is in that language; did you mean 'de'"):
        prepare("mine", dataclasses.replace(settings, to="da"), data_dir=tmp_path, progress=len)


def test_a_source_that_is_held_out_is_not_trained_on(tmp_path):
    """Although it has another translation there; pairs that are none are counted."""
    rows = [*ROWS, *({"en": f"{row['en']} Another {n}.", "de": row["de"]} for n, row in enumerate(ROWS))]
    write_lines(tmp_path / "a.jsonl", [*rows, {"en": "", "de": "x"}, {"en": "y", "de": None}, {"en": "z", "de": "z"}])
    lines = []
    cache = prepare("mine", settings_from(str(tmp_path / "a.jsonl")), data_dir=tmp_path, progress=lines.append)
    held = {pair["source"] for split in ("validation", "test") for pair in examples(cache, split)}
    assert held and not held & {source for source, _ in pairs_of(cache, "de")}
    assert read_manifest(cache)["left_out"] > 3
    assert any("pairs left out; a.jsonl, row 121: no text in en" in line for line in lines)


@pytest.mark.parametrize("name", ["{split}/a.{code}", "{split}.{code}"])
def test_the_splits_of_aligned_files_are_those_of_their_names(tmp_path, name):
    for split, rows in (("train", ROWS[:50]), ("dev", ROWS[50:55]), ("test", ROWS[55:])):
        for code in ("en", "de"):
            file = tmp_path / "corpus" / name.format(split=split, code=code)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(row[code] + "\n" for row in rows))
    cache = prepare("mine", settings_from(str(tmp_path / "corpus")), data_dir=tmp_path / "data", progress=len)
    assert [pair["target"] for pair in examples(cache, "validation")] == [row["en"] for row in ROWS[50:55]]
    assert read_manifest(cache)["languages"]["de"]["pairs"] == 50


def test_a_translators_vocabulary_encodes_what_it_knows(tmp_path):
    """The pieces of an M2M-100; a language that it does not know is left out and named."""
    rows = [{**row, "nn": row["de"].lower()} for row in ROWS]
    write_lines(tmp_path / "a.jsonl", rows)
    write_pieces(tmp_path / "m2m")
    lines = []
    settings = settings_from(str(tmp_path / "a.jsonl")).encoded_with("")
    cache = prepare("mine", settings, data_dir=tmp_path, vocabulary=tmp_path / "m2m", progress=lines.append)
    manifest = read_manifest(cache)
    assert [*manifest["languages"]] == ["de"] and "languages that the vocabulary does not know are left out: nn" in lines
    assert manifest["source_vocabulary"] == manifest["target_vocabulary"] == Released(cache).size
    assert any(line.startswith("a row of de: __de__ ") and "=> __en__ " in line for line in lines)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a.en": "one\ntwo\n", "a.de": "eins\n"}, r"a\.de has 1 lines, and a\.en has more: they are not aligned"),
        ({"a.tmx": "<tmx><body><tu>"}, r"a\.tmx is damaged"),
        ({"a.tmx": '<!DOCTYPE t [<!ENTITY a "b">]><tmx><tu><tuv xml:lang="en"><seg>&a;</seg></tuv></tu></tmx>'}, "no text in en"),
        ({"messages.po": 'msgid "a"\nmsgstr "b"\n'}, "its language is not said"),
        ({"a.jsonl": json.dumps({"en": "one", "de": "eins"})}, r"too (small|large|few)|no pair"),
    ],
)
def test_translations_that_are_damaged_or_too_few_are_refused(tmp_path, files, reason):
    """In one line, and nothing is left of the cache."""
    (tmp_path / "mine").mkdir()
    for name, content in files.items():
        (tmp_path / "mine" / name).write_text(content)
    with pytest.raises(DataError, match=reason):
        prepare("mine", settings_from(str(tmp_path / "mine")), data_dir=tmp_path, progress=len)
    assert not (tmp_path / "caches" / "mine").exists()


def test_a_memory_of_translations_loads_nothing_from_elsewhere(tmp_path):
    """An entity that names a file is no text."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "a.tmx").write_text(
        f'<!DOCTYPE t [<!ENTITY a SYSTEM "file://{tmp_path}/secret">]><tmx><body><tu><tuv xml:lang="en"><seg>x &a;</seg></tuv>'
        '<tuv xml:lang="de"><seg>y</seg></tuv></tu></body></tmx>'
    )
    texts = own.texts_of(tmp_path / "a.tmx", {})
    assert texts and [dict(row) for row in own.rows(texts, own.files(tmp_path / "a.tmx", texts)[0])] == [{"en": "x ", "de": "y"}]


@pytest.mark.slow
@pytest.mark.integration
def test_a_mixture_is_trained_on_own_translations_and_scored(tmp_path, trained, monkeypatch):
    """Three steps, and BLEU of the checkpoint that is opened again."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    _aligned(tmp_path / "aligned")
    cache = prepare("mine", settings_from(str(tmp_path / "aligned")), progress=len)
    manifest = read_manifest(cache)
    assert contents(cache) == trained
    sizes = {f"{side}_vocab": manifest[f"{side}_vocabulary"] for side in ("source", "target")}
    scores = scores_of("gshard_m4.quickstart", tmp_path / "run", sizes, cache="mine")
    assert 2 <= scores["sentences"] <= 4 and 0 <= scores["bleu"] <= 100
