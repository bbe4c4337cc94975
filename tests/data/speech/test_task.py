"""Caches of speech from a user's folder, and rows as a model gets them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from configs import registry
from data.config import Decode
from data.decoding import HasSounds
from data.kinds import task_of
from data.prepare import prepare, settings_from
from data.reading.caches import examples, read_manifest
from data.reading.examples import AugmentedSource, CacheSource
from data.speech import metrics, sound, spectra
from data.speech.caches import SpeechCache
from data.speech.config import SpanMasks, SpecAugment, SpeechData
from data.speech.task import SpeechTask
from data.task import DataError
from tests.helpers.sounds import bad_sounds, tone, write_sounds

WORDS = ("ano", "ne", "ano ne", "ne ano ano", "ne ne")


def folder(root: Path, count: int = 30, **changes) -> Path:
    rows = [
        {"file_name": f"{n:02d}.wav", "text": WORDS[n % 5], "seconds": 0.4 + 0.05 * (n % 7), "language": "cs"} | changes
        for n in range(count)
    ]
    return write_sounds(root / "sounds", rows)


def made(root: Path, **fields) -> Path:
    settings = dataclasses.replace(settings_from(str(root / "sounds")), **{"seconds": 1.6, "targets_length": 24} | fields)
    return prepare("made", settings, data_dir=root, progress=lambda line: None)


def data(**fields) -> SpeechData:
    return SpeechData(**{"cache": "made", "batch_size": 2, "seconds": 1.6, "targets_length": 24, "mels": 20} | fields)


def rows_of(cache: Path, config: SpeechData, count: int) -> list:
    task = task_of(config)
    source = AugmentedSource(task, CacheSource(task, cache), None)
    return [source.row(i) for i in range(count)]


def test_a_folder_with_a_table_becomes_rows(tmp_path):
    """30 sounds: 2 for validation, 4 for the test; each row's frames are those of its sound, whole frames of 10 ms."""
    folder(tmp_path)
    cache = made(tmp_path)
    manifest = read_manifest(cache)
    assert manifest["parts"]["transcribe"]["examples"] == manifest["parts"]["transcribe"]["rows"] == 24
    assert manifest["held_out"] == {"validation": 2, "test": 4} and not manifest["left_out"]
    for row in rows_of(cache, data(), 24):
        length = int((row["frames_segments"] == 1).sum())
        assert length in {40 + 5 * n for n in range(7)} and not row["frames"][length:].any()
        assert row["targets_segments"].sum() == (row["targets"] > 0).sum() >= 2


def test_utterances_that_share_a_row_are_heard_as_if_alone(tmp_path):
    """With four slots the same utterances take fewer rows; each begins at a multiple of 8 frames, with a gap behind it, and has
    the frames and tokens that it has in a row of its own."""
    folder(tmp_path)

    def utterances(cache: Path, slots: int, rows: int) -> set:
        pairs = set()
        for row in rows_of(cache, data(slots=slots), rows):
            numbers = row["frames_segments"]
            for number in range(1, numbers.max() + 1):
                (places,) = np.nonzero(numbers == number)
                assert places[0] % 8 == 0 and (np.diff(places) == 1).all()
                assert number == 1 or places[0] - np.nonzero(numbers == number - 1)[0][-1] > 8
                ids = row["targets"][row["targets_segments"] == number]
                pairs.add((row["frames"][places].tobytes(), ids.tobytes()))
        return pairs

    alone = utterances(made(tmp_path), 1, 24)
    packed = made(tmp_path, slots=4)
    rows = read_manifest(packed)["parts"]["transcribe"]["rows"]
    assert len(alone) == 24 and rows < 15
    assert utterances(packed, 4, rows) == alone


def test_what_cannot_be_used_is_left_out_and_counted(tmp_path):
    """Files of no use, a missing one, too long, a text in letters that no other has, no text."""
    sounds = folder(tmp_path)
    odd = [
        {"file_name": "long.wav", "text": "ano", "seconds": 3.0},
        {"file_name": "letters.wav", "text": "да"},
        {"file_name": "silent.wav", "text": ""},
        {"file_name": "missing.wav", "text": "ano"},
        *({"file_name": name, "text": "ano"} for name in bad_sounds()),
    ]
    rows = [{"file_name": f"{n:02d}.wav", "text": WORDS[n % 5], "seconds": 0.5} for n in range(30)]
    rows = [row | {"split": ("train", "validation", "test")[max(0, n - 27)]} for n, row in enumerate(rows)]
    write_sounds(sounds, rows + [row | {"split": "train"} for row in odd])
    for name, (content, _) in bad_sounds().items():
        (sounds / name).write_bytes(content)
    (sounds / "missing.wav").unlink()
    manifest = read_manifest(made(tmp_path))
    assert manifest["parts"]["transcribe"]["left_out"] == len(odd)
    why = dict(line.split(": ", 1) for line in manifest["left_out"]["transcribe"])  # the first ten
    assert set(why) == {row["file_name"] for row in odd[:10]}
    assert all(words in why[name] for name, (_, words) in bad_sounds().items() if name in why)
    assert "3.0 s long" in why["long.wav"] and "'да'" not in why["letters.wav"] and "no character" in why["letters.wav"]
    assert "no text" in why["silent.wav"] and "missing.wav is missing" in why["missing.wav"]
    assert all("\n" not in line for line in why.values())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("name,text\na.wav,ano\n", "no column 'file_name'"),
        ("file_name,text\n", "the table has no rows"),
        ("file_name,text\n../a.wav,ano\n", "row 1: file_name '../a.wav' leaves the folder"),
        ("file_name,text,split\na.wav,ano,tran\n", "no split 'tran'; did you mean 'train'"),
    ],
)
def test_a_damaged_table_is_refused_in_one_line(tmp_path, table, message):
    """Nothing half-made is left."""
    folder(tmp_path)
    (tmp_path / "sounds" / "metadata.csv").write_text(table)
    with pytest.raises(DataError, match=message):
        made(tmp_path)
    assert not (tmp_path / "caches" / "made").exists()


