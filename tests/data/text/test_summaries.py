"""Reports and summaries in full rows, from a user's table to what is learned and scored."""

import json
from pathlib import Path

import numpy as np
import pytest

from data.prepare import prepare, settings_from
from data.reading.tally import Tally
from data.task import DataError
from data.text import summaries
from data.text.caches import SummaryCache
from data.text.config import SummaryData
from data.text.task import SummaryTask, task
from data.vocabularies import tokenizers
from data.vocabularies.tokenizers import Tokenizer
from tests.helpers.caches import texts


@pytest.fixture
def vocabulary(tmp_path) -> Path:
    folder = tmp_path / "vocabulary"
    folder.mkdir()
    tokenizers.train_bpe(texts(200, 0), folder / tokenizers.FILE, 300)
    return folder


def pairs(n: int) -> list[dict[str, str]]:
    return [{"input": text, "output": " ".join(text.split()[:3])} for text in texts(n, 1)]


def test_rows_are_one_running_text(vocabulary):
    """Rows are full, and together the texts in order; all is learned, of held-out ones the summaries are scored, without ends."""
    tokenizer, length = Tokenizer(vocabulary), 96
    tally, few = Tally(), pairs(20)
    rows = np.array(list(summaries.rows_of(few, tokenizer, length, tally))).reshape(-1, 4, length)
    held = np.array(list(summaries.rows_of(few, tokenizer, length, Tally(), summaries=True))).reshape(-1, 4, length)
    assert tally.examples + tally.left_out == 20 and tally.others["tokens"] // length == len(rows) > 3
    assert (rows[:, 0] == held[:, 0]).all() and (rows[:, 1] == 1).all() and (rows[:, 3] == 1).all()
    assert (rows[:, 2] == np.arange(length)).all()
    text = tokenizer.decode(rows[:, 0].reshape(-1).tolist())
    fits = [p for p in few if len(tokenizer.encode(_whole(p))) + len(tokenizer.before) < length]
    assert tally.examples == len(fits) and text.replace("<|endoftext|>", "").startswith("".join(map(_whole, fits))[:200])
    scored = tokenizer.decode(held[:, 0][held[:, 3] > 0].tolist())
    # The first word of these summaries shares a token with the blank before it, which is given.
    assert scored.startswith("".join(p["output"][p["output"].index(" ") :] for p in fits[:2])) and "###" not in scored


def _whole(pair: dict[str, str]) -> str:
    return f"### Summarize the following text:\n {pair['input']}\n ### Summary:\n {pair['output']}"


def test_a_table_becomes_a_cache(vocabulary, tmp_path):
    """A table with input and output is taken by its columns alone; a text that is too long is left out and counted."""
    table = tmp_path / "reports.jsonl"
    table.write_text("".join(json.dumps(p) + "\n" for p in [*pairs(300), {"input": "red " * 200, "output": "red"}]))
    settings = settings_from(str(table))
    assert isinstance(settings, SummaryCache) and settings.released and settings.length == 8192
    small = SummaryCache(source=settings.source, length=96, validation=0.2)
    folder = prepare("reports", small, data_dir=tmp_path / "data", vocabulary=vocabulary, progress=lambda _: None)
    manifest = json.loads((folder / "manifest.json").read_text())
    (part,) = manifest["parts"].values()
    assert part["rows"] == part["tokens"] // 96 and part["rows"] > 50 and part["dropped"] >= 1
    data = SummaryData(cache="reports", batch_size=4, length=96)
    reader = task(data)
    assert isinstance(reader, SummaryTask) and reader.rows(manifest) == part["rows"]
    held = reader.held_out(folder, folder, "validation", 0)
    assert held.count == len(held.rows) > 5 and 0 < np.mean([row["loss_weights"].mean() for row in held.rows]) < 0.5
    with pytest.raises(DataError, match="does not fill a row of 96"):
        reader.held_out(folder, folder, "validation", 1)
