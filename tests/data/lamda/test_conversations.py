"""Conversations of the package, in LaMDA's forms."""

import itertools
import json
import zipfile

import numpy as np
import pytest

from data.lamda import conversations, encoding, metrics
from data.lamda.prompt_format import ATTRIBUTES, prompt, rated, response
from data.reading import packing
from data.reading.tally import Tally
from data.task import DataError
from data.vocabularies import tokenizers
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.conversations import unpacked, write_dialog_cache
from tests.helpers.wordpiece import train_wordpiece


def written(folder, content):
    path = folder / "package.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("chitchat_dataset/dataset.json", json.dumps(content))
    return path


def talk(*turns, ratings=None):
    """Turns as (speaker, message, message, ...)."""
    messages = [[{"sender": who, "text": text} for text in texts] for who, *texts in turns]
    return {"messages": messages} | ({"ratings": ratings} if ratings else {})


def test_messages_of_a_speaker_are_a_turn(tmp_path):
    """Several messages are joined, also over what the package keeps apart; empty ones and short conversations are left out."""
    bye, long = ("y", "bye"), [("x", "Hi", " there "), ("x", "you"), ("y", "yes"), ("x", " "), ("x", "a\nb")]
    marks = {"witty": 6, "upbeat": 5, "interesting": 10}
    path = written(
        tmp_path,
        {
            "one": talk(*long, bye, ratings=marks),
            "short": talk(*long[:2], bye, ratings=marks),
            "unrated": talk(("x", "a"), ("y", "b"), ("x", "c"), ("y", "d")),
        },
    )
    one, unrated = conversations.read(path)
    assert one["turns"] == ["Hi there you", "yes", "a b", "bye"]
    assert one["ratings"] == {"witty": True, "upbeat": False, "interesting": True}
    assert (unrated["id"], unrated["ratings"]) == ("unrated", {})


def test_a_conversation_is_in_one_split():
    """Its name decides: about 10 and 5 of 100 are held out."""
    splits = [conversations.split_of({"id": str(i)}) for i in range(4000)]
    assert 0.08 < splits.count("test") / 4000 < 0.12 and 0.03 < splits.count("validation") / 4000 < 0.07


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return write_dialog_cache(tmp_path_factory.mktemp("caches") / "toy")


def test_responses_alone_are_learned(cache):
    """The learned tokens are the response's, behind as many last turns as fit."""
    tokenizer, turns = Tokenizer(cache), ["the cat", "a dog", "yes", "no"]
    tokens, predicted = encoding.generative(turns, tokenizer, 200)
    learned = [int(t) for t, p in zip(tokens, predicted, strict=True) if p]
    assert tokenizer.decode(tokens.tolist()) == prompt(turns[:-1]) + response("no")
    assert tokenizer.decode(learned) == response("no")
    shorter, _ = encoding.generative(turns, tokenizer, len(tokens) - 1)
    assert tokenizer.decode(shorter.tolist()) == prompt(turns[1:-1]) + response("no")
    assert len(encoding.generative(["word " * 50, "word " * 50], tokenizer, 40)[0]) == 40


def test_ratings_alone_are_learned(cache):
    """There is an example for each attribute. It differs from its opposite in the last token, the only one that is learned."""
    tokenizer, turns = Tokenizer(cache), ["the cat", "a dog"]

    def made(value: bool) -> list[packing.Example]:
        return list(encoding.discriminative(turns, dict.fromkeys(ATTRIBUTES, value), tokenizer, 200))

    for i, name in enumerate(ATTRIBUTES):
        (good, predicted), (bad, _) = made(True)[i], made(False)[i]
        assert tokenizer.decode(good.tolist()) == prompt(["the cat"]) + response("a dog") + rated(name, True)
        assert predicted.tolist() == [0] * (len(good) - 1) + [encoding.RATING]
        assert good[:-1].tolist() == bad[:-1].tolist() and good[-1] != bad[-1]


def test_a_vocabulary_must_tell_ratings_apart(tmp_path):
    """Neither digit is a word of this vocabulary."""
    train_wordpiece(["witty words"] * 50, tmp_path / tokenizers.FILE, 21)
    with pytest.raises(DataError, match="no token for each of the ratings 0 and 1 behind 'WITTY'"):
        encoding.ratings("witty", Tokenizer(tmp_path))


def test_rows_keep_what_is_learned():
    """Packed side by side, examples have their tokens and marks."""
    examples = [(np.arange(1, n + 1, dtype=np.int32), np.arange(n, dtype=np.int32) % 2) for n in (3, 4, 5)]
    rows = list(packing.pack_weighted(examples, 8, Tally()))
    pairs = sorted(example for row in rows for example in unpacked(row))
    assert pairs == sorted((tokens.tolist(), predicted.tolist()) for tokens, predicted in examples)


def test_auc_is_the_share_of_pairs_in_order():
    """Two good and two bad ones make 4 pairs: three in order, one a tie."""
    assert metrics.auc([True, True, False, False], [3.0, 1.0, 1.0, 0.0]) == 3.5 / 4
    assert metrics.auc([True, True], [1.0, 2.0]) == 0.5


def test_accuracy_is_the_share_on_the_right_side_of_zero():
    """A good one above and a bad one below are right, a good one at 0 is not."""
    assert metrics.accuracy([True, False, True, False], [1.0, -1.0, 0.0, 2.0]) == 0.5


def test_the_best_of_several_is_good_as_often_as_in_all_draws():
    """Counted in all draws of n of five, of which two have the same score; of one, it is the share of good ones."""
    good, scores = [True, False, True, False, False], [3.0, 2.0, 2.0, 1.0, 0.0]
    for n in (1, 2, 3, 5):
        draws = list(itertools.combinations(zip(scores, good, strict=True), n))
        best = [[g for score, g in draw if score == max(draw)[0]] for draw in draws]
        assert metrics.best_of(good, scores, n) == pytest.approx(np.mean([np.mean(ties) for ties in best])), n
    assert metrics.best_of(good, scores, 1) == pytest.approx(0.4)


def test_errors_are_those_of_other_samples():
    """Over made-up samples of 80, AUC and the best of four by score have the standard deviation that is told."""
    rng, areas, shares = np.random.default_rng(0), [], []
    for _ in range(400):
        good = np.arange(80) < 40
        scores = rng.exponential(np.where(good, 2.0, 1.0))  # an AUC of 2/3, of the distributions that the formula is for
        areas.append(metrics.auc(good.tolist(), scores.tolist()))
        shares.append(metrics.best_of((rng.random(80) < 0.6).tolist(), scores.tolist(), 4))
    assert np.std(areas) == pytest.approx(metrics.auc_error(2 / 3, 40, 40), rel=0.1)
    assert np.std(shares) == pytest.approx(metrics.best_of_error(0.6, 80, 4), rel=0.1)


def test_ranks_count_those_that_are_as_good():
    """First, and third of three by a tie: the mean reciprocal is 2/3."""
    scores = np.array([[3.0, 1.0, 2.0], [1.0, 1.0, 2.0]])
    assert metrics.ranks(scores) == {"reciprocal_rank": (1 + 1 / 3) / 2, "first": 0.5}
