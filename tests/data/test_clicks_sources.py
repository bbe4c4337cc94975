"""Files of interactions as people have them, and what is refused."""

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from data.clicks import sources
from data.clicks.caches import ClickCache
from data.clicks.ids import Hashed, Listed, mixed
from data.clicks.sources import opened
from data.prepare import prepare, settings_from
from data.reading.caches import examples, read_manifest
from data.reading.tally import Tally
from data.task import DataError
from tests.helpers.clicks import FILMS, GENRES, START, criteo_line, criteo_lines, ratings, stored_rows, write_csv, write_movielens


def made(source: Path | str, root: Path, name: str = "own", columns: str = "", **fields: Any) -> Path:
    """Prepares a cache of somebody's interactions."""
    settings = settings_from(str(source), columns, kind="clicks")
    return prepare(name, dataclasses.replace(settings, **fields), data_dir=root, progress=lambda line: None)


# --- ids ---


def test_hashes_are_the_same_everywhere():
    """Pinned numbers: SHA-256 of the table's name and the value, and SplitMix64, whose first outputs are published."""
    assert [Hashed("user", 1000).row(name) for name in ("1", "2", "Amélie")] == [406, 887, 605]
    assert Hashed("item", 1000).row("1") != 406
    # The generator of seed 0 adds its constant before each output.
    constant = 0x9E3779B97F4A7C15
    assert mixed(np.array([0, constant], np.uint64)).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_listed_values_have_rows_of_their_own():
    """From 1 on, and 0 is for all others."""
    ids = Listed(["b", "a", "b"])
    assert ids.size == 3 and [ids.row(value) for value in ("b", "a", "c")] == [1, 2, 0]


# --- MovieLens ---


@pytest.mark.parametrize("form", ["u.data", "ratings.dat", "ratings.csv"])
def test_movielens_is_read_in_each_of_its_forms(form, tmp_path):
    """Ratings from 4 on are positive; films have titles and genres, users and films the numbers of the file."""
    rows = ratings()
    folder = write_movielens(tmp_path / "ml", form, rows)
    cache = made(folder, tmp_path)
    manifest = read_manifest(cache)
    assert [table["name"] for table in manifest["tables"]] == ["user", "item", "hour", "weekday", "genre"]
    assert manifest["tables"][4]["hotness"] == 3 and manifest["numbers"] == ["user_before", "item_before"]
    held = [*examples(cache, "validation"), *examples(cache, "test")]
    last = sorted(rows, key=lambda row: row[3])[-len(held) :]
    assert [(e["user"], e["item"], e["label"]) for e in held] == [(str(u), str(i), int(r >= 4)) for u, i, r, _ in last]
    # The same through the stored rows: genres by the ids that they have in the list of items.
    from data.clicks.catalogue import ITEMS
    from data.untrusted import json_lines

    items = {entry["item"]: entry for _, entry in json_lines(cache / ITEMS, DataError)}
    assert {n: entry["name"] for n, entry in items.items()} == {str(n): FILMS[int(n) - 10] for n in items}
    words: dict[str, list[str]] = {n: [g for g in GENRES[int(n) - 10].split("|") if g] for n in items}
    known = sorted({word for n in items for word in words[n]})
    assert all(entry["ids"]["genre"] == [1 + known.index(word) for word in words[n]] for n, entry in items.items())
    for example, row in zip(examples(cache, "test"), stored_rows(cache)["test"], strict=True):
        assert row["by_table"][4].tolist() == items[example["item"]]["ids"]["genre"]
        assert row["by_table"][1].tolist() == items[example["item"]]["ids"]["item"]
    # 2001-09-09 was a Sunday, and the first rating is of 01:46.
    data = opened(f"folder:{folder}", {}, 4.0, Tally(), tmp_path)
    assert data.contexts["hour"][:3].tolist() == [1, 2, 3] and data.contexts["weekday"][0] == 6


def test_all_forms_of_movielens_give_the_same_rows(tmp_path):
    """Record by record."""
    stored = [
        stored_rows(made(write_movielens(tmp_path / form, form, ratings()), tmp_path, f"c{n}"))
        for n, form in enumerate(("u.data", "ratings.dat", "ratings.csv"))
    ]
    for other in stored[1:]:
        for split, rows in stored[0].items():
            for a, b in zip(rows, other[split], strict=True):
                assert a["ids"].tolist() == b["ids"].tolist() and a["label"] == b["label"]


