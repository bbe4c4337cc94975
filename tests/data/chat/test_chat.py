"""Conversations as data: the forms of files, splits, packed rows with nothing lost in silence, and the loss of a model."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from configs import registry
from data import prepare
from data.chat import encoding, sources
from data.chat.caches import ChatCache
from data.chat.config import ChatData
from data.kinds import task_of
from data.reading import packing
from data.reading.examples import open_source
from data.reading.tally import Tally
from data.task import DataError
from data.vocabularies.chat_templates import ChatEncoder
from models.protocol import Context
from models.sharding.params import with_params
from tests.helpers.chats import conversations, learned, turns, write_chat_cache, write_vocabulary
from tests.helpers.conversations import unpacked
from tests.helpers.own_data import save_to_disk
from tests.helpers.runs import with_train
from trainers.plan import fresh_state, make_plan
from trainers.step import gradients


def write_lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_both_forms_are_read_alike(tmp_path):
    """OpenAI's form and ShareGPT's give the same messages; content in parts is joined; a ShareGPT system text comes first."""
    plain = {"messages": [{"role": "system", "content": "S"}, *turns("Hi", "Hello")]}
    parts = [{"role": "system", "content": [{"type": "text", "text": "S"}]}, *turns("Hi", "Hello")]
    shared = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    file = write_lines(
        tmp_path / "a.jsonl",
        plain,
        {"messages": parts},
        {"conversations": shared, "system": "S"},
        {"conversations": [{"from": "system", "value": "S"}, *shared]},
    )
    assert list(sources.read(file)) == [plain] * 4
    assert sources.is_conversations(file) is True


@pytest.mark.parametrize(
    "line, part",
    {
        '{"messages": 3}': r"a\.jsonl, row 2: expected a list",
        '{"messages": [{"role": "usr", "content": "a"}]}': "no role 'usr'; did you mean 'user'",
        '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}': "only texts are read",
        '{"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}': "row 2: a message .* has weight 0.5, which",
        '{"messages": [{"role": "assistant", "content": "a", "weight": true}]}': "has weight true, which must be 0 or 1",
        '{"messages": [{"role": "assistant", "content": "a", "weight": "0"}]}': "has weight .0., which must be 0 or 1",
        '{"messages": [{"role": "assistant", "content": "a", "weight": null}]}': "has weight null, which must be 0 or 1",
        '{"messages": [], "split": "tset_sft"}': r"row 2: its split is 'tset_sft'; did you mean 'test'\?",
        '{"text": "a"}': "neither 'messages'",
        "{": "line 2 is damaged: Expecting",
    }.items(),
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, line, part):
    """An error names the file, the line, and what is wrong there."""
    file = write_lines(tmp_path / "a.jsonl", {"messages": turns("a", "b")})
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(DataError, match=part):
        list(sources.read(file))


def test_turns_of_weight_0_are_not_learned(tmp_path):
    """OpenAI's `weight` leaves a turn of a file in the text and out of what is learned."""
    talk = turns("the", "bad", "so", "good")
    talk[1]["weight"], talk[3]["weight"] = 0, 1
    (record,) = sources.read(write_lines(tmp_path / "a.jsonl", {"messages": talk}))
    encoder = ChatEncoder(write_vocabulary(tmp_path / "vocabulary"))
    assert learned(encoder, record["messages"]) == ["good<|im_end|>"]
    ((ids, predicted),) = encoding.conversations([record], encoder, 64, Tally())
    assert predicted.sum() == len(encoder.tokenizer.encode("good")) + 1 and "bad" in encoder.tokenizer.decode(ids.tolist())


def test_equal_conversations_are_held_out_together():
    """The split depends on the content alone, and shares are kept."""
    records = conversations(2000, 0)
    shares = {"validation": 0.1, "test": 0.2}
    splits = [sources.split_of(record, shares) for record in records]
    by_content: dict[str, set[str]] = {}
    for record, split in zip(records, splits, strict=True):
        by_content.setdefault(json.dumps(record), set()).add(split)
    assert all(len(s) == 1 for s in by_content.values()) and len(by_content) < len(records)
    assert 0.17 < splits.count("test") / 2000 < 0.23 and 0.08 < splits.count("validation") / 2000 < 0.12


