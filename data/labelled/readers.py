"""Labelled text that packages carry: Debian's index, the Brown corpus, SpamAssassin's mails. No TensorFlow.

Each reader takes the fetched package and gives its examples with what they are split by (`splits.Item`).
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

from data.labelled.splits import Item, text_key
from data.packages import archives, debian

# --- Debian's index of packages ------------------------------------------------------------------------------------

# Of Debian 12. "localization", "metapackages" and "tasks" are sections like others.
_SECTIONS = """
    admin cli-mono comm database debug devel doc editors education electronics embedded fonts games gnome gnu-r gnustep
    golang graphics hamradio haskell httpd interpreters introspection java javascript kde kernel libdevel libs lisp
    localization mail math metapackages misc net news ocaml oldlibs otherosfs perl php python ruby rust science shells
    sound tasks tex text utils vcs video web x11 xfce zope
"""
SECTIONS = tuple(_SECTIONS.split())


def debian_sections(index: Path) -> Iterator[Item]:
    """The one-line summary of a package, and the section of the archive that it is in.

    A summary that several packages share is one example, with the section that most of them are in. Items are split by
    source, whose packages (libfoo-dev, libfoo-doc) say much the same: by text, test summaries would have siblings in
    training, which is worth 1 point of accuracy to a linear model at 1,000 labels and 4.5 with all of them.
    """
    for package, label in _summaries(index):
        yield Item(package["Source"], {"text": package["Description"], "label": label})


def debian_descriptions(index: Path) -> Iterator[Item]:
    """The examples of `debian_sections`, split in the same way, each with the rest of the package's description."""
    descriptions = _descriptions(index)
    for package, label in _summaries(index):
        _, *paragraphs = descriptions[package["Description-md5"]]
        pair = "\n".join(paragraphs)
        yield Item(package["Source"], {"text": package["Description"], "pair": pair, "label": label})


def _summaries(index: Path) -> Iterator[tuple[dict[str, str], str]]:
    """The first package with each summary, and the section that most packages with this summary are in."""
    summaries: dict[str, list[dict[str, str]]] = {}
    for package in _packages(index):
        summaries.setdefault(text_key(package["Description"]), []).append(package)
    for key, packages in summaries.items():
        if key:
            yield packages[0], _commonest_section(packages)


def debian_similar(index: Path) -> Iterator[Item]:
    """The summary of a package and the first paragraph of its description: two texts that mean much the same.

    Each text comes in one pair only: to another pair of a batch it would be a wrong answer that is right.
    """
    descriptions, seen = _descriptions(index), set[str]()
    for package in _packages(index):
        summary, *paragraphs = descriptions[package["Description-md5"]]
        keys = {text_key(text) for text in (summary, *paragraphs[:1])}
        if len(keys) == 2 and not keys & seen and all(len(key.split()) >= 3 for key in keys):
            seen |= keys
            yield Item(package["Source"], {"text": summary, "pair": paragraphs[0]})


def _packages(index: Path) -> list[dict[str, str]]:
    """The packages that are in a section, by name."""
    ((_, content),) = archives.members(index, "^Packages$")
    packages = debian.parse_packages(content.decode("utf-8"))
    return sorted((p for p in packages if p["Section"] in SECTIONS), key=lambda package: package["Package"])


def _descriptions(index: Path) -> dict[str, list[str]]:
    ((_, content),) = archives.members(index, "^Translation-en$")
    return debian.parse_descriptions(content.decode("utf-8"))


def _commonest_section(packages: list[dict[str, str]]) -> str:
    counts = Counter(package["Section"] for package in packages)
    return min(counts, key=lambda section: (-counts[section], section))


# --- the Brown corpus ----------------------------------------------------------------------------------------------

GENRES = {
    "a": "news", "b": "editorial", "c": "reviews", "d": "religion", "e": "hobbies", "f": "lore", "g": "belles_lettres",
    "h": "government", "j": "learned", "k": "fiction", "l": "mystery", "m": "science_fiction", "n": "adventure",
    "p": "romance", "r": "humor",
}  # fmt: skip

