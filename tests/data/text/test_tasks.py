"""SeqIO tasks of text; these import TensorFlow."""

import json

import pytest

from data.packages.tfds_folders import NotPreparedError
from data.vocabularies import tokenizers
from data.vocabularies.tokenizers import Tokenizer
from tests.data.conftest import WORDS

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    tokenizers.train_bpe([" ".join(WORDS[i : i + 6]) for i in range(200)], path, 400)
    return path


def test_a_data_set_that_is_not_prepared(tmp_path, vocabulary):
    """A task of a data set that isn't there is refused at once, in a line that says how to prepare it."""
    from data.text import tasks

    with pytest.raises(NotPreparedError, match=r"not prepared in .*; .* python -m scripts.prepare_data$"):
        tasks.add_english_text("english_small", tokenizer=vocabulary, data_dir=tmp_path)
    with pytest.raises(NotPreparedError, match=r"^lm1b:1\.1\.0 is not prepared .* with TFDS"):
        tasks.add_public("lm1b", tokenizer=vocabulary, data_dir=tmp_path)


@pytest.mark.parametrize("name", ["lm1b", "c4_en", "wikipedia_en"])
def test_public_sets_by_their_tfds_names(tmp_path, vocabulary, monkeypatch, name):
    """The tasks of public sets read them under TFDS's own names (here with made-up texts): ids of the text, end."""
    import seqio
    import tensorflow_datasets as tfds

    from data.text import tasks
    from data.text.sources import PUBLIC

    folder = tmp_path / PUBLIC[name].replace(":", "/")
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text(json.dumps({"splits": []}))
    monkeypatch.setattr(seqio.utils.LazyTfdsLoader, "size", lambda *_: None)  # made-up data has none

    with tfds.testing.mock_data(num_examples=2):
        task = tasks.add_public(name, tokenizer=vocabulary, data_dir=tmp_path)
        raw = [e["text"].decode() for e in tfds.load(PUBLIC[name], split="train").as_numpy_iterator()]  # pyright: ignore
        found = [e["targets"].tolist() for e in task.get_dataset(None, "train", shuffle=False).as_numpy_iterator()]
    tokenizer = Tokenizer(vocabulary)
    assert len(raw) == 2 and found == [[*tokenizer.encode(text), tokenizer.eos_id] for text in raw]


def test_the_vocabulary_in_seqio(tmp_path, vocabulary):
    """A tokenizer.json is a SeqIO vocabulary: the same ids in Python and in a graph, equal to a copy of itself."""
    import tensorflow as tf

    from data.text.tasks import TokenizerVocabulary

    ours, text = TokenizerVocabulary(vocabulary), "Ünknown 漢字 and 🙂"
    tokenizer = Tokenizer(vocabulary)
    assert ours.encode(text) == ours.encode_tf(tf.constant(text)).numpy().tolist() == tokenizer.encode(text)
    assert ours.decode(ours.encode(text)) == text == ours.decode_tf(tf.constant(ours.encode(text))).numpy().decode()
    assert (ours.vocab_size, ours.eos_id) == (tokenizer.size, tokenizer.eos_id)
    (tmp_path / "tokenizer.json").write_bytes(vocabulary.read_bytes())
    assert ours == TokenizerVocabulary(tmp_path) and ours != TokenizerVocabulary(tmp_path, extra_ids=2)


@pytest.mark.parametrize("own_splits", [True, False])
def test_held_out_documents_of_a_public_set(tmp_path, own_splits):
    """A public set's own held-out splits are taken; where it has none, the end of its training split is held out."""
    import tensorflow_datasets as tfds

    from data.text import tasks

    splits = {"train": 300, **({"test": 2, "validation": 9} if own_splits else {})}
    tfds.dataset_builders.store_as_tfds_dataset(
        name="lm1b",
        version="1.1.0",
        data_dir=tmp_path,
        features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
        split_datasets={split: [(i, {"text": f"{split} {i}"}) for i in range(size)] for split, size in splits.items()},
    )
    read = tasks.read_public("lm1b", tmp_path)
    found = {split: [document["text"] for document in documents()] for split, documents in read.items()}
    assert {split: len(texts) for split, texts in found.items()} == (
        {"train": 300, "test": 2, "validation": 3} if own_splits else {"train": 294, "test": 3, "validation": 3}
    )
    assert len({text for texts in found.values() for text in texts}) == sum(map(len, found.values()))
    assert found["train"] == [document["text"] for document in read["train"]()]
    (document, *_) = read["test"]()
    assert document == {"id": "test/0", "origin": "lm1b", "text": found["test"][0]}
