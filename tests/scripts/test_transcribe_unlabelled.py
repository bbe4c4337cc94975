"""A teacher's texts for speech: whom it is asked about, what becomes of them, and that a restart changes nothing."""

import contextlib
import dataclasses
import io
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import registry
from data import prepare as plain
from data.prepare import settings_from
from data.reading.caches import read_manifest
from data.reading.examples import CacheSource
from data.speech import pseudo_labels, sound
from data.speech.caches import ENTRIES, SpeechCache
from data.speech.config import SpeechData
from data.speech.task import SpeechTask
from data.speech.utterances import Utterance
from data.speech.vocabulary import WhisperVocabulary, open_vocabulary
from data.task import DataError
from models.errors import UserError
from models.families import family_of
from models.parts.nested import changed
from models.sharding.params import to_params
from scripts import transcribe
from scripts.recipes import prepare as recipes
from tests.helpers.models import ALONE
from tests.helpers.sounds import write_sounds, write_whisper_vocabulary
from trainers.inference.transcription import Transcriber
from trainers.weights import huggingface
from trainers.weights.source import Arrays

pytestmark = pytest.mark.integration

WORDS = ("ano", "ne", "ano ne", "ne ano ano", "ne ne")


def quiet(line: str) -> None:
    """Progress that goes nowhere."""


@pytest.fixture
def settings(tmp_path) -> SpeechCache:
    """Settings of a folder of 20 sounds: 16 to learn from, eight of them with a text, one of which is lost; and a teacher."""
    rows = [{"file_name": f"{n:02}.wav", "text": WORDS[n % 5] * (n % 2 or n > 15), "seconds": 0.5} for n in range(20)]
    split_of = {16: "validation", 17: "validation", 18: "test", 19: "test"}
    folder = write_sounds(tmp_path / "sounds", [row | {"split": split_of.get(n, "train")} for n, row in enumerate(rows)])
    (tmp_path / "teacher").mkdir()
    made = settings_from(str(folder))
    assert isinstance(made, SpeechCache)
    return dataclasses.replace(made, seconds=1.6, targets_length=24, teacher=str(tmp_path / "teacher"), labelled=7)


@pytest.fixture
def asked(monkeypatch) -> list[list[str]]:
    """Replaces the teacher, who hears "ano ano", but is unsure of the second sound of a file and writes Greek of the third."""
    asked: list[list[str]] = []

    def command(root, say, name, *arguments):
        assert name == "transcribe"
        files = [a for a in map(str, arguments) if a.endswith(".wav")]
        asked.append(files)
        for number, file in enumerate(files):
            assert len(sound.read(Path(file))) == 8000
            segment = {"text": "…", "likelihood": -1.5 if number == 1 else -0.2}
            text = "άνω" if number == 2 else "Ano, ano."
            say(json.dumps({"file": file, "text": text, "segments": [segment], "language": "cs"}))

    monkeypatch.setattr(recipes, "command", command)
    return asked


def targets(cache: Path) -> list[tuple[int, ...]]:
    """The texts of a cache's training rows."""
    source = CacheSource(SpeechTask(SpeechData(cache=cache.name, batch_size=1, seconds=1.6, targets_length=24)), cache)
    rows = (source.row(i)["targets"] for i in range(read_manifest(cache)["parts"]["transcribe"]["rows"]))
    return sorted(tuple(row[row > 0].tolist()) for row in rows)


def test_the_teacher_writes_what_nobody_did(tmp_path, settings, asked):
    """Seven of 16 utterances keep their texts; it is asked for nine, and seven of its texts are learned: not the one that it is
    unsure of, nor the one in another alphabet, which are counted. Held-out examples and the vocabulary are people's own."""
    cache = recipes.prepare("taught", settings, data_dir=tmp_path, progress=quiet)
    own = recipes.prepare("own", dataclasses.replace(settings, teacher=""), data_dir=tmp_path, progress=quiet)
    assert [len(files) for files in asked] == [9]
    assert read_manifest(cache)["parts"]["transcribe"] | {"seconds": 0} == dict(examples=14, rows=14, left_out=2, seconds=0)
    assert read_manifest(own)["parts"]["transcribe"]["examples"] == 7
    extra = targets(cache)
    for ids in targets(own):
        extra.remove(ids)
    transcript = tuple(open_vocabulary(cache).text_ids("ano ano"))
    assert extra == [transcript] * 7
    for file in ("test.jsonl", "test.array_record", "tokenizer.json"):
        assert (cache / file).read_bytes() == (own / file).read_bytes()
    why = " ".join(read_manifest(cache)["left_out"]["transcribe"])
    assert "has no text to transcribe" in why and "is no character of the vocabulary" in why


