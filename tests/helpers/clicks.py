"""Small files of interactions, in the forms that people have them in."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from data.clicks.ids import tables_of
from data.clicks.log import SPLITS
from data.features import Example
from data.reading.caches import read_manifest
from data.reading.examples import unpack

START = 1_000_000_000  # a Sunday, 01:46:40
FILMS = ["Alien (1979)", "Bambi (1942)", "Amélie (2001)", "Dune (1984)", "Eraserhead (1977)", "Fargo (1996)"]
GENRES = ["Horror|Sci-Fi", "Animation|Children's|Drama", "Comedy", "Sci-Fi", "Horror", ""]


def ratings(n: int = 120, users: int = 9, seed: int = 0) -> list[tuple[int, int, int, int]]:
    """Distinct (user, film, rating, time), an hour apart, in no order; users and films are numbers from 1 and from 10 on."""
    rng = np.random.default_rng(seed)
    made = [
        (int(rng.integers(1, users + 1)), 10 + int(rng.integers(len(FILMS))), int(rng.integers(1, 6)), START + 3600 * i)
        for i in range(n)
    ]
    return [made[i] for i in rng.permutation(n)]


def write_movielens(folder: Path, form: str, rows: list[tuple[int, int, int, int]]) -> Path:
    """Writes a folder in the form of ml-100k ("u.data"), ml-1m ("ratings.dat") or ml-latest ("ratings.csv")."""
    from data.clicks.sources import GENRES as FLAGS

    folder.mkdir()
    numbered = list(zip(range(10, 10 + len(FILMS)), FILMS, GENRES, strict=True))
    if form == "u.data":
        (folder / "u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
        lines = [
            "|".join([str(n), title, "01-Jan-1995", "", "http://x", *("01"[f in genres.split("|")] for f in FLAGS)])
            for n, title, genres in numbered
        ]
        (folder / "u.item").write_text("\n".join(lines) + "\n", encoding="latin-1")
    elif form == "ratings.dat":
        (folder / "ratings.dat").write_text("".join("::".join(map(str, row)) + "\n" for row in rows))
        lines = [f"{n}::{title}::{genres}\n" for n, title, genres in numbered]
        (folder / "movies.dat").write_text("".join(lines), encoding="latin-1")
    else:
        write_csv(folder / "ratings.csv", [dict(zip(("userId", "movieId", "rating", "timestamp"), r, strict=True)) for r in rows])
        films = [{"movieId": n, "title": t, "genres": g or "(no genres listed)"} for n, t, g in numbered]
        write_csv(folder / "movies.csv", films)
    return folder


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Writes a table; the first row says the columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def criteo_line(label: int, numbers: list[int | None], categories: list[int | None]) -> str:
    """A line as Criteo writes it: empty where something is missing."""
    fields = [str(label), *("" if n is None else str(n) for n in numbers)]
    return "\t".join([*fields, *("" if c is None else f"{c:08x}" for c in categories)]) + "\n"


def criteo_lines(n: int, seed: int = 0) -> list[str]:
    """Random lines, of which some fields are missing and the first number is the line's."""
    rng = np.random.default_rng(seed)
    lines = []
    for i in range(n):
        numbers = [None if rng.random() < 0.2 else int(rng.integers(-2, 1000)) for _ in range(12)]
        categories = [None if rng.random() < 0.2 else int(rng.integers(2**32)) for _ in range(26)]
        lines.append(criteo_line(int(rng.integers(2)), [i, *numbers], categories))
    return lines


def stored_rows(cache: Path) -> dict[str, list[Example]]:
    """Returns the stored rows of each split of a cache, with their ids by table; those of training are in random order."""
    import grain

    from data.clicks.config import ClickData

    manifest = read_manifest(cache)
    tables = tables_of(manifest)
    stored = ClickData(batch_size=1, hotness=tuple(t.hotness for t in tables), dense=manifest["dense"]).stored()
    rows = {}
    for split in SPLITS:
        records: Any = grain.sources.ArrayRecordDataSource(
            str(cache / ("train/all" if split == "train" else split)) + ".array_record"
        )
        rows[split] = []
        for number in range(len(records)):
            block = unpack(np.frombuffer(records[number], np.uint8), stored)
            each = np.split(block["ids"], np.cumsum(block["counts"].astype(int).ravel())[:-1])
            for at in np.flatnonzero(block["label"] >= 0).tolist():
                row = {name: block[name][at] for name in ("dense", "label", "counts")}
                by_table: Any = each[at * len(tables) : (at + 1) * len(tables)]
                rows[split].append(row | {"ids": np.concatenate(by_table), "by_table": by_table})
    return rows
