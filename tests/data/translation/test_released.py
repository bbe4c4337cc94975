"""Fine-tuning a released translator on message catalogues: its vocabulary, its weights, and both written again."""

import dataclasses
import json
from typing import Any

import pytest
from numpy.testing import assert_array_equal

from configs import registry
from data.packages import fetch
from data.prepare import prepare
from data.task import DataError
from data.translation.caches import TranslationCache
from data.vocabularies import files
from data.vocabularies.multilingual import Multilingual
from models.m2m100.config import M2M100Config
from models.parts.attention.config import GroupedQuery
from models.parts.transformer_config import Dense
from scripts import cli, translate
from tests.helpers.catalogues import TINY, WORDS
from tests.helpers.rows import read_rows, unpack
from tests.helpers.runs import run, with_train
from tests.helpers.vocabularies import write_pieces
from tests.parity import ours
from trainers.monitoring import metrics
from trainers.weights import huggingface, load_any, release
from trainers.weights.release import ReleaseError
from trainers.weights.source import Arrays

pytestmark = pytest.mark.integration

NAME = "m4_quickstart_released"
SETTINGS = TranslationCache(catalogue="permissive", source_vocabulary=0, target_vocabulary=0, source_length=40, target_length=32)
CODES = ["eng_Latn", "swh_Latn", "zho_Hant"]  # of the catalogue's languages, Breton and Serbian in Latin letters are unknown


def write_folder(to, seed: int, codes=CODES):
    """A Hugging Face folder of a tiny NLLB with random weights, and with a vocabulary in these languages."""
    pieces = to.parent / f"{to.name}-pieces"
    write_pieces(pieces)
    (pieces / files.IDS).unlink()
    (pieces / files.SPECIAL).write_text(json.dumps({"additional_special_tokens": codes}))
    config = M2M100Config(
        vocab=320,
        layers=4,
        model_dim=16,
        attention=GroupedQuery(heads=2, head_dim=8, biases="qkvo"),
        feed_forward=Dense(hidden_dim=32, bias=True),
    )
    return huggingface.write_folder(Arrays(config, ours.fresh(config, seed), pieces), to)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("nllb") / "hf", 0)


@pytest.fixture(scope="module")
def cache(tiny, folder):
    return prepare(NAME, SETTINGS, data_dir=tiny, vocabulary=folder, progress=lambda line: None)


def test_a_cache_is_encoded_with_the_folders_vocabulary(folder, cache):
    """Rows are sources and English targets as the released model was trained on them, in the languages that it knows."""
    vocabulary, manifest = Multilingual(folder), json.loads((cache / "manifest.json").read_text())
    assert set(manifest["languages"]) == {"sw", "zh-Hant"}
    assert manifest["source_vocabulary"] == manifest["target_vocabulary"] == vocabulary.size == 305
    for language, code in (("sw", "swh_Latn"), ("zh-Hant", "zho_Hant")):
        rows = read_rows(cache / "train" / f"{language}.array_record")
        examples = [example for row in rows for example in unpack(row, (40, 32))]
        assert len(examples) == manifest["languages"][language]["pairs"] > 50
        for source, target in examples:
            assert (source[0], source[-1], target[-1]) == (vocabulary.languages[code], 2, 2)
            assert target.tolist() == vocabulary.target("eng_Latn", vocabulary.decode(target.tolist()))
    assert {json.loads(line)["lang"] for line in (cache / "test.jsonl").read_text().splitlines()} == {"sw", "zh-Hant"}


def test_a_vocabulary_is_asked_for_and_kept(tiny, folder, cache, tmp_path, monkeypatch):
    """Once given it need not be given again; without one, or for a cache that has its own, one line says what to do."""
    monkeypatch.setattr(fetch, "fetch", None)  # would raise if called: the cache is up to date
    assert prepare(NAME, SETTINGS, data_dir=tiny, progress=lambda line: None) == cache
    with pytest.raises(DataError, match=f"prepare_data {NAME} --vocabulary FOLDER"):
        prepare(NAME, SETTINGS, data_dir=tmp_path)
    with pytest.raises(DataError, match="'tiny' has a vocabulary of its own, and takes none from"):
        prepare("tiny", TINY, data_dir=tiny, vocabulary=folder)


@pytest.fixture
def experiment(tiny, folder, cache, monkeypatch):
    """nllb.catalogues, small."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tiny))
    e = registry.load("nllb.catalogues")
    config = load_any.open_weights(folder).config
    return with_train(
        dataclasses.replace(
            e,
            model=dataclasses.replace(config, dropout=0.0),
            data=dataclasses.replace(e.data, batch_size=8, source_length=40, target_length=32),
            optimizer=dataclasses.replace(
                e.optimizer, schedule=dataclasses.replace(e.optimizer.schedule, peak=0.02, steps=60, warmup=5)
            ),
            eval=dataclasses.replace(e.eval, per_language=1, max_length=8, beams=2, batch_size=4),
            execution=dataclasses.replace(e.execution, dtype="float32"),
        ),
        steps=60,
        log_every=5,
        finetune={"init_from": str(folder)},
        eval_every=0,
    )


@pytest.mark.slow
def test_a_folder_is_fine_tuned_and_written_again(experiment, folder, tmp_path, monkeypatch, capsys):
    """The loss falls; the run and its release translate alike; the folder made of it has its weights and the vocabulary."""
    assert run(experiment, tmp_path / "run") == 0
    losses = [line["loss"] for line in metrics.read(tmp_path / "run") if "loss" in line]
    assert losses[-1] < losses[0] - 1, losses
    release.write(tmp_path / "run", tmp_path / "release")
    weights: Any = load_any.open_weights(tmp_path / "release")
    huggingface.write_folder(weights, tmp_path / "hf")
    vocabularies = [Multilingual(path) for path in (folder, tmp_path / "hf")]
    assert vocabularies[0].languages == vocabularies[1].languages
    assert vocabularies[0].encode("bada felu") == vocabularies[1].encode("bada felu")

    monkeypatch.setattr(cli, "use_devices", lambda layout: None)
    capsys.readouterr()
    outputs = []
    for path in (tmp_path / "run", tmp_path / "release"):
        arguments = ["--checkpoint", str(path), "--from", "sw", "--to", "zh-Hant", "--beams", "1", *WORDS[:40]]
        monkeypatch.setattr("sys.argv", ["translate", *arguments])
        assert translate.main() == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] and outputs[0].strip() and len(outputs[0].splitlines()) == 40
    same: Any = load_any.open_weights(tmp_path / "hf")
    assert same.config == dataclasses.replace(weights.config, dropout=same.config.dropout)
    for name in weights.shapes:
        assert_array_equal(same.read(name, ()), weights.read(name, ()), err_msg=name)


def test_weights_of_another_vocabulary_are_refused(experiment, tmp_path):
    """A folder with other ids than those that the cache is encoded with: one line names the file."""
    other = write_folder(tmp_path / "other", 1)
    (other / files.PIECES).write_bytes((other / files.PIECES).read_bytes() + b"\n")
    with pytest.raises(ReleaseError, match=r"sentencepiece\.bpe\.model is another vocabulary than that of"):
        run(experiment.with_finetune(init_from=str(other)), tmp_path / "run")