def test_a_file_of_ratings_is_enough(tmp_path):
    """Without films there are no genres and no titles."""
    folder = write_movielens(tmp_path / "ml", "u.data", ratings())
    (folder / "u.item").unlink()
    cache = made(folder / "u.data", tmp_path, positive=3.0, hashed=64)
    manifest = read_manifest(cache)
    assert [table["name"] for table in manifest["tables"]] == ["user", "item", "hour", "weekday"]
    assert {table["rows"] for table in manifest["tables"]} == {64}
    held = {(e["user"], e["item"]) for e in examples(cache, "test")}
    assert held <= {(str(u), str(i)) for u, i, *_ in ratings()}
    rows = stored_rows(cache)
    for example, row in zip(examples(cache, "test"), rows["test"], strict=True):
        assert row["by_table"][0].tolist() == [Hashed("user", 64).row(example["user"])]


@pytest.mark.integration
def test_tfds_movielens_is_read_by_its_fields(tmp_path):
    """As TFDS stores them: texts are bytes, genres are classes."""
    import tensorflow_datasets as tfds

    rows = ratings()
    features = tfds.features.FeaturesDict(
        {
            "user_id": tfds.features.Text(),
            "movie_id": tfds.features.Text(),
            "movie_title": tfds.features.Text(),
            "movie_genres": tfds.features.Sequence(tfds.features.ClassLabel(names=sources.GENRES)),
            "user_rating": np.float32,
            "timestamp": np.int64,
        }
    )

    def example(row: tuple[int, int, int, int]) -> dict[str, Any]:
        user, film, rating, time = row
        genres = [genre for genre in GENRES[film - 10].split("|") if genre]
        return {
            "user_id": str(user),
            "movie_id": str(film),
            "movie_title": FILMS[film - 10],
            "movie_genres": genres,
            "user_rating": rating,
            "timestamp": time,
        }

    tfds.dataset_builders.store_as_tfds_dataset(
        name="movielens",
        config="100k-ratings",
        version="0.1.1",
        data_dir=tmp_path / "tfds",
        features=features,
        split_datasets={"train": [(n, example(row)) for n, row in enumerate(rows)]},
    )
    one = stored_rows(made("tfds:movielens/100k-ratings", tmp_path, "public"))
    other = stored_rows(made(write_movielens(tmp_path / "ml", "u.data", rows), tmp_path))
    assert [r["ids"].tolist() for r in one["test"]] == [r["ids"].tolist() for r in other["test"]]


# --- Criteo ---


def test_criteo_is_hashed_into_tables(tmp_path):
    """The last lines are held out; numbers are log(1 + x), 0 where one is missing or negative."""
    lines = criteo_lines(200)
    (tmp_path / "train.txt").write_text("".join(lines))
    cache = made(tmp_path / "train.txt", tmp_path, hashed=1000)
    manifest = read_manifest(cache)
    assert len(manifest["tables"]) == 26 and manifest["dense"] == 13
    assert manifest["tables"][25] == {"name": "C26", "rows": 1000, "hotness": 1}
    rows = stored_rows(cache)
    assert [len(rows[split]) for split in ("train", "validation", "test")] == [170, 10, 20]
    rows["train"] = sorted(rows["train"], key=lambda row: row["dense"][0])  # the first number is the line's
    for split, first in (("train", 0), ("validation", 170), ("test", 180)):
        for row, line in zip(rows[split], lines[first:], strict=False):
            label, *fields = line.rstrip("\n").split("\t")
            assert row["label"] == int(label)
            expected = [np.log1p(max(int(text), 0)) if text else 0 for text in fields[:13]]
            assert_allclose(row["dense"], expected, rtol=1e-6)
            assert (row["counts"] == 1).all() and (row["ids"] < 1000).all()
    again = made(tmp_path / "train.txt", tmp_path, "again", hashed=1000)
    assert read_manifest(again)["fingerprint"] == manifest["fingerprint"]


