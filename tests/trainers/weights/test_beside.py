"""The files beside the weights of a Hugging Face folder: how sounds and pictures are read, what stands before a text."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from configs import registry
from data.speech.config import SpeechData
from data.speech.vocabulary import VocabularyError, WhisperVocabulary, open_vocabulary
from models.families import family_of
from models.interchange import InterchangeError
from models.parts import nested
from models.sharding.params import to_params
from models.whisper.config import WhisperConfig
from models.whisper.tokens import no_speech
from tests.helpers.models import ALONE
from tests.helpers.sounds import LANGUAGES, write_whisper_vocabulary
from tests.parity.live import FIXTURES
from trainers.weights import huggingface, load_any
from trainers.weights.source import Arrays


@pytest.fixture(scope="module")
def whisper(tmp_path_factory) -> Path:
    """A folder that we wrote, of a small random Whisper that hears two seconds."""
    top = tmp_path_factory.mktemp("whisper")
    vocabulary = open_vocabulary(write_whisper_vocabulary(top / "vocabulary"))
    assert isinstance(vocabulary, WhisperVocabulary)
    c = registry.load("whisper.tiny").model.tiny()
    assert isinstance(c, WhisperConfig)
    sizes = {"vocab": vocabulary.size, "decoder.start_id": vocabulary.start, "source_positions": 100, "mels": 80}
    c = nested.changed(c, sizes)
    params = to_params(jax.jit(lambda: family_of(c).model(c, jax.random.key(0), ALONE))())
    huggingface.write_folder(Arrays(c, params, top / "vocabulary"), top / "hf")
    return top / "hf"


def settings(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / name).read_text())


def changed(folder: Path, to: Path, name: str, **new: Any) -> Path:
    """A copy of a folder with other settings in a file, which may be new."""
    shutil.copytree(folder, to)
    old = settings(to, name) if (to / name).exists() else {}
    (to / name).write_text(json.dumps(old | new))
    return to


def test_a_whisper_is_written_with_all_that_a_pipeline_opens(whisper):
    """Frames, the class of the vocabulary, and tokens: which `transformers` asks for a language and which it never writes."""
    vocabulary = open_vocabulary(whisper)
    assert isinstance(vocabulary, WhisperVocabulary)
    front = settings(whisper, "preprocessor_config.json")
    assert (front["feature_size"], front["chunk_length"], front["sampling_rate"]) == (80, 2, 16_000)
    assert settings(whisper, "tokenizer_config.json")["tokenizer_class"] == "WhisperTokenizer"
    tokens = settings(whisper, "generation_config.json")
    assert tokens["lang_to_id"] == {f"<|{code}|>": vocabulary.languages[code] for code in LANGUAGES}
    assert tokens["task_to_id"].keys() == {"transcribe", "translate"} and tokens["is_multilingual"]
    assert tokens["no_timestamps_token_id"] == vocabulary.no_timestamps
    assert tokens["decoder_start_token_id"] == vocabulary.start and tokens["eos_token_id"] == vocabulary.end
    never = set(tokens["suppress_tokens"])
    assert never > set(no_speech(vocabulary.tokenizer.encode)) and vocabulary.start in never
    assert not never & {vocabulary.end, vocabulary.no_timestamps}


def test_what_was_written_is_read_again(whisper, tmp_path):
    """Settings that a folder came with are written as they were."""
    e, weights = load_any.open_model(whisper)
    assert isinstance(e.data, SpeechData) and e.data.front == "whisper" and weights.vocabulary == whisper
    folder = changed(whisper, tmp_path / "own", "generation_config.json", suppress_tokens=[7], max_length=9)
    huggingface.write_folder(load_any.open_weights(folder), tmp_path / "back")
    assert settings(tmp_path / "back", "generation_config.json") == settings(folder, "generation_config.json")


def test_the_tokens_that_a_folder_never_writes_are_obeyed(whisper, tmp_path):
    """Another list than OpenAI's, an empty one too; a model that is asked for no language is not asked."""
    new = {"suppress_tokens": [5, 7], "begin_suppress_tokens": [], "is_multilingual": False}
    vocabulary = open_vocabulary(changed(whisper, tmp_path / "own", "generation_config.json", **new))
    assert isinstance(vocabulary, WhisperVocabulary)
    assert (vocabulary.sounds, vocabulary.never_first, dict(vocabulary.languages)) == ([5, 7], [], {})
    assert vocabulary.prefix("en", "transcribe", timestamps=True) == []


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"suppress_tokens": [10**6]}, r"suppress_tokens is \[1000000\], expected ids below"),
        ({"no_timestamps_token_id": 3}, "no_timestamps_token_id is 3, here"),
        ({"lang_to_id": {"<|en|>": 3}}, "lang_to_id is"),
        ({"max_initial_timestamp_index": 5}, "max_initial_timestamp_index is 5, here 50"),
    ],
)
def test_tokens_that_are_not_the_vocabularys_are_refused(whisper, tmp_path, new, message):
    """In one line that names the setting and its value."""
    with pytest.raises(VocabularyError, match=message) as error:
        vocabulary = open_vocabulary(changed(whisper, tmp_path / "own", "generation_config.json", **new))
        assert isinstance(vocabulary, WhisperVocabulary) and vocabulary.sounds
    assert "\n" not in str(error.value)


