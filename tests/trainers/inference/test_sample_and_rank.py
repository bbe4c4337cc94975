"""Candidates for a turn from a tiny untrained decoder."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import registry
from data.kinds import task_of
from data.lamda.prompt_format import prompt
from data.task import DataError
from data.vocabularies import tokenizers
from data.vocabularies.tokenizers import Tokenizer
from models.parts.attention.config import Learned
from models.parts.nested import changed
from models.sharding.params import with_params
from tests.helpers.caches import write_text_cache
from tests.helpers.conversations import write_dialog_cache
from trainers.inference.generation import Generate, Generator
from trainers.inference.sample_and_rank import Candidate, Respond, Responder, good_enough
from trainers.plan import fresh_state, make_plan

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model with shapes for parameters, its parameters, and the folder of a vocabulary."""
    folder = tmp_path_factory.mktemp("respond") / "cache"
    write_text_cache(folder, tokenizers.train_bpe, 300, 16)
    e = registry.tiny(registry.load("gpt.llama2_7b"))
    plan = make_plan(dataclasses.replace(e, model=dataclasses.replace(e.model, vocab=320)), jax.devices()[:1])
    return plan.model, fresh_state(plan).params, folder


CONFIG = Respond(candidates=4, tokens=12, context=32)


def test_candidates_are_ranked_by_likelihood(tiny):
    """They come best first by log-likelihood per token, each a single line; a seed decides the draws."""
    model, params, folder = tiny
    responder = Responder(model, CONFIG, folder)
    candidates = responder(params, ["the cat"])
    assert len(candidates) == 4
    scores = [candidate.score for candidate in candidates]
    assert scores == sorted(scores, reverse=True) and all(c.log_probability < c.score < 0 for c in candidates)
    assert not any("\n" in candidate.text for candidate in candidates)
    assert responder(params, ["the cat"]) == candidates == responder(params, ["the cat"], CONFIG.seed)
    assert responder(params, ["the cat"], 1) != candidates


def test_the_oldest_turns_are_left_out(tiny):
    """A conversation that is too long is read from the first turn on with which it fits; a single turn must fit."""
    model, params, folder = tiny
    responder = Responder(model, CONFIG, folder)
    turns = ["the old cat", "a red house", "and the big dog", "a bird", "the road"]
    length = responder.generator.tokenizer.encode
    assert len(length(prompt(turns))) > len(length(prompt(turns[1:]))) > 32 >= len(length(prompt(turns[2:])))
    assert responder(params, turns) == responder(params, turns[2:]) != responder(params, turns[3:])
    with pytest.raises(DataError, match=r"^a prompt of \d+ tokens is longer than 32$"):
        responder(params, ["zzzz " * 20])


