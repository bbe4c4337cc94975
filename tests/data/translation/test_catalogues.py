import functools
import io
import json
import tarfile
import zipfile
from typing import Literal

import pytest

from data.packages import archives
from data.translation import catalogue_formats as formats
from data.translation import catalogues, sources
from data.translation.catalogues import Source
from data.translation.languages import normalise
from tests.helpers.catalogues import po_file, write_wheel


@pytest.mark.parametrize(
    "code, language",
    [
        ("pt_BR", "pt"),
        ("sw", "sw"),
        ("zh_CN", "zh-Hans"),
        ("zh", "zh-Hans"),
        ("zh-TW", "zh-Hant"),
        ("zh_Hant_HK", "zh-Hant"),
        ("zh-yue", "yue"),
        ("sr", "sr"),
        ("sr_Cyrl", "sr"),
        ("sr@latin", "sr-Latn"),
        ("sr@ijekavianlatin", "sr-Latn"),
        ("ca@valencia", "ca"),
        ("pa_Arab_PK", "pa-Arab"),
        ("ja-Hira", "ja-Hira"),
        ("iw", "he"),
        ("no", "nb"),
        ("es_419.UTF-8", "es"),
        ("en_GB", "en"),
        ("en@shaw", "en-x"),
    ],
)
def test_one_code_a_language(code, language):
    """Regions and old codes are merged into their language, scripts are kept apart."""
    assert normalise(code) == language


@pytest.mark.parametrize(
    "source, english, why_not",
    [
        ("Save", "Save", "not translated"),
        ("", "Save", "empty"),
        ("→ 3", "Go on", "no letters in the source"),
        ("Hifadhi", "%d", "no word in the English"),
        ("Hifadhi", "label_save_all", "a key in the English's place"),
        ("crwdns1:0", "Save all", "Crowdin's pseudo-language"),
        ("h" * 60, "Save", "lengths too unlike"),
    ],
)
def test_what_is_no_pair(source, english, why_not):
    """Strings that teach no translation are refused, each for its own reason."""
    assert not catalogues.is_pair(source, english), why_not
    assert catalogues.is_pair("Hifadhi", "Save")


@pytest.mark.parametrize(
    "raw, accelerator, cleaned",
    [
        ("two\n  lines ", "", "two lines"),
        ("salt &amp; pepper", "", "salt & pepper"),
        ("&File", "&", "File"),
        ("R&amp;D", "&", "R&D"),
        ("ファイル(&F)", "&", "ファイル"),
        ("_Open", "_", "Open"),
        ("開く(_O)", "_", "開く"),
        ("&File", "", "&File"),
    ],
)
def test_clean(raw, accelerator, cleaned):
    """White space, entities and the shortcut marks of menus are cleaned away, the text itself is not."""
    assert catalogues.clean(raw, accelerator) == cleaned


def test_read_merges_regions_and_repetitions(tmp_path):
    """A triple of language, source and English counts once, whatever region or package it comes from."""
    one = {"Save": "Guardar", "Open": "Abrir"}
    package = write_wheel(
        tmp_path / "some-1.0-py3-none-any.whl",
        {
            "some/locale/es/LC_MESSAGES/django.po": po_file(one),
            "some/locale/es_MX/LC_MESSAGES/django.po": po_file({**one, "Open": "Ábrelo"}),
            "some/locale/en_GB/LC_MESSAGES/django.po": po_file({"Color": "Colour"}),
            "some/readme.po": po_file({"Not": "Hapana"}),
        },
    )
    pairs = catalogues.read([Source(package, sources.po_entries)] * 2, tmp_path)
    assert pairs == [("some", "es", "Guardar", "Save"), ("some", "es", "Abrir", "Open"), ("some", "es", "Ábrelo", "Open")]


def test_only_the_kept_languages_are_read(tmp_path, monkeypatch):
    """A catalogue of named languages has the pairs of all languages that are its own, and parses no file of others."""
    folders = {"es": "Guardar", "pt_BR": "Salvar", "sw": "Hifadhi", "en_GB": "Save it"}
    po = {f"some/locale/{code}/LC_MESSAGES/django.po": po_file({"Save": text}) for code, text in folders.items()}
    keyed = {f"some/{code}.json": json.dumps({"save": text}) for code, text in (folders | {"en": "Save all"}).items()}
    package = write_wheel(tmp_path / "some-1.0-py3-none-any.whl", po | keyed)
    by_key = functools.partial(sources.keyed_entries, pattern=r"^some/(?P<part>)(?P<language>[^/.]+)\.json$")
    both = [Source(package, sources.po_entries), Source(package, by_key)]
    everything = catalogues.read(both, tmp_path)
    read = list[str]()
    parse = formats.parse_po
    monkeypatch.setattr(formats, "parse_po", lambda text: parse(read.append(text) or text))
    kept = catalogues.read(both, tmp_path, ("es", "pt"))
    assert kept == [pair for pair in everything if pair.language in ("es", "pt")] and len(kept) == 4 < len(everything)
    assert not any("Hifadhi" in text for text in read)


def test_archives_are_alike(tmp_path):
    """A file reads the same out of a wheel, an npm tarball and a Debian package."""
    content = b"Hifadhi\n"
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("x/sw.po", content)
        wheel.writestr("x/other", b"")

    def tar(mode: Literal["w:gz", "w:xz"]) -> bytes:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode=mode) as archive:
            info = tarfile.TarInfo("x/sw.po")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        return packed.getvalue()

    def ar(*files: tuple[str, bytes]) -> bytes:
        packed = b"!<arch>\n"
        for name, data in files:
            packed += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data
            packed += b"\n" * (len(packed) % 2)
        return packed

    (tmp_path / "a.tgz").write_bytes(tar("w:gz"))
    (tmp_path / "a.deb").write_bytes(ar(("debian-binary", b"2.0"), ("data.tar.xz/", tar("w:xz"))))
    for name in ("a.whl", "a.tgz", "a.deb"):
        assert list(archives.members(tmp_path / name, r"\.po$")) == [("x/sw.po", content)], name
    with pytest.raises(ValueError, match=r"a\.rpm"):
        archives.members(tmp_path / "a.rpm", "")