def test_a_category_is_spread_and_stable(tmp_path):
    """Equal values have equal rows in one table and mostly others in another; a missing value is one of them."""
    lines = [criteo_line(i % 2, [i] * 13, [0xABCDEF if i < 30 else None] * 26) for i in range(60)]
    (tmp_path / "train.txt").write_text("".join(lines))
    rows = stored_rows(made(tmp_path, tmp_path / "root", hashed=1 << 20))["train"]
    rows = sorted(rows, key=lambda row: row["dense"][0])
    assert len({tuple(row["ids"].tolist()) for row in rows[:30]}) == 1
    assert len({*rows[0]["ids"].tolist()}) == 26 and len({*rows[0]["ids"].tolist(), *rows[40]["ids"].tolist()}) == 52


def test_days_follow_each_other_by_number(tmp_path):
    """day_10 comes after day_2; files may be compressed."""
    import gzip

    lines, folder = criteo_lines(60), tmp_path / "days"
    folder.mkdir()
    (folder / "day_2").write_text("".join(lines[:30]))
    (folder / "day_10.gz").write_bytes(gzip.compress("".join(lines[30:]).encode()))
    (folder / "test.txt").write_text("no labels")
    rows = stored_rows(made(folder, tmp_path, hashed=50, validation=0.1, test=0.1))
    numbers = {split: [np.expm1(row["dense"][0]) for row in some] for split, some in rows.items()}
    assert_allclose(sorted(numbers["train"]), np.arange(48), rtol=1e-5)
    assert_allclose(numbers["validation"] + numbers["test"], np.arange(48, 60), rtol=1e-5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\t2\n", "train.txt, line 31: 2 fields, where Criteo's lines have 40, with tabs between"),
        (criteo_line(2, [1] * 13, [1] * 26), "train.txt, line 31: its label is '2', neither 0 nor 1; the nearest is 1"),
        (criteo_line(1, [1] * 13, [1] * 26).replace("00000001\n", "xyz\n"), "train.txt, line 31: C26 is no hexadecimal number"),
        (criteo_line(1, [1] * 13, [1] * 26).replace("1\t1\t", "1\tone\t", 1), "train.txt, line 31: I1 is no whole number: 'one'"),
    ],
)
def test_a_damaged_line_of_criteo_is_named(line, message, tmp_path):
    """And nothing half-written is left."""
    (tmp_path / "train.txt").write_text("".join([*criteo_lines(30), line, *criteo_lines(30)]))
    with pytest.raises(DataError, match=f"^{message}"):
        made(tmp_path / "train.txt", tmp_path / "root")
    assert [p for p in (tmp_path / "root" / "caches").iterdir() if p.is_dir()] == []


# --- tables ---

TABLE = [{"user": f"u{i % 7}", "item": f"i{i % 11}", "label": i % 3 == 0, "time": START + i} for i in range(90)]


def test_tables_of_all_forms_give_the_same_rows(tmp_path):
    """Labels as 0, True and "1", times as numbers, texts and timestamps; columns by other names."""
    import json

    import pyarrow as pa
    from pyarrow import parquet

    def moment(row: dict[str, Any]) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(row["time"], datetime.UTC)

    write_csv(tmp_path / "a.csv", [row | {"label": int(row["label"])} for row in TABLE])
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row | {"time": moment(row).isoformat()}) + "\n" for row in TABLE))
    parquet.write_table(pa.Table.from_pylist([row | {"time": moment(row)} for row in TABLE]), tmp_path / "c.parquet")
    renamed = [
        {"who": r["user"], "item_id": r["item"], "clicked": float(r["label"]), "timestamp": 1000 * r["time"]} for r in TABLE
    ]
    write_csv(tmp_path / "d.csv", renamed)
    caches = [
        made(tmp_path / name, tmp_path, f"c{n}", columns="user=who" if name == "d.csv" else "")
        for n, name in enumerate(("a.csv", "b.jsonl", "c.parquet", "d.csv"))
    ]
    fingerprints = [read_manifest(cache)["files"]["train/all.array_record"] for cache in caches]
    assert len({*fingerprints}) == 1
    test = [row["label"] for row in stored_rows(caches[0])["test"]]
    assert test == [float(row["label"]) for row in TABLE[-9:]]


