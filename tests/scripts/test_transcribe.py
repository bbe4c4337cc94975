"""The command that writes down what is said in files."""

import json
import sys
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest

from configs import registry
from data import progress
from data.config import Decode
from data.speech import sound
from data.speech.vocabulary import WhisperVocabulary, open_vocabulary
from models.execution import Execution
from models.families import family_of
from models.parts.nested import changed
from models.sharding.params import to_params
from scripts import cli, transcribe
from tests.helpers.models import ALONE
from tests.helpers.sounds import bad_sounds, tone, wav, write_whisper_vocabulary
from trainers.inference.load import load
from trainers.inference.transcription import UtteranceDecoder
from trainers.weights import huggingface, load_any
from trainers.weights.source import Arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder of a small random Whisper with its vocabulary, two sounds, and files of no use."""
    top = tmp_path_factory.mktemp("transcribe")
    vocabulary = open_vocabulary(write_whisper_vocabulary(top / "vocabulary"))
    assert isinstance(vocabulary, WhisperVocabulary)
    c = changed(
        registry.load("whisper.tiny").model.tiny(),
        {"vocab": vocabulary.size, "decoder.start_id": vocabulary.start, "mels": 80, "dropout": 0.0},
    )
    params = to_params(jax.jit(lambda: family_of(c).model(c, jax.random.key(0), ALONE))())
    huggingface.write_folder(Arrays(c, params, top / "vocabulary"), top / "whisper")
    (top / "a.wav").write_bytes(wav(tone(0.5)))
    (top / "b.wav").write_bytes(wav(tone(1.5)))
    for name, (content, _) in bad_sounds().items():
        (top / name).write_bytes(content)
    return top


def run(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["transcribe", *map(str, arguments)])
    return transcribe.main()


@pytest.mark.integration
def test_files_are_written_down_and_failures_named(folder, monkeypatch, capsys, tmp_path):
    """Transcripts come in the order of the files; each bad one is a line on stderr, they are counted, and the exit code is 1."""
    bad = bad_sounds()
    files = [folder / name for name in (*list(bad)[:4], "a.wav", *list(bad)[4:], "b.wav")]
    common = "--checkpoint", folder / "whisper", "--format", "json"
    assert run(monkeypatch, *files, *common) == 1
    out, err = capsys.readouterr()
    result = [json.loads(line) for line in out.splitlines()]
    assert [f["file"] for f in result] == [str(folder / "a.wav"), str(folder / "b.wav")]
    precision, *printed, counted = err.splitlines()
    assert precision == "computed in float32; the weights are stored as float32"
    assert len(printed) == len(bad) and f"2 of {len(files)} files; {len(bad)} could not be read" in counted
    for name, (_, why) in bad.items():
        (line,) = [line for line in printed if line.startswith(f"error: {folder / name}: ")]
        assert why in line
    assert np.isclose(result[1]["seconds"], 1.5, atol=0.01) and result[0]["language"] in ("en", "cs", "de", "")
    assert run(monkeypatch, folder / "a.wav", *common[:2], "--format", "srt", "--language", "cs", "--out", tmp_path / "out") == 0
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["a.wav.srt"] and capsys.readouterr().out == ""


@pytest.mark.slow
def test_an_evaluation_scores_what_the_command_writes(folder, monkeypatch, capsys):
    """Held-out utterances of known language and task have the texts that the command writes for their files, also those that are
    longer than a window; other vocabularies, and models that hear no windows, are decoded otherwise."""
    weights = load_any.open_weights(folder / "whisper")
    served, vocabulary = load(weights, Execution()), open_vocabulary(folder / "vocabulary")

    def samples(example: Any) -> np.ndarray:
        return sound.read((folder / example.name).read_bytes())

    held_out: Any = SimpleNamespace(vocabulary=vocabulary, samples=samples)
    assert UtteranceDecoder.suits(served.model, held_out)
    assert not UtteranceDecoder.suits(served.model, cast(Any, SimpleNamespace(vocabulary=None, samples=samples)))
    decoder = UtteranceDecoder(served.model, Decode(beams=1, max_length=224, length_penalty=0.0, batch_size=2), held_out)
    for task, options in (("transcribe", ()), ("translate", ("--translate",))):
        examples = [SimpleNamespace(name=name, language="cs", task=task) for name in ("a.wav", "b.wav")]
        texts = decoder(served.params, examples)
        files = [folder / example.name for example in examples]
        assert run(monkeypatch, *files, "--checkpoint", folder / "whisper", "--language", "cs", *options, "--json") == 0
        assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == texts and all(texts)


@pytest.mark.slow
def test_the_precision_can_be_chosen(folder, monkeypatch, capsys):
    """Another one is a matter of an option, and said; one that does not exist is refused with those that do."""
    arguments = folder / "a.wav", "--checkpoint", folder / "whisper", "--execution.dtype"
    assert run(monkeypatch, *arguments, "bfloat16") == 0
    assert capsys.readouterr().err.startswith("computed in bfloat16; the weights are stored as float32\n")
    with pytest.raises(cli.ConfigError, match=r"--execution\.dtype .*bfloat15") as error:
        run(monkeypatch, *arguments, "bfloat15")
    assert "bfloat16" in str(error.value) and "\n" not in str(error.value)


def test_two_sounds_of_a_name_are_not_written_over_each_other(folder, monkeypatch, tmp_path):
    """They are refused before a model is opened, and nothing is written; one that is named twice is written once."""
    (folder / "more").mkdir(exist_ok=True)
    (folder / "more" / "a.wav").write_bytes(wav(tone(0.7)))
    arguments = "--checkpoint", tmp_path / "none", "--out", tmp_path / "out"
    with pytest.raises(cli.ConfigError, match=r"a\.wav and .*more/a\.wav would both be a\.wav\.txt"):
        run(monkeypatch, folder / "a.wav", folder / "more" / "a.wav", *arguments)
    assert not (tmp_path / "out").exists()
    path = folder / "a.wav"
    assert transcribe.outputs_of([path, path], tmp_path, "vtt") == {path: tmp_path / "a.wav.vtt"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "str"], "no such format; did you mean 'srt'"),
        (["--beams", "0"], "--beams 0: expected a positive number"),
        (["--language", "cz"], "no language 'cz'; did you mean 'cs'"),
    ],
)
def test_what_cannot_be_asked_is_one_line(folder, monkeypatch, arguments, message):
    """Formats, numbers and languages, before any file is read."""
    with pytest.raises((cli.ConfigError, Exception), match=message) as error:
        run(monkeypatch, folder / "a.wav", "--checkpoint", folder / "whisper", *arguments)
    assert "\n" not in str(error.value)


def test_a_checkpoint_without_a_vocabulary_is_refused(folder, monkeypatch, tmp_path):
    """A folder with weights alone."""
    source = huggingface.HuggingFace(folder / "whisper")
    huggingface.write_folder(Arrays(source.config, _params(source)), tmp_path / "bare")
    with pytest.raises(cli.ConfigError, match="no vocabulary"):
        run(monkeypatch, folder / "a.wav", "--checkpoint", tmp_path / "bare")


def _params(source: huggingface.HuggingFace) -> dict:

    return {name: np.asarray(source.read(name)) for name in source.shapes}


@pytest.mark.integration
def test_progress_is_counted_in_sound(folder, monkeypatch, capsys):
    """Each block that was transcribed moves it; with --json there is none."""
    monkeypatch.setattr(progress, "LINES", 0)
    monkeypatch.delenv("TQDM_DISABLE")
    arguments = folder / "a.wav", folder / "b.wav", "--checkpoint", folder / "whisper"
    assert run(monkeypatch, *arguments) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("transcribing ")]
    assert [line.split("  ")[:2] for line in lines if "100 %" in line] == [["transcribing 100 %", "2/2 s of sound"]]
    assert run(monkeypatch, *arguments, "--json") == 0
    assert "transcribing" not in capsys.readouterr().err
