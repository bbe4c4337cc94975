"""SeqIO tasks by their TFDS names; these import TensorFlow."""

import numpy as np
import pytest

from data.vocabularies import sentencepiece
from data.vocabularies.sentencepiece import Vocabulary
from tests.helpers.catalogues import WORDS

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, 6)) for _ in range(300)]
    for side in ("source", "target"):
        sentencepiece.train(lines, folder / f"{side}.model", size=340, tags=["de", "br"] if side == "source" else ())
    return dict(source=folder / "source.model", target=folder / "target.model")


@pytest.mark.parametrize("prepared", ["nothing", "a half"])
def test_a_data_set_that_is_not_prepared(tmp_path, models, prepared):
    """A task of a data set that isn't there is refused at once, in a line that says how to prepare it."""
    from data.packages.tfds import NotPreparedError
    from data.translation import seqio_tasks as tasks

    if prepared == "a half":
        (tmp_path / "message_catalogues/permissive/incomplete.1.1.0").mkdir(parents=True)
    with pytest.raises(NotPreparedError, match=r"not prepared in .*; .* python -m scripts.prepare_data$"):
        tasks.add_message_catalogues("permissive", data_dir=tmp_path, **models)


def test_a_public_set_by_its_tfds_name(tmp_path, models):
    """A task reads the data set that is prepared under a name, here a stand-in: tag, pieces, end; and scores it."""
    import functools

    import seqio
    import tensorflow_datasets as tfds

    from data.translation import seqio_tasks as tasks

    text = {"de": "nächste Seite öffnen", "en": "open the next page"}
    tfds.dataset_builders.store_as_tfds_dataset(
        name="wmt_t2t_translate",
        config="de-en",
        version="1.0.0",
        data_dir=tmp_path,
        features=tfds.features.Translation(languages=("de", "en")),
        split_datasets={"validation": [(0, text)]},
    )
    task = tasks.add_translation_task(
        "wmt_t2t_translate.de_en",
        tfds_name="wmt_t2t_translate/de-en:1.0.0",
        splits={"validation": "validation"},
        data_dir=tmp_path,
        preprocessors=[functools.partial(seqio.preprocessors.rekey, key_map={"inputs": "de", "targets": "en"})],
        language="de",
        **models,
    )
    (example,) = task.get_dataset(None, "validation", shuffle=False).as_numpy_iterator()
    source, target = Vocabulary(models["source"]), Vocabulary(models["target"])
    assert example["inputs"].tolist() == [source.tag_id("de"), *source.encode(text["de"]), 1]
    assert example["targets"].tolist() == [*target.encode(text["en"]), 1]
    scores = {name: score for metric in task.metric_fns for name, score in metric([text["en"]], [text["en"]]).items()}
    assert scores == {"bleu": pytest.approx(100), "chrf": pytest.approx(100)}


def test_mixture_rates(tmp_path, models):
    """The mixture draws a language of n pairs at rate n ** (1/5): one of 32 times the pairs twice as often."""
    import json

    import seqio

    from data.translation import seqio_tasks as tasks

    folder = tmp_path / "message_catalogues/permissive/1.1.0"
    folder.mkdir(parents=True)
    splits = [{"name": "train_de", "shardLengths": ["3200"]}, {"name": "train_br", "shardLengths": ["60", "40"]}]
    (folder / "dataset_info.json").write_text(json.dumps({"splits": splits}))
    tasks.add_message_catalogues("permissive", data_dir=tmp_path, **models)
    mixture = seqio.MixtureRegistry.get("message_catalogues_permissive")
    rates = {task.name.rpartition(".")[2]: mixture.get_rate(task) for task in mixture.tasks}
    assert rates["de"] / rates["br"] == pytest.approx(2)
