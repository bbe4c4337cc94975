"""Sources of utterances with their texts: packages, TFDS's folder and a user's folder. No TensorFlow."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from data.packages import archives
from data.packages.fetch import debian_package
from data.packages.locations import Location, PackageSource
from data.reading.splits import Item, divide
from data.speech import sound
from data.speech.caches import SpeechCache
from data.speech.utterances import Splits, Utterance


def open_source(settings: SpeechCache, root: Path) -> Splits:
    """Returns the "train", "validation" and "test" of a source.

    Args:
      root: the data folder, with the source's packages or TFDS's folder.

    Raises:
      DataError: a folder holds no sounds, its table is damaged, or a data set of TFDS has no sounds with texts.
      NotPreparedError: a public data set is not in <data>/tfds.
    """
    location = Location.of(settings.source)
    if location.scheme == "tfds":
        from data.speech.tfds_speech import open_tfds  # imports TensorFlow

        return open_tfds(location.name, root / "tfds", settings)
    if location.is_own:
        from data.speech.folders import open_folder

        return open_folder(location.path, settings, root)
    return divide(location.packaged(PACKAGES).read(root), validation=settings.validation, test=settings.test)


# --- a game's dialogs ------------------------------------------------------------------------------------------------

_STRING = r'"((?:[^"\\]|\\.)*)"'
_DIALOG = re.compile(rf"dialogId\({_STRING},\s*{_STRING},\s*{_STRING}\)\s*dialogStr\({_STRING}\)")
_CLIP = re.compile(r"/sound/([^/]+)/cs/([^/]+)\.ogg$")
_SCRIPT = re.compile(r"/script/([^/]+)/dialogs_cs\.lua$")


def fillets(scripts: Path, sounds: Path) -> list[Item]:
    """Returns the Czech speech of Fish Fillets, by level: 1,702 utterances with their text and its English translation. 54 more
    sounds are no words."""
    texts = {}
    for name, content in archives.members(scripts, _SCRIPT.pattern):
        if script := _SCRIPT.search(name):
            for clip, _, english, czech in _DIALOG.findall(content.decode()):
                texts[script[1], clip] = {"transcribe": _unescaped(czech), "translate": _unescaped(english)}
    return [item for item in _clips(sounds, texts) if item.example.texts]


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text).strip()


def _clips(sounds: Path, texts: Mapping[tuple[str, str], Mapping[str, str]]) -> list[Item]:
    items = []
    for name, content in archives.members(sounds, _CLIP.pattern):
        if clip := _CLIP.search(name):
            transcripts = {task: text for task, text in texts.get((clip[1], clip[2]), {}).items() if text}
            items.append(Item(clip[1], Utterance(f"{clip[1]}/{clip[2]}", "cs", transcripts, _reader(content))))
    return items


def _reader(content: bytes) -> Callable[[], np.ndarray]:
    return lambda: sound.read(content)


# --- read sentences, prompts -----------------------------------------------------------------------------------------

_SENTENCE = re.compile(r"<s> (.*) </s> \((.+)\)")


def librivox(package: Path) -> list[Item]:
    """Returns five English sentences that are read aloud, 16 kHz."""
    members = dict(archives.members(package, r"/data/librivox/(.*\.wav|transcription)$"))
    texts = next(content.decode() for name, content in members.items() if name.endswith("transcription"))
    sounds = {Path(name).stem: content for name, content in members.items() if name.endswith(".wav")}
    return [
        Item(name, Utterance(name, "en", {"transcribe": text}, _reader(sounds[name]))) for text, name in _SENTENCE.findall(texts)
    ]


def prompts(package: Path) -> list[Item]:
    """Returns the prompts of a telephone exchange, 8 kHz, one English speaker; nobody wrote down what they say."""
    items = []
    for name, content in archives.members(package, r"\.wav$"):
        items.append(Item(Path(name).stem, Utterance(Path(name).stem, "en", {}, _reader(content))))
    return items


def unlabelled(sounds: Path, prompt_sounds: Path) -> list[Item]:
    """Returns the speech of the game and the prompts, without texts: what is learned from before texts are."""
    return [*_clips(sounds, {}), *prompts(prompt_sounds)]


_GAME = debian_package("fillets-ng-data", "1.0.1-1.1", "25de89afd8b1adf7bcace8290248a6a22c89cd42300317e69000e162c032cf84")
_GAME_SPEECH = debian_package(
    "fillets-ng-data-cs", "1.0.1-1.1", "3ecef99b9456f1c80c9625c6f2418642b52d58e7167a46bad7a412db17991b14"
)
_PROMPTS = debian_package(
    "asterisk-core-sounds-en-wav", "1.6.1-1", "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d"
)
PACKAGES = {
    "fillets": PackageSource(packages=(_GAME, _GAME_SPEECH), reader=fillets),
    "librivox": PackageSource(
        packages=(
            debian_package(
                "pocketsphinx-testdata", "0.8+5prealpha+1-15", "eaeb7a01d54f20b799d1a81ef110ec544b2cb47ea006614078220737a33019f0"
            ),
        ),
        reader=librivox,
    ),
    "unlabelled": PackageSource(packages=(_GAME_SPEECH, _PROMPTS), reader=unlabelled),
}
