"""Documents by the TFDS names of their sets; these import TensorFlow."""

import re

import pytest

from data.packages.tfds import NotPreparedError
from data.text.sources import PUBLIC

pytestmark = pytest.mark.integration


def test_a_data_set_that_is_not_prepared(tmp_path):
    """A data set that isn't there is refused at once, in a line that says how to prepare it."""
    from data.text import documents

    with pytest.raises(NotPreparedError, match=r"not prepared in .*; .* python -m scripts.prepare_data$"):
        documents.read_splits("english_small", tmp_path)
    with pytest.raises(NotPreparedError, match=r"^lm1b:1\.1\.0 is not prepared .* with TFDS"):
        documents.read_public("lm1b", tmp_path)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_sets_by_their_tfds_names(tmp_path, name):
    """A public set that TFDS has prepared under its own name is read whole, here a stand-in with TFDS's own features."""
    import tensorflow_datasets as tfds

    from data.text import documents

    match = re.fullmatch(r"(\w+)(?:/([\w.]+))?:([\d.]+)(?:@(\w+))?", PUBLIC[name])
    assert match
    data_set, config, version, language = match.groups()
    own = {"train": language, "test": f"{language}-test", "validation": f"{language}-validation"} if language else {}
    extra = {"lm1b": (), "c4": ("timestamp", "url", "content-type", "content-length"), "wikipedia": ("title",)}[data_set]
    fields = {field: tfds.features.Text() for field in ("text", *extra)}
    texts = {split: [f"{split} {n} of {name}" for n in range(3)] for split in ("train", "test", "validation")}
    tfds.dataset_builders.store_as_tfds_dataset(
        name=data_set,
        config=config,
        version=version,
        data_dir=tmp_path,
        features=tfds.features.FeaturesDict(fields),
        split_datasets={
            own.get(s, s): [(n, {**dict.fromkeys(fields, ""), "text": t}) for n, t in enumerate(some)]
            for s, some in texts.items()
        },
    )
    read = {split: [document["text"] for document in some()] for split, some in documents.read_public(name, tmp_path).items()}
    assert sorted(read["train"]) == texts["train"]
    for split in ("validation", "test"):  # 1 % of three, but one at least
        assert len(read[split]) == 1 and set(read[split]) <= set(texts[split])


@pytest.mark.parametrize("own_splits", [True, False])
def test_held_out_documents_of_a_public_set(tmp_path, own_splits):
    """A public set's own held-out splits are taken; where it has none, the end of its training split is held out."""
    import tensorflow_datasets as tfds

    from data.text import documents

    splits = {"train": 300, **({"test": 2, "validation": 9} if own_splits else {})}
    tfds.dataset_builders.store_as_tfds_dataset(
        name="lm1b",
        version="1.1.0",
        data_dir=tmp_path,
        features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
        split_datasets={split: [(i, {"text": f"{split} {i}"}) for i in range(size)] for split, size in splits.items()},
    )
    read = documents.read_public("lm1b", tmp_path)
    texts_by_split = {split: [document["text"] for document in some()] for split, some in read.items()}
    assert {split: len(texts) for split, texts in texts_by_split.items()} == (
        {"train": 300, "test": 2, "validation": 3} if own_splits else {"train": 294, "test": 3, "validation": 3}
    )
    assert len({text for texts in texts_by_split.values() for text in texts}) == sum(map(len, texts_by_split.values()))
    assert texts_by_split["train"] == [document["text"] for document in read["train"]()]
    (document, *_) = read["test"]()
    assert document == {"id": "test/0", "origin": "lm1b", "text": texts_by_split["test"][0]}
