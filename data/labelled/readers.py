"""Reads labelled text from packages: Debian's index, the Brown corpus, SpamAssassin's mails. No TensorFlow.

Each reader takes a fetched package and yields its examples with the group by which they are split (`splits.Item`).
"""

import contextlib
import email
import email.errors
import email.header
import email.message
import html
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from data.packages import archives, debian
from data.reading.splits import Item, text_key

# --- Debian's index of packages ------------------------------------------------------------------------------------

# The sections of Debian 12; "localization", "metapackages" and "tasks" are sections like the others.
_SECTIONS = """
    admin cli-mono comm database debug devel doc editors education electronics embedded fonts games gnome gnu-r gnustep
    golang graphics hamradio haskell httpd interpreters introspection java javascript kde kernel libdevel libs lisp
    localization mail math metapackages misc net news ocaml oldlibs otherosfs perl php python ruby rust science shells
    sound tasks tex text utils vcs video web x11 xfce zope
"""
SECTIONS = tuple(_SECTIONS.split())


def debian_sections(index: Path) -> Iterator[Item]:
    """Yields the one-line summary of a package, labelled with its section of the archive.

    A summary that several packages share is one example, with the section that most of them are in. Items are split by
    source, whose packages (libfoo-dev, libfoo-doc) have similar summaries: split by text, test summaries would have near
    copies in training, which adds 1 point to a linear model's accuracy at 1,000 labels and 4.5 with all of them.
    """
    for package, label in _summaries(index):
        yield Item(package["Source"], {"text": package["Description"], "label": label})


def debian_descriptions(index: Path) -> Iterator[Item]:
    """Yields the examples of `debian_sections`, split in the same way, each with the rest of the package's description."""
    descriptions = _descriptions(index)
    for package, label in _summaries(index):
        _, *paragraphs = descriptions[package["Description-md5"]]
        pair = "\n".join(paragraphs)
        yield Item(package["Source"], {"text": package["Description"], "pair": pair, "label": label})