def test_masks_are_a_function_of_seed_and_index(tmp_path):
    """The same row comes with the same bands, stretches and spans; another visit or seed has others. Spans lie within
    utterances."""
    folder(tmp_path)
    cache = made(tmp_path, slots=4)
    config = data(slots=4, augment=SpecAugment(bands=1, stretches=1), masks=SpanMasks(probability=0.2, span=2, stride=4))
    one, again, other = (
        rows_of(cache, config, 9),
        rows_of(cache, config, 9),
        rows_of(cache, dataclasses.replace(config, seed=1), 9),
    )
    for a, b in zip(one, again, strict=True):
        assert_array_equal(a["frames"], b["frames"])
        assert_array_equal(a["masked"], b["masked"])
        assert a["masked"].any() and not (a["masked"] & (a["frames_segments"][::4] == 0)).any()
    assert any((a["masked"] != b["masked"]).any() for a, b in zip(one, other, strict=True))


def test_silence_is_heard_and_padding_is_not(tmp_path):
    """With padding="silence" all frames of a row are an utterance's, those of its sound with zeros behind it."""
    folder(tmp_path)
    task = SpeechTask(data(padding="silence"))
    tone_N = tone(0.8)
    stored = {"ends": np.array([len(tone_N)]), "samples": sound.to_pcm(tone_N)}
    row = task.as_features(stored)
    assert (row["frames_segments"] == 1).all()
    assert_allclose(row["frames"], spectra.whisper(np.pad(tone_N, (0, 12_800)), 20), atol=1e-3)
    assert (SpeechTask(data()).as_features(stored)["frames_segments"] == 1).sum() == 80


def test_waveforms_are_of_mean_0_and_variance_1(tmp_path):
    """A model of waveforms reads samples, a number each."""
    folder(tmp_path)
    row = rows_of(made(tmp_path), data(front="waveform"), 1)[0]
    samples = row["frames"][row["frames_segments"] == 1]
    assert row["frames"].shape == (25_600, 1) and abs(samples.mean()) < 1e-4 and abs(samples.std() - 1) < 1e-3


def test_held_out_speech_is_scored_by_its_words(tmp_path, monkeypatch):
    """The word error rate of two transcripts with a word wrong in four is 1/4; a perfect one has 0."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path))
    folder(tmp_path)
    cache = made(tmp_path)
    decoding = task_of(data()).decoding(cache)
    said = decoding.examples(cache, Decode(split="test"))
    assert [e.text for e in said] == [e["text"] for e in examples(cache, "test")]
    assert decoding.encode(said[0])["frames"].shape == (160, 20)
    assert isinstance(decoding, HasSounds)
    assert_allclose(decoding.samples(said[0]), sound.read((tmp_path / "sounds" / said[0].name).read_bytes()), atol=1e-4)
    assert decoding.scores(said, [e.text for e in said])["all"]["wer"] == 0
    assert metrics.error_rates(["ano ne", "ne ano"], ["Ano, ne.", "ne ne"])["wer"] == 0.25
    assert set(decoding.names) >= {"wer", "cer", "chrf"}


def test_rows_that_do_not_fit_the_model_are_refused(tmp_path):
    """Lengths other than the cache's, more bands than the model reads, and more seconds than it hears."""
    folder(tmp_path)
    manifest = read_manifest(made(tmp_path)) | {"cache": "made"}
    model = dataclasses.replace(registry.load("whisper.tiny").model, source_positions=100)
    task = task_of(data(mels=80))
    task.check(manifest, model)
    for change, message in (
        (dict(targets_length=25), "targets_length=25"),
        (dict(slots=2), "slots=2"),
        (dict(seconds=0.8), "rows of 1\\.6 s"),
        (dict(mels=81), "frames of 80"),
        (dict(seconds=2.4, mels=80), "at most 2 s"),
    ):
        with pytest.raises(DataError, match=message):
            task_of(data(**{"mels": 80} | change)).check(manifest, model)
    with pytest.raises(ValueError, match=r"nearest is 1\.6"):
        data(seconds=1.61)


def test_the_settings_name_an_unknown_task():
    """The nearest one is named."""
    with pytest.raises(ValueError, match="did you mean 'translate'"):
        SpeechCache(source="fillets", tasks=("translated",))