# Brown's tags by universal part of speech, twelve of them (Petrov, Das and McDonald 2012). "PRT" are particles, with
# the "to" of infinitives; "." is punctuation; "X" the rest: interjections, foreign words, what has no tag ("nil").
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
    """The universal part of speech of a tag of Brown's.

    Marks of titles, headlines and citations are dropped, of two words run together ("they'll", `ppss+md`) the first
    counts, so does the word that "not" is run into (`md*`). A foreign word (`fw-`) is "X".
    """
    if tag.startswith("fw-"):
        return "X"
    first = _MARKS.sub("", tag).split("+")[0]
    return _UNIVERSAL[first if first == "*" else first.rstrip("*")]


def brown_tags(package: Path) -> Iterator[Item]:
    """The words of a sentence with their parts of speech; by document, with a share of every genre."""
    for document, sentences in _brown(package):
        for sentence in sentences:
            words, tags = zip(*sentence, strict=True)
            example = {"words": list(words), "tags": [universal_tag(tag) for tag in tags]}
            yield Item(document, example, GENRES[document[1]])


def brown_genres(package: Path) -> Iterator[Item]:
    """Consecutive sentences of a document, 180 words or a little more, and its genre; by document, as above."""
    for document, sentences in _brown(package):
        genre, chunk = GENRES[document[1]], []
        for at, sentence in enumerate(sentences, start=1):
            chunk += [{"``": '"', "''": '"'}.get(word, word) for word, _ in sentence]
            if len(chunk) >= _CHUNK or (at == len(sentences) and len(chunk) >= _CHUNK // 2):
                yield Item(document, {"text": " ".join(chunk), "label": genre}, genre)
                chunk = []


def _brown(package: Path) -> Iterator[tuple[str, list[Sentence]]]:
    """The sentences of each document, `ca01` to `cr09`; the letter after the c is the genre's."""
    for name, content in archives.members(package, r"/c[a-z]\d\d$"):
        lines = (line.split() for line in content.decode("ascii").splitlines())
        yield name[-4:], [[(word, tag) for word, _, tag in (t.rpartition("/") for t in line)] for line in lines if line]


# --- SpamAssassin's mails ------------------------------------------------------------------------------------------

_REPLY = re.compile(r"^\s*((re|fwd?|aw)\s*(\[\d+\])?\s*:|\[[^\]]*\])\s*", re.IGNORECASE)
_UNSEEN = re.compile(r"<!--.*?-->|<(style|script)\b.*?</\1>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def spam(package: Path) -> Iterator[Item]:
    """A mail's subject and body, "spam" or "ham"; by subject, so that a discussion and its quotations stay together.

    The headers are left out: received on other days by other machines, they tell the classes apart by themselves. A
    body that comes again is left out too.
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
    """A subject without the marks of replies and of mailing lists in front of it."""
    while (rest := _REPLY.sub("", subject)) != subject:
        subject = rest
    return subject


def _body(message: email.message.Message) -> str:
    """The plain text of a mail, or what a reader sees of its HTML where it has no plain text."""
    texts: dict[str, list[str]] = {"text/plain": [], "text/html": []}
    for part in message.walk():
        kind = part.get_content_type()
        if kind in texts:
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)  # a part that is text is no list of parts
            texts[kind].append(_decode(payload, part.get_content_charset()))
    plain, markup = (" ".join("\n".join(parts).split()) for parts in texts.values())
    return plain or " ".join(html.unescape(_TAG.sub(" ", _UNSEEN.sub(" ", markup))).split())


def _decode(payload: bytes, charset: str | None) -> str:
    """The text of bytes in the encoding that a mail names; where that is wrong in UTF-8 or, failing that, Latin-1."""
    for encoding in (charset or "utf-8", "utf-8"):
        with contextlib.suppress(LookupError, UnicodeDecodeError):
            return payload.decode(encoding)
    return payload.decode("latin-1")