def _summaries(index: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Yields the first package with each summary, and the section that most packages with this summary are in."""
    summaries: dict[str, list[dict[str, str]]] = {}
    for package in _packages(index):
        summaries.setdefault(text_key(package["Description"]), []).append(package)
    for key, packages in summaries.items():
        if key:
            yield packages[0], _commonest_section(packages)


def debian_similar(index: Path) -> Iterator[Item]:
    """Yields the summary of a package and the first paragraph of its description: two texts of similar meaning.

    Each text is in one pair only; otherwise it would be a false negative for another pair of the batch.
    """
    descriptions, seen = _descriptions(index), set[str]()
    for package in _packages(index):
        summary, *paragraphs = descriptions[package["Description-md5"]]
        keys = {text_key(text) for text in (summary, *paragraphs[:1])}
        if len(keys) == 2 and not keys & seen and all(len(key.split()) >= 3 for key in keys):
            seen |= keys
            yield Item(package["Source"], {"text": summary, "pair": paragraphs[0]})


def _packages(index: Path) -> list[dict[str, str]]:
    """Returns the packages that have a section, sorted by name."""
    ((_, content),) = archives.members(index, "^Packages$")
    packages = debian.parse_packages(content.decode("utf-8"))
    return sorted((package for package in packages if package["Section"] in SECTIONS), key=lambda package: package["Package"])


def _descriptions(index: Path) -> dict[str, list[str]]:
    ((_, content),) = archives.members(index, "^Translation-en$")
    return debian.parse_descriptions(content.decode("utf-8"))


def _commonest_section(packages: list[dict[str, str]]) -> str:
    counts = Counter(package["Section"] for package in packages)
    return min(counts, key=lambda section: (-counts[section], section))


# --- the Brown corpus ----------------------------------------------------------------------------------------------

GENRES = {
    "a": "news",
    "b": "editorial",
    "c": "reviews",
    "d": "religion",
    "e": "hobbies",
    "f": "lore",
    "g": "belles_lettres",
    "h": "government",
    "j": "learned",
    "k": "fiction",
    "l": "mystery",
    "m": "science_fiction",
    "n": "adventure",
    "p": "romance",
    "r": "humor",
}

# Brown's tags by universal part of speech, twelve of them (Petrov, Das and McDonald 2012). "PRT" are particles, with
# the "to" of infinitives; "." is punctuation; "X" everything else: interjections, foreign words, words without a tag ("nil").
TAGS = {
    ".": ". , : ( ) `` '' ' --",
    "ADJ": "ap ap$ jj jj$ jjr jjs jjt od",
    "ADP": "in cs",
    "ADV": "* ql qlp rb rb$ rbr rbt rn wql wrb",
    "CONJ": "cc",
    "DET": "abl abn abx at dt dt$ dti dts dtx wdt",
    "NOUN": "nn nn$ nns nns$ np np$ nps nps$ nr nr$ nrs",
    "NUM": "cd cd$",
    "PRON": "ex pn pn$ pp$ pp$$ ppl ppls ppo pps ppss wp$ wpo wps",
    "PRT": "rp to",
    "VERB": "be bed bedz beg bem ben ber bez do dod doz hv hvd hvg hvn hvz md vb vbd vbg vbn vbz",
    "X": "nil uh",
}
_UNIVERSAL = {tag: universal for universal, tags in TAGS.items() for tag in tags.split()}
_MARKS = re.compile(r"(-(tl|hl|nc))+$")  # in a title, in a headline, cited
_CHUNK = 180  # words of a genre's example, about 220 tokens

Sentence = list[tuple[str, str]]  # words with their tags


def universal_tag(tag: str) -> str:
    """Returns the universal part of speech of one of Brown's tags.

    Marks of titles, headlines and citations are dropped. A contraction ("they'll", `ppss+md`) has the tag of its first
    word, also where the second is "not" (`md*`). A foreign word (`fw-`) is "X".
    """
    if tag.startswith("fw-"):
        return "X"
    first = _MARKS.sub("", tag).split("+")[0]
    return _UNIVERSAL[first if first == "*" else first.rstrip("*")]


def brown_tags(package: Path) -> Iterator[Item]:
    """Yields the words of a sentence with their parts of speech; split by document, with a share of every genre."""
    for document, sentences in _brown(package):
        for sentence in sentences:
            words, tags = zip(*sentence, strict=True)
            example = {"words": list(words), "tags": [universal_tag(tag) for tag in tags]}
            yield Item(document, example, GENRES[document[1]])


def brown_genres(package: Path) -> Iterator[Item]:
    """Yields consecutive sentences of a document, about 180 words, with its genre; split by document, as above."""
    for document, sentences in _brown(package):
        genre, chunk = GENRES[document[1]], []
        for at, sentence in enumerate(sentences, start=1):
            chunk += [{"``": '"', "''": '"'}.get(word, word) for word, _ in sentence]
            if len(chunk) >= _CHUNK or (at == len(sentences) and len(chunk) >= _CHUNK // 2):
                yield Item(document, {"text": " ".join(chunk), "label": genre}, genre)
                chunk = []


def _brown(package: Path) -> Iterator[tuple[str, list[Sentence]]]:
    """Yields the name and sentences of each document, `ca01` to `cr09`; the letter after the c is the genre's."""
    for name, content in archives.members(package, r"/c[a-z]\d\d$"):
        lines = (line.split() for line in content.decode("ascii").splitlines())
        yield name[-4:], [[(word, tag) for word, _, tag in (t.rpartition("/") for t in line)] for line in lines if line]


# --- SpamAssassin's mails ------------------------------------------------------------------------------------------

_REPLY = re.compile(r"^\s*((re|fwd?|aw)\s*(\[\d+\])?\s*:|\[[^\]]*\])\s*", re.IGNORECASE)
_UNSEEN = re.compile(r"<!--.*?-->|<(style|script)\b.*?</\1>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def spam(package: Path) -> Iterator[Item]:
    """Yields a mail's subject and body, "spam" or "ham"; split by subject, so that a discussion is in one split.

    The headers are left out, because their dates and machines alone tell the classes apart. Repeated bodies are left
    out too.
    """
    seen = set[str]()
    for name, content in archives.members(package, r"/data/[a-z]+-ham-\d/.*\.txt$|/data/spam-\d/.*\.txt$"):
        message = email.message_from_bytes(content)
        subject, body = _subject(message), _body(message)
        key = text_key(body)
        if key and key not in seen:
            seen.add(key)
            label = "spam" if "/data/spam-" in name else "ham"
            yield Item(text_key(_thread(subject)) or key, {"text": f"{subject}\n{body}".strip(), "label": label})


def _subject(message: email.message.Message) -> str:
    raw = message.get("Subject", "")
    try:
        parts = email.header.decode_header(raw)
    except email.errors.HeaderParseError:  # base64 that isn't
        parts = [(str(raw), None)]
    decoded = (part if isinstance(part, str) else _decode(part, charset) for part, charset in parts)
    return " ".join("".join(decoded).split())


def _thread(subject: str) -> str:
    """Returns a subject without the prefixes of replies and mailing lists."""
    while (stripped := _REPLY.sub("", subject)) != subject:
        subject = stripped
    return subject


def _body(message: email.message.Message) -> str:
    """Returns the plain text of a mail, or the visible text of its HTML if it has no plain text."""
    texts: dict[str, list[str]] = {"text/plain": [], "text/html": []}
    for part in message.walk():
        kind = part.get_content_type()
        if kind in texts:
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)  # a text part has no parts of its own
            texts[kind].append(_decode(payload, part.get_content_charset()))
    plain, markup = (" ".join("\n".join(parts).split()) for parts in texts.values())
    return plain or " ".join(html.unescape(_TAG.sub(" ", _UNSEEN.sub(" ", markup))).split())


def _decode(payload: bytes, charset: str | None) -> str:
    """Decodes bytes in the encoding that a mail names; if that fails, in UTF-8, and then in Latin-1."""
    for encoding in (charset or "utf-8", "utf-8"):
        with contextlib.suppress(LookupError, UnicodeDecodeError):
            return payload.decode(encoding)
    return payload.decode("latin-1")
