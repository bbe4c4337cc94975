"""Candidates for a turn from a tiny untrained decoder."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import registry
from data.kinds import task_of
from data.lamda.prompt_format import prompt
from data.vocabularies.tokenizers import Tokenizer
from models.sharding.params import with_params
from tests.helpers.conversations import write_dialog_cache
from trainers.inference import generation
from trainers.inference.forms import RatedForm, form_of
from trainers.inference.generation import Generate, Generator
from trainers.inference.sample_and_rank import Candidate, Responder, good_enough
from trainers.plan import fresh_state, make_plan

pytestmark = pytest.mark.integration


CONFIG = Generate(samples=4, tokens=12, temperature=1.0, batch_size=1)
ROOM = 32


@pytest.fixture(scope="module")
def rating(tmp_path_factory):
    """A model that was made for rated conversations with shapes for parameters, its parameters, and their form."""
    folder = write_dialog_cache(tmp_path_factory.mktemp("rated") / "toy", 64)
    e = registry.tiny(registry.load("lamda.smollm2_chat"))
    plan = make_plan(dataclasses.replace(e, model=dataclasses.replace(e.model, vocab=320)), jax.devices()[:1])
    form = form_of(task_of(e.data), folder, folder, e.model)
    assert isinstance(form, RatedForm)
    return plan.model, fresh_state(plan).params, form


def test_a_seed_decides_the_candidates(rating):
    """Each is a single line; the configuration's seed is the default."""
    model, params, form = rating
    responder = Responder(model, CONFIG, form)
    candidates = responder(params, ["the cat"], ROOM)
    assert len(candidates) == 4 and not any("\n" in candidate.text for candidate in candidates)
    assert responder(params, ["the cat"], ROOM) == candidates == responder(params, ["the cat"], ROOM, CONFIG.seed)
    assert responder(params, ["the cat"], ROOM, 1) != candidates


def test_padding_changes_no_continuation(rating):
    """A prompt in a program of more places is continued as in one of its own."""
    model, params, form = rating
    padded, own = (Generator(model, Generate(tokens=6, batch_size=1, length=n), form.vocabulary) for n in (64, 1))
    assert padded(params, ["the old cat"])[0][0].ids == own(params, ["the old cat"])[0][0].ids


def test_a_sample_ends_with_its_line(rating):
    """Drawn alike, a sample of a form of lines is the same up to its first line break, and ends there."""
    model, params, form = rating
    config = Generate(tokens=40, temperature=1.0, samples=64, batch_size=1)
    whole, lines = (Generator(model, config, form.vocabulary, form=each)(params, ["the"])[0] for each in (None, form))
    assert any("\n" in continuation.text for continuation in whole)
    assert [c.text for c in lines] == [c.text.partition("\n")[0] for c in whole]
    assert all(len(line.ids) < len(c.ids) for line, c in zip(lines, whole, strict=True) if "\n" in c.text[:-1])


def test_texts_are_emitted_as_they_grow(rating):
    """One call for each token; the last text is that of the first sample, which is the one that is drawn unseen."""
    model, params, form = rating
    texts: list[str] = []
    config = Generate(tokens=6, batch_size=1, temperature=1.0)
    shown, unseen = (Generator(model, config, form.vocabulary, emit) for emit in (texts.append, None))
    for prompt_text in ("the cat", "a dog"):
        texts.clear()
        continuation = shown(params, [prompt_text])[0][0]
        assert texts[-1] == continuation.text and len(texts) == 6 == len(continuation.ids)
        assert continuation._replace(score=0) == unseen(params, [prompt_text])[0][0]._replace(score=0)


def test_a_prompt_that_begins_with_a_reply_is_read_on(rating, monkeypatch):
    """The cache is not read again, and the sample is that of the whole prompt; another prompt, a long one and one
    without room behind the cache are read anew."""
    model, params, form = rating
    monkeypatch.setattr(generation, "_ALONE", 8)
    config = Generate(tokens=6, batch_size=1, length=64)
    kept = Generator(model, dataclasses.replace(config, kept=20), form.vocabulary, lambda text: None)
    anew = Generator(model, config, form.vocabulary)
    begun: list[int] = []
    begin = kept._begin
    monkeypatch.setattr(kept, "_begin", lambda params, batch: (begun.append(int(batch["lengths"][0])), begin(params, batch))[1])

    def sampled(prompt: list[int]) -> list[int]:
        ((own,),), ((other,),) = kept(params, [prompt]), anew(params, [prompt])
        assert own.ids == other.ids and own.score == pytest.approx(other.score, abs=1e-4)
        return [*prompt, *own.ids]

    first = sampled([7, 8, 9, 10])
    second = sampled([*first, 11, 12])
    assert begun == [4] and len(second) == 4 + 6 + 2 + 6
    third = sampled([*second, *range(20, 28)])  # no room
    sampled([*third, *range(20, 29)])  # 9 tokens are too many in a program of 64
    sampled([7, 8])
    assert begun == [4, 26, 41, 2]


@pytest.mark.slow
def test_ratings_are_those_of_the_whole_text(rating):
    """The cache gives behind a candidate what a pass over context, candidate and attribute gives."""
    model, params, form = rating
    candidates = Responder(model, CONFIG, form)(params, ["the cat"], ROOM)
    tokenizer, whole = Tokenizer(form.vocabulary), with_params(model, params)
    for candidate in candidates:
        for name in form.task.ranking:
            bad, good = form.task.rating_ids(form.vocabulary, name)
            # The candidate's own tokens, which need not be those that its text is encoded with.
            ids = [*tokenizer.encode(prompt(["the cat"])), *candidate.ids, *good]
            batch = {"tokens": ids, "segments": np.ones(len(ids)), "positions": np.arange(len(ids))}
            logits = whole({k: jnp.asarray(x, jnp.int32)[None] for k, x in batch.items()})[0, -2]
            p = jax.nn.softmax(logits[jnp.array([bad[-1], good[-1]])])[1]
            assert candidate.ratings[name] == pytest.approx(float(p), abs=1e-5)


def test_rated_candidates_are_ranked_by_their_ratings(rating):
    """Three times the first attribute, once the others, as in the paper."""
    model, params, form = rating
    candidates = Responder(model, CONFIG, form)(params, ["the cat"], ROOM)
    for c in candidates:
        assert c.score == pytest.approx(3 * c.ratings["witty"] + c.ratings["upbeat"] + c.ratings["interesting"])
    assert [c.score for c in candidates] == sorted((c.score for c in candidates), reverse=True)


def test_candidates_below_a_floor_are_dropped():
    """Unless all are."""
    low, high = (Candidate("", -1.0, {"upbeat": p}, p) for p in (0.1, 0.3))
    assert good_enough([low, high], {"upbeat": 0.2}) == [high]
    assert good_enough([low, low], {"upbeat": 0.2}) == [low, low]
