"""A cache of small pictures and sounds with names in two languages."""

from pathlib import Path

import pytest

from data.multimodal import sources
from data.multimodal.caches import MultimodalCache
from data.multimodal.sources import PICTURE, SOUND, Clip
from data.packages.locations import PackageSource
from data.prepare import prepare
from data.reading.splits import Item
from data.speech.sound import to_pcm
from tests.helpers.pictures import encoded, smooth
from tests.helpers.sounds import tone

NAMES = {"cs": ("kočka", "pes", "ryba"), "en": ("cat", "dog", "fish")}


def write_things(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache `made` of 30 pictures and 20 sounds, one picture damaged and one sound too long, in the data folder `root`."""

    def texts(n: int) -> dict[str, str]:
        return {language: f"{words[n % 3]} {n % 5}" for language, words in NAMES.items()}

    def seen() -> list[Item]:
        files = [encoded(smooth(12, 12, n)) for n in range(30)] + [b"damaged"]
        return [
            Item(f"group {n // 2}", Clip(f"picture {n}", texts(n), PICTURE, lambda file=file: file))
            for n, file in enumerate(files)
        ]

    def heard() -> list[Item]:
        def read(n: int) -> bytes:
            return to_pcm(tone(0.5 if n else 3.0, 200 + 10 * n)).astype("<i2").tobytes()

        return [Item(f"level {n}", Clip(f"sound {n}", texts(n), SOUND, lambda n=n: read(n))) for n in range(20)]

    monkeypatch.setitem(sources.SOURCES, "seen", PackageSource(packages=(), reader=seen))
    monkeypatch.setitem(sources.SOURCES, "heard", PackageSource(packages=(), reader=heard))
    settings = MultimodalCache(
        sources=("seen", "heard"), seconds=1.6, targets_length=24, vocabulary_size=320, validation=0.1, test=0.2
    )
    return prepare("made", settings, data_dir=root, progress=lambda line: None)