def test_texts_are_made_once(tmp_path, settings, asked):
    """They are kept until the teacher or the choice of utterances changes; without them a line names the command."""
    line = r"cache 'taught': no texts by .*teacher in .*; run: python -m scripts\.prepare_data taught$"
    with pytest.raises(DataError, match=line):
        plain.prepare("taught", settings, data_dir=tmp_path, progress=quiet)
    for _ in range(2):
        recipes.prepare("taught", settings, data_dir=tmp_path, progress=quiet)
    assert len(asked) == 1
    recipes.prepare("taught", dataclasses.replace(settings, labelled=5), data_dir=tmp_path, progress=quiet)
    assert [len(files) for files in asked] == [9, 11]
    (tmp_path / "teacher" / "model.bin").write_bytes(b"other weights")
    recipes.prepare("taught", settings, data_dir=tmp_path, progress=quiet)
    assert [len(files) for files in asked] == [9, 11, 9]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory) -> Path:
    """A Hugging Face folder of a small random Whisper."""
    top = tmp_path_factory.mktemp("whisper")
    vocabulary = open_vocabulary(write_whisper_vocabulary(top / "vocabulary"))
    assert isinstance(vocabulary, WhisperVocabulary)
    tiny = registry.load("whisper.tiny").model.tiny()
    c = changed(tiny, {"vocab": vocabulary.size, "decoder.start_id": vocabulary.start, "mels": 80, "dropout": 0.0})
    params = to_params(jax.jit(lambda: family_of(c).model(c, jax.random.key(1), ALONE))())
    huggingface.write_folder(Arrays(c, params, top / "vocabulary"), top / "model")
    return top / "model"


def test_a_restart_in_the_middle_gives_the_same_texts(tmp_path, settings, whisper, monkeypatch):
    """A real Whisper is killed before its second file of five utterances; the same command asks for that file alone, and both
    files are, to the byte, those of a preparation that was not stopped."""
    monkeypatch.setattr(pseudo_labels, "BATCH", 5)
    # A random model's texts are all unlikely, and would be drawn again.
    monkeypatch.setattr(Transcriber, "_doubtful", lambda *_: False)
    settings = dataclasses.replace(settings, teacher=str(whisper), likelihood=-1e9)
    runs = 0

    def command(root, say, name, *arguments):
        nonlocal runs
        runs += 1
        if runs == 2:
            raise UserError("killed")
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert transcribe.main() == 0
        for line in out.getvalue().splitlines():
            say(line)

    monkeypatch.setattr(recipes, "command", command)
    with pytest.raises(UserError, match="killed"):
        recipes.prepare("taught", settings, data_dir=tmp_path / "stopped", progress=quiet)
    stopped = pseudo_labels.texts_of(settings, tmp_path / "stopped").folder
    assert [file.name for file in stopped.iterdir()] == ["0000.jsonl"]
    for name in ("stopped", "whole"):
        recipes.prepare("taught", settings, data_dir=tmp_path / name, progress=quiet)
    assert runs == 2 + 1 + 2
    whole = pseudo_labels.texts_of(settings, tmp_path / "whole").folder
    contents = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in (stopped, whole)]
    assert contents[0] == contents[1] and sorted(contents[0]) == ["0000.jsonl", "0001.jsonl", "manifest.json"]
    texts = [json.loads(line) for line in contents[0]["0001.jsonl"].decode().splitlines()]
    assert len(texts) == 4 and len({text["text"] for text in texts}) > 1


def test_a_sound_that_cannot_be_read_is_no_question(tmp_path, settings, asked):
    """The teacher is asked for the others, and the cache names the damaged one."""
    (tmp_path / "sounds" / "00.wav").write_bytes(b"RIFF")
    cache = recipes.prepare("taught", settings, data_dir=tmp_path, progress=quiet)
    assert [len(files) for files in asked] == [8]
    assert any(line.startswith("00.wav") for line in read_manifest(cache)["left_out"]["transcribe"])


def test_texts_are_asked_by_language():
    """No command has utterances of two languages, or more than it should."""
    utterances = [Utterance(str(n), "cs" if n % 3 else "en", {}, lambda: np.zeros(9)) for n in range(600)]
    utterances.append(Utterance("transcribed", "cs", {"transcribe": "ano"}, lambda: np.zeros(9)))
    sizes = [(len(batch), {u.language for u in batch}) for batch in pseudo_labels.untranscribed(utterances)]
    assert sizes == [(256, {"cs"}), (144, {"cs"}), (200, {"en"})]


def test_every_recipe_has_its_kind():
    """Each kind whose settings have a teacher has a recipe."""
    for settings in ENTRIES.values():
        assert hasattr(settings, "teacher") and settings.kind in recipes.RECIPES
    with pytest.raises(ValueError, match="teacher='whisper_base': writes transcripts"):
        SpeechCache(source="fillets", tasks=("translate",), teacher="whisper_base")
    with pytest.raises(ValueError, match="labelled=-1: must be 0 or more"):
        SpeechCache(source="fillets", labelled=-1)