def test_a_token_before_every_text_takes_room(tiny, tmp_path):
    """Where the vocabulary begins a text with one, turns fit that leave a place for it."""
    model, params, folder = tiny
    written = json.loads((folder / tokenizers.FILE).read_text())
    known = {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}
    single = [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    written["post_processor"] = dict(type="TemplateProcessing", single=single, pair=single, special_tokens=known)
    (tmp_path / tokenizers.FILE).write_text(json.dumps(written))
    turns = ["the old cat", "a red house", "and the big dog"]
    size = len(Tokenizer(tmp_path).encode(prompt(turns[1:])))
    plain, begun = (Responder(model, dataclasses.replace(CONFIG, context=size), at) for at in (folder, tmp_path))
    assert plain(params, turns) == plain(params, turns[1:]) and begun(params, turns) == begun(params, turns[2:])
    assert plain(params, turns[2:]) != begun(params, turns[2:])


def test_padding_changes_no_continuation(tiny):
    """A prompt in a program of fixed length is continued as in one of its own."""
    model, params, folder = tiny
    padded, own = (Generator(model, Generate(tokens=6, batch_size=1, length=n), folder) for n in (64, 0))
    assert padded(params, ["the old cat"])[0][0].ids == own(params, ["the old cat"])[0][0].ids


def test_a_sample_ends_with_its_line(tiny):
    """Drawn alike, a sample is the same up to its first line break, and ends there."""
    model, params, folder = tiny
    config = Generate(tokens=40, temperature=1.0, samples=64, batch_size=1)
    whole, lines = (
        Generator(model, dataclasses.replace(config, line=line), folder)(params, ["the"])[0] for line in (False, True)
    )
    assert any("\n" in continuation.text for continuation in whole)
    assert [c.text for c in lines] == [c.text.partition("\n")[0] for c in whole]
    assert all(len(line.ids) < len(c.ids) for line, c in zip(lines, whole, strict=True) if "\n" in c.text[:-1])


def test_texts_are_emitted_as_they_grow(tiny):
    """One call for each token; the last text is that of the first sample, and a second call begins anew."""
    model, params, folder = tiny
    texts: list[str] = []
    generator = Generator(model, Generate(tokens=6, batch_size=1), folder, texts.append)
    for prompt_text in ("the cat", "a dog"):
        texts.clear()
        continuation = generator(params, [prompt_text])[0][0]
        assert texts[-1] == continuation.text and len(texts) == 6 == len(continuation.ids)


def test_a_model_of_few_positions_responds(tiny):
    """Half of 24 positions are left for the candidate."""
    _, _, folder = tiny
    e = registry.tiny(registry.load("gpt.gpt2_124m"))
    plan = make_plan(
        dataclasses.replace(e, model=changed(e.model, {"positions": Learned(rows=24), "vocab": 320})), jax.devices()[:1]
    )
    responder = Responder(plan.model, Respond(candidates=2), folder)
    assert (responder.generator.config.tokens, responder.generator.config.length) == (12, 12)
    assert len(responder(fresh_state(plan).params, ["the old cat", "a"])) == 2


@pytest.fixture(scope="module")
def rating(tmp_path_factory):
    """The same, of a model that was made for rated conversations, and their task."""
    folder = write_dialog_cache(tmp_path_factory.mktemp("rated") / "toy", 64)
    e = registry.tiny(registry.load("lamda.smollm2_chat"))
    plan = make_plan(dataclasses.replace(e, model=dataclasses.replace(e.model, vocab=320)), jax.devices()[:1])
    return plan.model, fresh_state(plan).params, folder, task_of(e.data)


@pytest.mark.slow
def test_ratings_are_those_of_the_whole_text(rating):
    """The cache gives behind a candidate what a pass over context, candidate and attribute gives."""
    model, params, folder, task = rating
    candidates = Responder(model, CONFIG, folder, task)(params, ["the cat"])
    tokenizer, whole = Tokenizer(folder), with_params(model, params)
    for candidate in candidates:
        for name in task.ranking:
            bad, good = task.rating_ids(folder, name)
            # The candidate's own tokens, which need not be those that its text is encoded with.
            ids = [*tokenizer.encode(prompt(["the cat"])), *candidate.ids, *good]
            batch = {"tokens": ids, "segments": np.ones(len(ids)), "positions": np.arange(len(ids))}
            logits = whole({k: jnp.asarray(x, jnp.int32)[None] for k, x in batch.items()})[0, -2]
            p = jax.nn.softmax(logits[jnp.array([bad[-1], good[-1]])])[1]
            assert candidate.ratings[name] == pytest.approx(float(p), abs=1e-5)


def test_rated_candidates_are_ranked_by_their_ratings(rating):
    """Three times the first attribute, once the others, as in the paper."""
    model, params, folder, task = rating
    candidates = Responder(model, CONFIG, folder, task)(params, ["the cat"])
    for c in candidates:
        assert c.score == pytest.approx(3 * c.ratings["witty"] + c.ratings["upbeat"] + c.ratings["interesting"])
    assert [c.score for c in candidates] == sorted((c.score for c in candidates), reverse=True)


def test_candidates_below_a_floor_are_dropped():
    """Unless all are."""
    low, high = (Candidate("", -1.0, {"upbeat": p}, p) for p in (0.1, 0.3))
    assert good_enough([low, high], {"upbeat": 0.2}) == [high]
    assert good_enough([low, low], {"upbeat": 0.2}) == [low, low]
