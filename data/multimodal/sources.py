"""Pictures and sounds with texts in several languages, from packages. No TensorFlow."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from data.images import emoji, pictures
from data.images.sources import PACKAGES as PICTURES
from data.labelled.splits import Item
from data.packages import archives
from data.packages.fetch import Package, npm_package
from data.speech import sound
from data.speech.sources import PACKAGES as SOUNDS

PICTURE, SOUND = 1, 2  # what a row's content is


@dataclasses.dataclass(frozen=True)
class Thing:
    """A picture or a sound: its name, its texts by language, what it is, and what returns its content (a file, or samples)."""

    name: str
    texts: Mapping[str, str]
    form: int
    read: Callable[[], bytes]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where things come from: packages, and what makes items of their files, each with the group that is in one split alone."""

    packages: tuple[Package, ...]
    read: Callable[..., list[Item]]


EMOJI_NAMES = npm_package("emojibase-data", "17.0.0", "d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a")


def named_emoji(drawn: Path, names: Path) -> list[Item]:
    """Returns Noto's emoji of 64 x 64 with their names in the languages of emojibase.

    What is shown by people of any skin and gender is one group (data.images.emoji), and so are equal pictures, such as the flags
    of territories that fly another's: what looks alike is in one split.
    """
    texts: dict[str, dict[str, str]] = {}
    for path, content in archives.members(names, r"^package/[a-z-]+/compact\.json$"):
        language = Path(path).parent.name
        for entry in json.loads(content):
            texts.setdefault(_key(entry["hexcode"]), {})[language] = entry["label"]
            for skin in entry.get("skins", ()):
                texts.setdefault(_key(skin["hexcode"]), {})[language] = skin["label"]
    items, groups = [], {}
    for path, content in archives.members(drawn, r"^package/img/google/64/.*\.png$"):
        code = Path(path).stem.upper()
        if named := texts.get(_key(code)):
            thing = Thing(code, named, PICTURE, lambda content=content: content)
            items.append(Item(groups.setdefault(pictures.content(content), emoji.look(code)), thing))
    return items


def _key(code: str) -> str:
    return "-".join(part for part in code.upper().split("-") if part != "FE0F")


def fillets(scripts: Path, sounds: Path) -> list[Item]:
    """Returns the Czech speech of Fish Fillets with its Czech and its English text, by level."""
    items = []
    for item in SOUNDS["fillets"].read(scripts, sounds):
        said = item.example.texts
        texts = {"cs": said.get("transcribe", ""), "en": said.get("translate", "")}

        def read(utterance=item.example) -> bytes:
            return sound.to_pcm(utterance.read()).astype("<i2").tobytes()

        items.append(Item(item.group, Thing(item.example.name, {k: v for k, v in texts.items() if v}, SOUND, read)))
    return items


SOURCES = {
    "emoji": Source(packages=(PICTURES["emoji"].package, EMOJI_NAMES), read=named_emoji),
    "fillets": Source(packages=SOUNDS["fillets"].packages, read=fillets),
}
