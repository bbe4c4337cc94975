"""Pictures and sounds with texts: caches, rows as a model gets them, and scores."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from data.config import Decode
from data.kinds import task_of
from data.multimodal.config import MultimodalData, Packing
from data.multimodal.sources import named_emoji
from data.reading.caches import read_manifest
from data.reading.examples import AugmentedSource, CacheSource
from data.task import DataError
from models.errors import UserError
from tests.helpers.archives import tarball
from tests.helpers.pictures import encoded, smooth
from tests.helpers.things import NAMES, write_things


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """30 pictures and 20 sounds with names in two languages; one picture is damaged, one sound too long."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    return write_things(tmp_path, monkeypatch)


def data(**fields) -> MultimodalData:
    return MultimodalData(
        **{"cache": "made", "batch_size": 2, "height": 16, "width": 16, "seconds": 1.6, "mels": 20, "targets_length": 24} | fields
    )


def test_a_source_and_a_language_are_a_part(cache):
    """Each thing has a row in each language; groups are in one split; what cannot be used is counted."""
    manifest = read_manifest(cache)
    assert set(manifest["parts"]) == {"seen-cs", "seen-en", "heard-cs", "heard-en"}
    left_out = sum(part["left_out"] for part in manifest["parts"].values())
    rows = sum(part["rows"] for part in manifest["parts"].values())
    assert rows + left_out + sum(manifest["held_out"].values()) >= 98 and "left_out" in manifest
    test = [json.loads(line) for line in (cache / "test.jsonl").read_text().splitlines()]
    groups = {int(e["name"].split()[1]) // 2 for e in test if e["source"] == "seen"}
    assert len([e for e in test if e["source"] == "seen"]) == 4 * len(groups)  # both of a group, in both languages


def test_rows_have_a_picture_or_a_sound(cache):
    """A missing picture or sound is zeros that nobody attends to; the text begins with its language."""
    task = task_of(data())
    source = AugmentedSource(task, CacheSource(task, cache), None)
    decoding: Any = task.decoding(cache)
    combinations = set()
    for i in range(40):
        row = source.row(i)
        sees, hears = bool(row["images_segments"].any()), bool(row["frames_segments"].any())
        assert sees != hears and row["images"].any() == sees and row["frames"].any() == hears
        ids = row["targets"][row["targets_segments"] > 0]
        language = next(code for code, id_ in decoding.languages.codes.items() if id_ == ids[0])
        assert decoding.decode(ids[1:].tolist()).split()[0] in NAMES[language]
        combinations.add((sees, language))
    assert len(combinations) == 4
    assert_array_equal(source.row(3)["images"], source.row(3)["images"])


def test_packs_hold_whole_texts(cache):
    """The texts of a pool are dealt out to its rows, each with its own picture or sound, in their order; what there is no slot
    for is left out with its text. A pack is a pure function of its index."""
    packs = data(packing=Packing(texts=4, pool=2, row_length=40, pictures=3))
    one, source = (AugmentedSource(t, CacheSource(t, cache), None) for t in map(task_of, (data(), packs)))
    left_out = 0
    for pool in range(6):
        given = [one.row(i) for i in range(8 * pool, 8 * pool + 8)]
        for row in (source.row(2 * pool), source.row(2 * pool + 1)):
            count, at = row["targets_segments"].max(), 0
            slots = [*row["images_segments"], *row["frames_segments"].max(axis=1)]
            assert sorted(filter(None, slots)) == [*range(1, count + 1)]
            for number in range(1, count + 1):
                here = row["targets_segments"] == number
                ids, hears = row["targets"][here], (row["frames_segments"] == number).any()
                name = "frames" if hears else "images"
                thing = row[name][0 if hears else list(row["images_segments"]).index(number)]
                while not (given[at]["targets"][: len(ids)].tolist() == ids.tolist() and (given[at][name][0] == thing).all()):
                    at += 1  # in the other row, or left out
                assert_array_equal(row["targets_positions"][here], range(len(ids)))
                at += 1
            left_out -= count
            assert not row["targets"][row["targets_segments"] == 0].any()
            assert not row["images"][row["images_segments"] == 0].any()
        left_out += 8
        sounds = sum(row["frames_segments"].any() for row in given)
        got = sum(source.row(2 * pool + i)["frames_segments"].any() for i in (0, 1))
        assert got == min(sounds, 2)
    assert 0 < left_out < 24
    fresh = AugmentedSource(task_of(packs), CacheSource(task_of(packs), cache), None)
    for name, array in fresh.row(5).items():
        assert_array_equal(array, source.row(5)[name])
    assert task_of(packs).held_out(cache, cache, "test", 0).rows[0]["images"].shape == (1, 16, 16, 3)
    with pytest.raises(ValueError, match="pool=0: must be 1"):
        Packing(pool=0)
    with pytest.raises(ValueError, match=r"packing\.row_length=20: a text may have 24"):
        data(packing=Packing(row_length=20))


def test_the_fingerprint_of_packs_is_that_of_runs_made_before():
    """The fields of the packing are taken as if they were the data's own, which they were."""
    assert task_of(registry.load("multimodal.quickstart").data).augmentation == "69652c8e62c06e66"


def test_sources_are_drawn_by_their_size(cache):
    """Whatever its number of languages, a source of few texts is drawn as (its texts / the other's) ^ (1 / T) says."""
    sizes = {"seen-cs": 40, "seen-en": 60, "heard-cs": 1}
    assert_allclose(task_of(data()).weights(sizes), [40, 60, 1])
    assert_allclose(task_of(data(temperature=2.0)).weights(sizes), [4, 6, 1])


def test_held_out_things_are_scored_by_source_and_language(cache):
    """Perfect names have chrF 100; the baselines are the most frequent name and that of the nearest picture."""
    decoding: Any = task_of(data()).decoding(cache)
    named = decoding.examples(cache, Decode(split="test"))
    perfect = decoding.scores(named, [e.text for e in named])
    assert perfect["all"]["exact"] == 1 and perfect["all"]["chrf"] > 99.9
    assert {"seen", "heard", "seen/cs", "heard/en"} <= set(perfect)
    encoded_one = decoding.encode(named[0])
    assert set(encoded_one) == set(decoding.source) and encoded_one["prefix"][0] == decoding.languages.codes[named[0].language]
    baselines = decoding.baselines(named, lambda examples: [])
    assert {name for name in baselines if "/" not in name} == {"most frequent text", "nearest picture"}
    assert baselines["nearest picture"]["chrf"] < 100
    assert {"nearest picture/seen/cs", "most frequent text/heard/en"} < set(baselines)
    assert "nearest picture/heard/en" not in baselines
    assert "seen" in decoding.table(perfect)
    with pytest.raises(UserError, match="did you mean 'cs'"):
        decoding.languages.prefix("cz")


def test_the_picture_that_is_nearest_to_a_model_names_another(cache):
    """With vectors of mean colours, whatever their length, a picture gets the name, in its language, of the training picture
    whose colours are most alike, each training picture asked for once. Sounds have no neighbours."""
    decoding: Any = task_of(data()).decoding(cache)
    named = decoding.examples(cache, Decode(split="test"))
    asked: list[int] = []

    def vectors(rows) -> np.ndarray:
        assert all(set(row) == {"images", "images_segments"} and row["images_segments"].all() for row in rows)
        asked.append(len(rows))
        colours = np.stack([row["images"].mean(axis=(0, 1, 2)) for row in rows])
        return colours * np.arange(1, len(rows) + 1)[:, None]

    scores = decoding.neighbours(named, vectors)
    pictures = [e for e in named if e.source == "seen"]
    manifest = read_manifest(cache)
    assert asked == [manifest["parts"]["seen-cs"]["rows"], len(pictures)]
    task: Any = task_of(data())
    parts = {code: task.stored_rows(cache, f"train/seen-{code}", asked[0]) for code in NAMES}
    for e in pictures[:4]:
        own = task.stored_rows(cache, "test", len(named))[e.at]["images"].mean(axis=(0, 1, 2))
        rows = [parts[e.language][i] for i in range(asked[0])]
        known = np.stack([row["images"].mean(axis=(0, 1, 2)) for row in rows])
        angles = known @ own / np.linalg.norm(known, axis=1)
        ids = rows[int(angles.argmax())]["targets"]
        text = decoding.decode(ids[ids > 0][1:].tolist())
        alone = decoding.neighbours([e], vectors)
        assert alone["nearest to the model"] == decoding.scores([e], [text])["all"]
    assert set(scores) == {"nearest to the model", "nearest to the model/seen/cs", "nearest to the model/seen/en"}


def test_a_limit_takes_all_sources_and_languages(cache):
    """Few examples are spread over the split, as many of each source."""
    decoding: Any = task_of(data()).decoding(cache)
    few = decoding.examples(cache, Decode(split="test", limit=6))
    assert len(few) == 6 and len({e.language for e in few}) == 2 and [e.source for e in few] == ["seen"] * 3 + ["heard"] * 3


def test_rows_that_do_not_fit_are_refused(cache):
    """Pictures and frames of other sizes than the model's, texts and sounds of other lengths than the cache's."""
    manifest = read_manifest(cache)
    model = registry.load("multimodal.quickstart").model
    good = data(height=64, width=64, mels=80)
    task_of(good).check(manifest, model)
    for change, message in (
        (dict(height=32, width=32), "32 x 32 x 3; the model sees 64 x 64 x 3"),
        (dict(mels=64), "frames of 80"),
        (dict(targets_length=25), "targets_length=25"),
        (dict(seconds=0.8), "up to 1.6 s"),
    ):
        with pytest.raises(DataError, match=message):
            task_of(dataclasses.replace(good, **change)).check(manifest, model)
    with pytest.raises(ValueError, match="both sides or none"):
        data(height=0)


def test_emoji_that_look_alike_are_one_group(tmp_path):
    """A hand in two skin tones is one group, and so are flags with the same pixels, whatever the file; names are joined by code
    points whatever the variation selector."""
    codes = ["270b", "270b-1f3fb", "270b-1f3ff", "1f1e8-1f1ff", "1f1e8-1f1ed", "1f1f3-1f1f4", "1f1e7-1f1fb", "2764-fe0f"]
    files = {code: encoded(smooth(8, 8, seed)) for seed, code in enumerate(codes)}
    files["1f1e7-1f1fb"] = encoded(smooth(8, 8, codes.index("1f1f3-1f1f4")), compress_level=0)
    assert files["1f1e7-1f1fb"] != files["1f1f3-1f1f4"]
    pictures = tarball(tmp_path / "p.tgz", {f"package/img/google/64/{code}.png": file for code, file in files.items()})
    skins = [{"hexcode": "270B-1F3FB", "label": "light"}, {"hexcode": "270B-1F3FF", "label": "dark"}]
    entries = [
        {"hexcode": "270B", "label": "hand", "skins": skins},
        {"hexcode": "2764", "label": "heart"},
        {"hexcode": "1F1E8-1F1FF", "label": "flag: Czechia"},
        {"hexcode": "1F1E8-1F1ED", "label": "flag: Switzerland"},
        {"hexcode": "1F1F3-1F1F4", "label": "flag: Norway"},
        {"hexcode": "1F1E7-1F1FB", "label": "flag: Bouvet Island"},
    ]
    names = tarball(tmp_path / "n.tgz", {"package/en/compact.json": json.dumps(entries), "package/data.json": "[]"})
    items = named_emoji(pictures, names)
    assert {item.example.texts["en"] for item in items} == {
        "hand",
        "light",
        "dark",
        "heart",
        "flag: Czechia",
        "flag: Switzerland",
        "flag: Norway",
        "flag: Bouvet Island",
    }
    groups: dict[str, set[str]] = {}
    for item in items:
        groups.setdefault(item.group, set()).add(item.example.texts["en"])
    assert sorted(map(sorted, groups.values())) == [
        ["dark", "hand", "light"],
        ["flag: Bouvet Island", "flag: Norway"],
        ["flag: Czechia"],
        ["flag: Switzerland"],
        ["heart"],
    ]


def test_random_rows_have_every_combination():
    """Pictures, sounds, and both, with texts of different lengths; the same seed gives the same row."""
    config, model = data(cache=""), registry.load("multimodal.quickstart").model.tiny()
    rows = [task_of(config).synthetic(np.random.default_rng(seed), model) for seed in range(30)]
    assert {(bool(r["images_segments"].any()), bool(r["frames_segments"].any())) for r in rows} == {
        (True, False),
        (False, True),
        (True, True),
    }