def test_ratings_of_a_table_are_labels(tmp_path):
    """From the bound on that the settings say."""
    table = write_csv(tmp_path / "a.csv", [row | {"rating": i % 5} for i, row in enumerate(TABLE)])
    rows = [{k: v for k, v in row.items() if k != "label"} | {"rating": i % 5 + 1} for i, row in enumerate(TABLE)]
    write_csv(table, rows)
    for positive in (2.0, 4.0):
        test = stored_rows(made(table, tmp_path, positive=positive))["test"]
        assert [row["label"] for row in test] == [float(row["rating"] >= positive) for row in rows[-9:]]


def test_rows_without_a_user_are_left_out_and_named(tmp_path):
    """The report says how many, and the first."""
    lines: list[str] = []
    table = write_csv(tmp_path / "a.csv", [*TABLE, {"user": "", "item": "i1", "label": 1, "time": START}])
    settings = settings_from(str(table))
    assert isinstance(settings, ClickCache)
    prepare("own", settings, data_dir=tmp_path, progress=lines.append)
    assert "the source: 1 of 91 interactions left out; a.csv, row 91: no user" in lines
    assert "read 1 file: a.csv" in lines


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        (
            [{"user": 1, "itm": 2, "label": 1}] * 9,
            "",
            r"a.csv, row 1: no column 'item'; did you mean 'itm'\? \(--columns item=itm\)",
        ),
        ([{"user": 1, "item": 2, "label": 1}] * 9, "item=films", r".*a.csv: no column 'films'; choose from item, label, user"),
        ([{"user": 1, "item": 2, "label": "yes"}] * 9, "", "a.csv, row 1: its label is no number: 'yes'"),
        ([{"user": 1, "item": 2, "label": 3}] * 9, "", "a.csv, row 1: its label is '3', neither 0 nor 1; the nearest is 1"),
        ([{"user": 1, "item": 2, "label": ""}] * 9, "", "a.csv, row 1: its label is none, neither 0 nor 1$"),
        ([{"user": 1, "item": 2, "label": 1, "time": "soon"}] * 9, "", "a.csv, row 1: its time is none, as 2018-05-17T14:30 or"),
        ([{"user": 1, "item": 2, "rating": "good"}] * 9, "", "a.csv, row 1: its rating is no number: 'good'"),
        ([{"user": "", "item": 2, "label": 1}] * 9, "", ".*a.csv: no interaction in it; a.csv, row 1: no user"),
        ([{"user": 1, "item": 2, "label": 1}] * 2, "", "validation: no interaction in it; there are 2 in all"),
        (
            [{"user": 1, "item": 2, "label": 1, "time": 5}] * 90,
            "",
            "train: no interaction in it; there are 90 in all, of 1 times",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_in_a_line(rows, columns, message, tmp_path):
    """It names the column, or the row and its value."""
    table = write_csv(tmp_path / "a.csv", rows)
    with pytest.raises(DataError, match=f"^{message}"):
        made(table, tmp_path, columns=columns)
    assert not (tmp_path / "caches" / "own").exists()


def test_an_empty_file_is_refused(tmp_path):
    """A table without rows, files of ratings without lines, a log without lines."""
    (tmp_path / "a.csv").write_text("user,item,label\n")
    (tmp_path / "u.data").write_text("")
    (tmp_path / "train.txt").write_text("")
    with pytest.raises(DataError, match="no kind of data has"):
        made(tmp_path / "a.csv", tmp_path)
    for file, message in (("u.data", "u.data: no interaction in it"), ("train.txt", "train.txt: no line in it")):
        with pytest.raises(DataError, match=message):
            made(tmp_path / file, tmp_path)


def test_other_tables_are_of_other_kinds(tmp_path):
    """A table of texts with labels is not taken for one of clicks, whoever wrote them."""
    assert settings_from(str(write_csv(tmp_path / "a.csv", [{"text": "x", "label": "y", "user": "z"}]))).kind == "labelled"
    assert settings_from(str(write_csv(tmp_path / "b.csv", TABLE))).kind == "clicks"
    (tmp_path / "train.txt").write_text("A text\tof a book.\n")
    assert settings_from(str(tmp_path / "train.txt")).kind == "text"