def test_nothing_is_lost_in_silence(tmp_path):
    """A conversation that is too long loses its end, and what it loses is counted; one of which nothing is learned is dropped."""
    encoder, tally = ChatEncoder(write_vocabulary(tmp_path)), Tally()
    whole = [encoder.conversation(turns("the cat", "sees the house", "why", "so so"))]
    length = len(whole[0][0]) - 4  # without the end of the last turn
    records = [
        {"messages": turns("the cat", "sees the house", "why", "so so")},
        {"messages": turns("the")},
        {"messages": turns("the " * 60, "so")},
        {"messages": [{"role": "user"}]},
    ]
    made = list(encoding.conversations(records, encoder, length, tally))
    ((ids, predicted),) = made
    assert len(ids) == length and predicted.sum() == whole[0][1].sum() - tally.others["lost"] + encoding_of_so(encoder)
    assert (tally.cut, tally.others["unlearned"], tally.others["learned"]) == (2, 2, int(predicted.sum()))


def encoding_of_so(encoder: ChatEncoder) -> int:
    """How many tokens of "so" and the end of its turn are learned."""
    return int(encoder.conversation(turns("the", "so"))[1].sum())


def test_rows_hold_whole_conversations_with_their_marks(tmp_path):
    """Packed and unpacked, conversations have the tokens and the marks that they had."""
    encoder, tally = ChatEncoder(write_vocabulary(tmp_path)), Tally()
    records = conversations(30, 0)
    rows = list(packing.pack_weighted(encoding.conversations(records, encoder, 64, tally), 64, tally))
    got = [pair for row in rows for pair in unpacked(row)]
    want = [tuple(x.tolist() for x in encoder.conversation(r["messages"])) for r in records]
    assert sorted(got) == sorted(want) and len(rows) < 30
    assert tally.tokens[0] == sum(len(ids) for ids, _ in want)
    assert tally.others["learned"] == sum(sum(marks) for _, marks in want)


def test_a_file_becomes_a_cache(tmp_path):
    """A user's file and a checkpoint's folder make a cache with the template; without one, an error says what to name."""
    file = write_lines(tmp_path / "talks.jsonl", *conversations(40, 0))
    settings = ChatCache.from_source(str(file))
    assert isinstance(settings, ChatCache)
    settings = dataclasses.replace(settings, length=64)
    data = tmp_path / "data"
    with pytest.raises(DataError, match="--vocabulary"):
        prepare.prepare("talks", settings, data_dir=data, progress=lambda line: None)
    vocabulary = write_vocabulary(tmp_path / "vocabulary")
    folder = prepare.prepare("talks", settings, data_dir=data, vocabulary=vocabulary, progress=lambda line: None)
    manifest = json.loads((folder / "manifest.json").read_text())
    held_out = sum(len((folder / f"{split}.jsonl").read_text().splitlines()) for split in ("validation", "test"))
    assert manifest["parts"]["conversations"]["examples"] + held_out == 40
    lines: list[str] = []
    prepare.prepare("talks", settings, data_dir=data, vocabulary=vocabulary, progress=lines.append)
    assert lines == [f"talks: up to date in {folder}"]
    task = task_of(ChatData(cache="talks", batch_size=2, length=64))
    examples = task.held_out(folder, folder, "test", 0)
    assert examples.count and all(row["loss_weights"].any() for row in examples.rows)
    assert "Fine-tuned on" in task.card(manifest)[0]


