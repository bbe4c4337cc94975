"""Public sets prepared by Apache Beam: the bytes are those that threads give, on several runners, also after a kill.

Beam has an environment of its own: make setup DEVICE=beam, then .venv-beam/bin/python -m pytest tests/data/test_beam.py.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("apache_beam", reason="Apache Beam is not installed in this environment: make setup DEVICE=beam")

from data.config import CacheConfig
from data.images import maker as images
from data.packages.tfds import Part
from data.prepare import PREPARED, prepare, settings_from
from data.reading.caches import read_manifest
from data.speech import maker as speech
from data.text import maker as text
from tests.helpers.catalogues import WORDS
from tests.helpers.pictures import smooth
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration]
TEXT = {"tokenizer": "bpe_300", "length": 32}
CACHES: dict[str, CacheConfig] = {
    "c4": dataclasses.replace(PREPARED["c4_t5_568"], **TEXT),
    "mc4": dataclasses.replace(PREPARED["mc4_de_1024"], **TEXT),
    "wikipedia": dataclasses.replace(PREPARED["wikipedia_512"], **TEXT),
    "librispeech": PREPARED["librispeech"],
    "imagenet": PREPARED["imagenet2012"],
}
SIZE = 60  # training examples of each set, in three files


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A data folder with stand-ins of the sets under their TFDS names."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.dataset_builders.adhoc_builder import AdhocBuilder

    root, features = tmp_path_factory.mktemp("public"), tfds.features
    rng = np.random.default_rng(0)

    def store(name: str, config: str, version: str, fields: dict, example, splits: dict[str, int]) -> None:
        made = AdhocBuilder(
            name=name,
            config=config or None,
            version=version,
            data_dir=root / "tfds",
            features=features.FeaturesDict(fields),
            split_datasets={split: [(n, example(split, n)) for n in range(size)] for split, size in splits.items()},
        )
        made.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))

    def sentence() -> str:
        return " ".join(rng.choice(WORDS, 30))

    def page(split: str, n: int) -> dict:
        return {"text": f"{split} {n}. {sentence()}"}

    words = {"text": features.Text()}
    store("c4", "en", "3.1.0", words, page, {"train": SIZE, "validation": 6})
    store("c4", "multilingual", "3.1.0", words, page, {"de": SIZE, "de-validation": 6, "fr": 3, "fr-validation": 3})
    store("wikipedia", "20230601.en", "1.0.0", words, page, {"train": SIZE})

    def utterance(split: str, n: int) -> dict:
        samples = rng.integers(-9000, 9000, 4000 + 100 * n).astype(np.int64)
        return {"speech": samples, "text": sentence().upper(), "id": f"{split}-{n}"}

    spoken = {"speech": features.Audio(sample_rate=16_000), "text": features.Text(), "id": np.str_}
    splits = {"train_clean100": SIZE // 2, "train_other500": SIZE // 2, "dev_clean": 3, "test_clean": 3}
    store("librispeech", "", "2.1.0", spoken, utterance, splits)

    def photograph(split: str, n: int) -> dict:
        return {"image": smooth(20, 30, n), "label": n % 5, "file_name": f"{split}_{n}.JPEG"}

    labels = features.ClassLabel(names=[f"n{n:08d}" for n in range(5)])
    pictures = {"image": features.Image(encoding_format="jpeg"), "label": labels, "file_name": features.Text()}
    store("imagenet2012", "", "5.1.0", pictures, photograph, {"train": SIZE, "validation": 10, "test": 3})
    return root


@pytest.fixture(scope="module", autouse=True)
def small_slices():
    """Makes slices of seven items, so that sets of tens have several."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (text, speech, images):
            patch.setattr(module, "_WINDOW", 7)
        yield


@pytest.fixture(scope="module")
def by_threads(root) -> dict[str, dict]:
    """The manifests of caches that are made without Beam."""
    return {name: made(root, name, settings) for name, settings in CACHES.items()}


def made(root: Path, name: str, settings: CacheConfig, *options: str, said: list[str] | None = None) -> dict:
    """The manifest of a cache that is made anew; with options, by Beam."""
    folder = root / "caches" / name
    (folder / "manifest.json").unlink(missing_ok=True)
    said = [] if said is None else said
    prepare(name, settings, data_dir=root, progress=said.append, beam=list(options) or None)
    assert bool(options) == any(line.startswith("beam: ") for line in said)
    assert not list(root.glob(f"caches/.{name}.*"))  # nothing is left beside the cache
    return read_manifest(folder)


