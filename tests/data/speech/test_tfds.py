"""Public sets of speech by their TFDS names, in stand-ins that are stored under those names; these import TensorFlow."""

import numpy as np
import pytest

from data.packages.tfds import NotPreparedError
from data.prepare import prepare
from data.reading.caches import read_manifest
from data.speech.caches import ENTRIES, SpeechCache
from data.speech.sources import open_source
from data.task import DataError
from tests.helpers.sounds import tone

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    """A data folder with stand-ins: LibriSpeech with its splits, Common Voice of 48 kHz, and a set without texts."""
    import tensorflow_datasets as tfds

    root, features = tmp_path_factory.mktemp("public"), tfds.features

    def store(name: str, version: str, fields: dict, example, sizes: dict[str, int], config: str | None = None) -> None:
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            version=version,
            config=config,
            data_dir=root / "tfds",
            features=features.FeaturesDict(fields),
            split_datasets={split: [(n, example(n, split)) for n in range(size)] for split, size in sizes.items()},
        )

    words = ("YES", "NO", "YES NO")

    def read(n: int, split: str) -> dict:
        pcm = (tone(0.5 + 0.1 * (n % 3), 200 + 10 * n + list(sizes).index(split)) * 32767).astype(np.int64)
        return {"speech": pcm, "text": words[n % 3], "speaker_id": n, "chapter_id": 0, "id": f"{split}-{n}"}

    libri = {
        "speech": features.Audio(sample_rate=16_000),
        "text": features.Text(),
        "speaker_id": np.int64,
        "chapter_id": np.int64,
        "id": features.Text(),
    }
    sizes = {"train_clean100": 6, "train_other500": 6, "dev_clean": 3, "dev_other": 2, "test_clean": 3, "test_other": 2}
    store("librispeech", "2.1.0", libri, read, sizes)

    def donated(n: int, split: str) -> dict:
        return {
            "voice": (tone(0.5, 200, 48_000) * 32767).astype(np.int64),
            "sentence": ("Ano.", "Ne!")[n % 2],
            "client_id": split,
        }

    common = {"voice": features.Audio(), "sentence": features.Text(), "client_id": features.Text()}
    store("common_voice", "2.0.0", common, donated, {"train": 8, "validation": 2, "test": 2}, config="cs")
    store("sounds", "1.0.0", {"audio": features.Audio()}, lambda n, split: {"audio": np.zeros(9, np.int64)}, {"train": 1})
    return root


def test_librispeech_by_its_name(public):
    """All of its training splits are one; the clean ones are held out; texts are written in letters."""
    cache = prepare("librispeech", ENTRIES["librispeech"], data_dir=public, progress=lambda line: None)
    manifest = read_manifest(cache)
    assert manifest["parts"]["transcribe"]["examples"] == 12 and manifest["held_out"] == {"validation": 3, "test": 3}
    assert manifest["parts"]["transcribe"]["rows"] == 6  # two utterances a row
    spoken = list(open_source(ENTRIES["librispeech"], public)["test"])
    said = {u.name: u for u in spoken}
    assert set(said) == {f"test_clean-{n}" for n in range(3)} and said["test_clean-0"].texts["transcribe"] == "YES"
    assert abs(len(said["test_clean-0"].read()) - 8000) <= 1


def test_common_voice_by_its_name(public):
    """Its sounds of 48 kHz become 16 kHz."""
    spoken = list(open_source(ENTRIES["common_voice_cs"], public)["train"])
    assert len(spoken) == 8 and abs(len(spoken[0].read()) - 8000) <= 1 and spoken[0].language == "cs"


def test_other_sets_are_refused(public):
    """A set without texts, and one that is not there, at once and without a network."""
    with pytest.raises(DataError, match="expected a sound and its text"):
        open_source(SpeechCache(source="tfds:sounds:1.0.0"), public)
    with pytest.raises(NotPreparedError, match=r"librispeech:9\.0\.0 is not prepared"):
        open_source(SpeechCache(source="tfds:librispeech:9.0.0"), public)