def test_the_splits_for_fine_tuning_are_read(tmp_path):
    """train_sft and test_sft are the training and the test; train_gen, of another purpose, is named."""
    talks = conversations(12, 0)
    for split, rows in (("train_sft", talks[:8]), ("test_sft", talks[8:10]), ("train_gen", talks[10:])):
        save_to_disk(tmp_path / "ultra" / split, rows)
    (tmp_path / "ultra" / "dataset_dict.json").write_text(json.dumps({"splits": ["train_sft", "test_sft", "train_gen"]}))
    settings, lines = ChatCache.from_source(str(tmp_path / "ultra")), list[str]()
    assert isinstance(settings, ChatCache)
    settings = dataclasses.replace(settings, length=64, validation=0.0)
    vocabulary = write_vocabulary(tmp_path / "vocabulary")
    folder = prepare.prepare("ultra", settings, data_dir=tmp_path, vocabulary=vocabulary, progress=lines.append)
    assert "splits of another purpose are not read: train_gen" in lines
    assert "read 2 files: train_sft/data-00000-of-00001.arrow, test_sft/data-00000-of-00001.arrow" in lines
    assert len((folder / "test.jsonl").read_text().splitlines()) == 2
    assert json.loads((folder / "manifest.json").read_text())["parts"]["conversations"]["examples"] == 8


def tiny_on_chat(folder, monkeypatch, **train):
    """The smallest decoder on a cache of conversations."""
    monkeypatch.setenv("SHARDZOO_DATA", str(folder))
    write_chat_cache(folder / "caches" / "chats")
    e = registry.tiny(registry.load("gpt.smollm2_135m"))
    model = dataclasses.replace(e.model, vocab=322, layers=2, dropout=0.0)
    data = ChatData(cache="chats", batch_size=8, length=64)
    return with_train(
        dataclasses.replace(e, model=model, data=data, eval=dataclasses.replace(e.eval, split="test")),
        finetune={"init_from": ""},
        **train,
    )


def batch_of(e, rows: int = 8) -> dict:
    """The first rows of an experiment's data as one batch."""
    source = open_source(e.data, e.model)
    got = [source.row(i) for i in range(rows)]
    return {name: np.stack([row[name] for row in got]) for name in got[0]}


@pytest.mark.integration
def test_the_loss_is_that_of_each_conversation_alone(tmp_path, monkeypatch):
    """Packed conversations do not see each other, positions begin anew, and only what is learned counts: the loss of packed rows
    is the mean over conversations in rows of their own."""
    e = tiny_on_chat(tmp_path, monkeypatch)
    plan = make_plan(e, jax.devices()[:1])
    model = with_params(plan.model, fresh_state(plan).params)
    batch, sums = batch_of(e), np.zeros(2)
    loss_of = jax.jit(lambda batch: model.loss(batch, Context.evaluation()))
    for row in range(8):
        for segment in range(1, int(batch["segments"][row].max()) + 1):
            here = batch["segments"][row] == segment
            alone = {name: np.zeros((1, 64), np.int32) for name in batch}
            n = int(here.sum())
            alone["tokens"][0, :n], alone["loss_weights"][0, :n] = (batch["tokens"][row][here], batch["loss_weights"][row][here])
            alone["segments"][0, :n], alone["positions"][0, :n] = 1, np.arange(n)
            metric = loss_of(alone).metrics["cross_entropy"]
            sums += float(metric.sum), float(metric.over)
    packed = loss_of(batch)
    assert batch["segments"].max() > 1
    assert float(packed.metrics["cross_entropy"].over) == sums[1] == batch["loss_weights"].sum()
    assert_allclose(float(packed.value), sums[0] / sums[1], rtol=1e-5)


@pytest.mark.integration
def test_gradients_do_not_depend_on_accumulation(tmp_path, monkeypatch):
    """Four microbatches, whose answers are of different lengths, give the gradients of the whole batch."""
    whole, parts = (tiny_on_chat(tmp_path / str(n), monkeypatch, microbatches=n) for n in (1, 4))
    batch, results = batch_of(parts), []
    learned = batch["loss_weights"].reshape(2, 4, -1).sum((0, 2))
    assert len(set(learned.tolist())) > 1
    for e in (whole, parts):
        plan = make_plan(e, jax.devices()[:1])
        context = Context(jax.random.key(0), jnp.int32(0), training=True)
        compute = jax.jit(functools.partial(gradients, plan))
        results.append(compute(fresh_state(plan).params, {k: jnp.asarray(v) for k, v in batch.items()}, context))
    (grads, loss), (other, total) = results
    assert_allclose(float(loss.value), float(total.value), rtol=1e-5)
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-3, atol=1e-6), grads, other)