def test_slices_are_the_set_in_order(root):
    """Slices of sets in three files, and of one split after another, are the set."""
    part = Part(root / "tfds/librispeech/2.1.0", "train_other500+train_clean100[10:20]")
    names = [example["id"] for example in part]
    assert len(part) == len(names) == 40 and names[0].startswith(b"train_other500") and names[30].startswith(b"train_clean")
    assert [e["id"] for at in range(0, 40, 7) for e in part.slice(at, min(at + 7, 40))] == names


@pytest.mark.parametrize("name", CACHES)
def test_the_direct_runner_gives_the_bytes_of_threads(root, by_threads, name):
    assert made(root, name, CACHES[name], "--runner=DirectRunner") == by_threads[name]
    (counts,) = by_threads[name]["parts"].values()
    assert counts.get("documents", counts["examples"]) in range(SIZE - 2, SIZE + 1)  # some are held out


def test_two_processes_of_the_direct_runner_give_the_same_bytes(root, by_threads):
    options = ["--runner=DirectRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    for name in ("c4", "librispeech"):
        assert made(root, name, CACHES[name], *options) == by_threads[name]


def test_two_workers_of_dask_give_the_same_bytes(root, by_threads):
    """Another runner, on a scheduler and two worker processes over loopback."""
    from distributed import LocalCluster  # pyright: ignore[reportMissingImports]

    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        options = ["--runner=apache_beam.runners.dask.dask_runner.DaskRunner"]
        options.append(f"--dask_client_address={cluster.scheduler_address}")
        for name in ("c4", "imagenet"):
            manifest = made(root, name, CACHES[name], *options)
            assert manifest == by_threads[name]


START = """
import sys
from pathlib import Path
from data.text import maker as cache
from tests.data.test_beam import CACHES, prepare
cache._WINDOW = 1
prepare("c4", CACHES["c4"], data_dir=Path(sys.argv[1]), beam=["--runner=DirectRunner"])
"""


def test_a_killed_preparation_goes_on(root, by_threads, monkeypatch):
    """Slices that were complete are not read again, and the bytes are the same."""
    (root / "caches/c4/manifest.json").unlink()
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, "-c", START, str(root)], stdout=nowhere, stderr=nowhere)

    def slices() -> list[Path]:
        return list(root.glob("caches/.c4.beam-*/*/[0-9]*"))

    wait_until(lambda: len(slices()) >= 2, "no slice is written", every=0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = len(slices())
    assert 2 <= kept < SIZE - 1
    monkeypatch.setattr(text, "_WINDOW", 1)
    said: list[str] = []
    prepare("c4", CACHES["c4"], data_dir=root, progress=said.append, beam=["--runner=DirectRunner"])
    assert any(line.startswith(f"beam: {SIZE - kept - 1} of {SIZE - 1} ") for line in said), said
    manifest = read_manifest(root / "caches/c4")
    assert manifest["files"] == by_threads["c4"]["files"] and not slices()


@pytest.mark.parametrize("options", [[], ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]])
def test_a_users_own_text_gives_the_bytes_of_threads(root, options):
    """A source of --from, here a folder of several tables, takes the same route."""
    rng, folder = np.random.default_rng(1), root / "own"
    folder.mkdir(exist_ok=True)
    for n in range(4):
        texts = [f"{n} {i}. {' '.join(rng.choice(WORDS, 30))}" for i in range(SIZE // 4)]
        (folder / f"{n}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    settings = dataclasses.replace(settings_from(str(folder)), vocabulary_size=300, length=32)
    by_threads = made(root, "mine", settings)
    assert made(root, "mine", settings, "--runner=DirectRunner", *options) == by_threads
    assert by_threads["parts"]["all"]["documents"] == SIZE - 6  # a tenth is held out


def test_a_source_that_no_pipeline_reads_is_said(root):
    """Tables of inputs and targets are read in order by one process, and --beam changes nothing."""
    (root / "written.jsonl").write_text(
        "".join(json.dumps({"inputs": f"{WORDS[n]} a", "targets": "b"}) + "\n" for n in range(30))
    )
    said: list[str] = []
    made(root, "written", settings_from(str(root / "written.jsonl")), "--runner=DirectRunner", said=said)
    assert "beam: no pipeline reads the source of written; this process has read it" in said
