"""Translation end to end on a toy: training, evaluating, translating and releasing with real vocabularies."""

import dataclasses

import jax
import pytest

from data.task import DataError
from data.translation.config import Translate, TranslationData
from data.translation.decoding import Sentence, TranslationDecoding, buckets, read_sentences, score, shuffled, strip
from tests.helpers.caches import write_translation_cache
from tests.helpers.runs import with_train
from trainers.inference.decoder import Decoder
from trainers.plan import fresh_state, make_plan
from trainers.weights import release
from trainers.weights.load_any import open_model

pytestmark = pytest.mark.integration

LANGS = {"de": 30, "es": 12}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A data folder with a toy cache: rows of 16, vocabularies of 512, four held-out sentences a language."""
    data = tmp_path_factory.mktemp("data")
    write_translation_cache(data / "caches", LANGS)
    return data


@pytest.fixture
def experiment(m4, toy, monkeypatch):
    monkeypatch.setenv("SHARDZOO_DATA", str(toy))
    return with_train(
        dataclasses.replace(
            m4,
            model=dataclasses.replace(m4.model, source_vocab=2048, target_vocab=512),
            data=TranslationData(cache="toy", batch_size=16, source_length=16, target_length=16),
            eval=Translate(split="test", beams=2, max_length=8, batch_size=8),
        ),
        steps=2,
        log_every=1,
        checkpoint={"best": "eval/stripped_chrf"},
    )


def test_training_evaluates_and_releases(experiment, tmp_path, monkeypatch, capsys):
    """A run on packed rows ends with scores per bucket in its metrics; its release translates alike."""
    from tests.trainers.test_trainer import run
    from trainers.checkpoints import checkpoint
    from trainers.monitoring import metrics

    assert run(experiment, tmp_path / "run") == 0
    lines = metrics.read(tmp_path / "run")
    first, last = lines[0], lines[-1]
    routing = {f"moe/{k}" for k in ("load_encoder", "load_decoder", "dropped", "experts_0", "experts_1", "experts_2")}
    assert routing | {"moe/router_entropy", "moe/balance_loss"} <= first.keys() and len(first["moe/load_encoder"]) == 8
    wanted = {"eval/bleu", "eval/chrf", "eval/stripped_bleu", "eval/stripped_chrf", "eval/stripped_bleu_high"}
    wanted |= {"eval/language/de/bleu", "eval/language/es/stripped_bleu"}
    assert wanted <= last.keys() and last["eval/sentences"] == 8
    folder = release.write(tmp_path / "run", tmp_path / "release")
    assert "Translates 2 languages" in (folder / "README.md").read_text()

    plan = make_plan(experiment, jax.devices()[:1])
    examples = [Sentence("de", "datei save"), Sentence("es", "archivo save the"), Sentence("de", "öffnen " * 40)]
    outputs = []
    for path in (tmp_path / "run", folder):
        e, weights = open_model(path)
        assert e == experiment
        assert weights.vocabulary is not None
        params = {name: weights.read(name, ()) for name in weights.shapes}
        translator = Decoder(plan.model, experiment.eval, TranslationDecoding(weights.vocabulary))
        outputs.append(translator(params, examples))
        with pytest.raises(DataError, match="did you mean 'de'"):
            translator(params, [Sentence("dee", "x")])
    assert outputs[0] == outputs[1] and len(outputs[0]) == 3
    with pytest.raises(checkpoint.CheckpointError, match="no checkpoint 9"):
        open_model(tmp_path / "run", 9)


def test_translations_do_not_depend_on_their_neighbours(experiment, toy):
    """A sentence is translated alike alone and in a batch with others, in any order."""

    p = make_plan(experiment, jax.devices()[:1])
    params = fresh_state(p).params
    translator = Decoder(p.model, experiment.eval, TranslationDecoding(toy / "caches/toy"))
    examples = [Sentence("de", "datei " * n) for n in (1, 5, 3, 2)] + [Sentence("es", "archivo abrir")]
    together = translator(params, examples)
    assert [translator(params, [e])[0] for e in examples] == together
    assert translator(params, examples[::-1]) == together[::-1]


def test_stripping_leaves_words():
    """Placeholders, tags, entities, punctuation and case are gone: what copying gets right for free."""
    assert strip("Delete <b>%(name)s</b>, {count} &amp; save_all?") == "delete save all"
    assert strip("Löschen Sie 3 Dateien!") == "löschen sie 3 dateien"
    copied = score(["Delete %(name)s now"], ["Eliminar %(name)s ahora"])
    assert copied["stripped_bleu"] < copied["bleu"]


def test_shuffled_sources_keep_language_and_references():
    """Every example gets another source of its own language; references stay."""
    examples = [Sentence(lang, f"{lang}{i}", f"t{i}") for lang in ("de", "es") for i in range(5)]
    moved = shuffled(examples)
    assert [e.target for e in moved] == [e.target for e in examples]
    assert all(
        a.source != b.source and a.lang == b.lang and b.source.startswith(a.lang) for a, b in zip(examples, moved, strict=True)
    )


def test_buckets_are_thirds_by_training_pairs():
    """The languages with most pairs are "high", those with fewest "low"."""
    assert buckets({n: {"pairs": p} for n, p in zip("abcdef", [5, 50, 1, 30, 2, 9], strict=True)}) == {
        "b": "high",
        "d": "high",
        "f": "middle",
        "a": "middle",
        "e": "low",
        "c": "low",
    }


def test_a_missing_split_names_those_there(toy):
    with pytest.raises(DataError, match="no split 'tset'; did you mean 'test'"):
        read_sentences(toy / "caches/toy", "tset")
    assert len(read_sentences(toy / "caches/toy", "test", per_language=3)) == 6
