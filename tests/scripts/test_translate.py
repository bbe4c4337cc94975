"""Translation by command: with a released vocabulary into any of its languages, with one of ours into English."""

import dataclasses
import json
import shutil

import pytest

from data.config import HeldOut
from data.task import DataError
from data.translation.decoding import Sentence, TranslationDecoding
from scripts import cli, translate
from tests.helpers.caches import write_translation_cache
from tests.parity import ours
from tests.parity.cases.translators import ODD_TEXT, TRANSLATORS
from tests.parity.live import FIXTURES
from trainers.weights import load_any


@pytest.mark.integration
@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations_are_those_of_transformers(name):
    """Ids of texts on both sides, and what greedy search and beams make of them into the language asked for, are equal."""
    assert not ours.mistranslated(FIXTURES / name)


def run(monkeypatch, capsys, *args: object) -> str:
    monkeypatch.setattr("sys.argv", ["translate", *map(str, args)])
    monkeypatch.setattr(cli, "use_devices", lambda layout: None)  # the tests' devices are there already
    assert translate.main() == 0
    return capsys.readouterr().out


@pytest.mark.integration
def test_a_folder_translates_by_short_codes(monkeypatch, capsys):
    """A line of text gives a line of text, and `de` is `deu_Latn`."""
    folder = FIXTURES / "translator_nllb"
    long, short = (
        run(monkeypatch, capsys, "--checkpoint", folder, "--from", a, "--to", b, "--beams", 2, ODD_TEXT)
        for a, b in (("eng_Latn", "deu_Latn"), ("en", "de"))
    )
    assert long == short and len(long.splitlines()) == 1


def test_a_model_that_is_scored_by_its_loss_translates(monkeypatch, capsys):
    """Its experiment says nothing of a search, so that the usual one is made."""
    folder = FIXTURES / "translator_nllb"
    e, weights = load_any.open_model(folder)
    scored = dataclasses.replace(e, eval=HeldOut())
    monkeypatch.setattr(load_any, "open_model", lambda *choices: (scored, weights))
    arguments = ("--checkpoint", folder, "--from", "en", "--to", "de", "--beams", 2, ODD_TEXT)
    assert len(run(monkeypatch, capsys, *arguments).splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(("--from", "dee"), "'dee'; did you mean 'de'?"), (("--from", "de", "--to", "eng_Lat"), "did you mean 'eng_Latn'?")],
)
def test_an_unknown_language_is_refused_with_the_nearest(arguments, hint, monkeypatch, capsys):
    """Short codes and the vocabulary's own are offered."""
    with pytest.raises(DataError) as caught:
        run(monkeypatch, capsys, "--checkpoint", FIXTURES / "translator_nllb", *arguments, "some text")
    assert hint in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_our_own_models_translate_into_english_alone(tmp_path):
    """Another target is refused in one line; English is the default."""
    write_translation_cache(tmp_path, {"de": 3})
    decoding = TranslationDecoding(tmp_path / "toy")
    assert decoding.example("de", "datei") == Sentence("de", "datei", to="en")
    assert not decoding.encode(decoding.example("de", "datei"))["prefix"].any()
    with pytest.raises(DataError, match="translates into English alone, not into 'fr'; did you mean 'en'"):
        decoding.encode(decoding.example("de", "datei", "fr"))


def test_a_folder_without_its_languages_says_so(tmp_path, monkeypatch, capsys):
    """Weights with another vocabulary than a translator's are named."""
    shutil.copytree(FIXTURES / "translator_nllb_legacy", tmp_path / "bare")
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / "bare" / file).write_text(json.dumps({}))
    with pytest.raises(ValueError, match="bare: no translator's vocabulary"):
        run(monkeypatch, capsys, "--checkpoint", tmp_path / "bare", "--from", "de", "text")