PICTURES = {"do_resize": True, "size": {"height": 24, "width": 24}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@pytest.mark.parametrize(
    ("new", "read"),
    [
        ({}, {"mean": (0.5,), "std": (0.5,), "eval_crop": 0.0}),
        ({"image_mean": [0.485, 0.456, 0.406]}, {"mean": (0.485, 0.456, 0.406), "std": (0.5,)}),
        ({"size": 24, "do_normalize": False}, {"mean": (0.0,), "std": (1.0,)}),
        ({"size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": 24}, {"eval_crop": 0.75}),
    ],
)
def test_pictures_are_read_as_the_folder_says(tmp_path, new, read):
    """Their pixels are normalised, cut and squeezed as in its preprocessor_config.json, unless an experiment has data."""
    source = FIXTURES / "vit_classification"
    size = settings(source, "config.json").get("image_size", 224)
    theirs = json.loads(json.dumps(PICTURES | new).replace("24", str(size)).replace("32", str(size * 4 // 3)))
    folder = changed(source, tmp_path / "vit", "preprocessor_config.json", **theirs)
    data: Any = load_any.open_model(folder)[0].data
    if read.get("eval_crop"):
        read = read | {"eval_crop": size / (size * 4 // 3)}
    assert {name: getattr(data, name) for name in read} == read
    assert load_any.open_model(folder, like="vit.b16")[0].data == registry.load("vit.b16").data


@pytest.mark.parametrize(
    ("fixture", "new", "message"),
    [
        ("vit_classification", {"resample": 3}, "resample=3 is not supported, only 2"),
        ("vit_classification", {"size": {"shortest_edge": 24}}, "size=.*: only the model's"),
        ("vit_classification", {"size": {"longest_edge": 24}}, "only a height and a width, or a shortest edge"),
        ("vit_classification", {"size": 999}, r"size=\[999, 999\]: only the model's"),
        (
            "vit_classification",
            {"size": 21, "image_std": [0.5, 0.5, 0.0]},
            r"image_std=\[0.5, 0.5, 0.0\]: only 3 numbers, a deviation above",
        ),
        ("vit_classification", {"size": 21, "image_mean": ["a"]}, "image_mean="),
        ("vit_classification", {"rescale_factor": 1.0}, "rescale_factor=1.0: only 1/255"),
        ("vit_classification", {"image_processor_type": "CLIPImageProcessor"}, "CLIPImageProcessor"),
        ("whisper", {"feature_size": 999}, "feature_size=999"),
        ("whisper", {"hop_length": 80}, "hop_length=80 is not supported, only 160"),
        ("wav2vec2", {"do_normalize": "no"}, 'do_normalize is "no"; expected bool'),
        ("wav2vec2_conformer", {"sampling_rate": 8000}, "sampling_rate=8000"),
    ],
)
def test_what_cannot_be_read_so_is_refused(tmp_path, fixture, new, message):
    """A folder whose inputs are made in another way is no model to run; its weights may still be started from."""
    folder = changed(FIXTURES / fixture, tmp_path / "own", "preprocessor_config.json", **new)
    with pytest.raises(InterchangeError, match=rf"preprocessor_config\.json: .*{message}") as error:
        load_any.open_model(folder)
    assert "\n" not in str(error.value)
    assert load_any.open_weights(folder).shapes


def test_parts_of_a_file_for_several_inputs_are_found(tmp_path):
    """A processor_config.json has the sound's settings under a name of their own."""
    new = {"feature_extractor": {"feature_size": 999}, "processor_class": "WhisperProcessor"}
    folder = changed(FIXTURES / "whisper", tmp_path / "own", "processor_config.json", **new)
    with pytest.raises(InterchangeError, match=r"processor_config\.json: feature_size=999"):
        load_any.open_model(folder)
    assert np.prod(load_any.open_weights(folder).shapes["embedding.table"]) > 0
