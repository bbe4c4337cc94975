"""The files that people have of interactions: tables, MovieLens', Criteo's. No TensorFlow; TFDS is imported where it is read.

a table                a column `user`, one `item`, perhaps `label` (0 or 1) or `rating`, perhaps `time`; --columns renames them
ratings.csv            MovieLens since 2014, with movies.csv; ratings.dat with movies.dat and u.data with u.item before
train.txt, day_0, ...  Criteo's: a label, 13 whole numbers and 26 hexadecimal categories, separated by tabs
tfds:movielens/NAME    what TFDS has prepared
"""

import datetime
import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data import untrusted
from data.clicks.interactions import ITEM, USER, Interactions
from data.packages.locations import Location
from data.reading import tables
from data.reading.tally import Tally
from data.task import DataError
from models.errors import nearest, shortened

NAMES = {
    USER: (USER, "user_id", "userId"),
    ITEM: (ITEM, "item_id", "itemId"),
    "label": ("label", "click", "clicked"),
    "rating": ("rating",),
    "time": ("time", "timestamp"),
}
"""The columns of a table, each by the names that it may have."""
MOVIES = {"ratings.csv": "movies.csv", "ratings.dat": "movies.dat", "u.data": "u.item"}
"""MovieLens' files of ratings, and those of films that lie beside them."""
_RATED = {USER: "userId", ITEM: "movieId", "rating": "rating", "time": "timestamp"}
# Of u.item's columns behind the fifth, in order (ml-100k's u.genre, from memory).
GENRES = (
    "unknown",
    *("Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy", "Film-Noir"),
    *("Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
_NO_GENRES = "(no genres listed)"
CRITEO = re.compile(r"(?:train\.txt|day_(\d+))(?:\.(?:gz|bz2|xz|zst))?")
FIELDS = (13, 26)
"""Criteo's numbers and categories in a row."""
_MILLISECONDS = 1e11  # from which on a time is no number of seconds: the year 5138
_DAY = 86_400
_NUMERAL = re.compile(r"-?[\d.]+(?:[eE][+-]?\d+)?")


def form_of(source: str | Path, columns: Mapping[str, str] | None = None) -> str | None:
    """Returns "movielens", "criteo" or "table" for files of interactions; None for others.

    Raises:
      DataError: a table lacks one of `columns`, or has a user but no item, or the reverse, and a column that is called nearly so.
    """
    path = Path(source)
    if criteo_files(path):
        return "criteo"
    if (ratings := ratings_of(path)) and (ratings.suffix != ".csv" or {*_RATED.values()} <= {*(tables.first(ratings) or ())}):
        return "movielens"
    row = tables.first(source, columns) if tables.files(source) else None
    if row is None:
        return None
    user, item = (column_of(row, name) for name in (USER, ITEM))
    if bool(user) != bool(item):
        missing, known = (ITEM if user else USER), {*itertools.chain.from_iterable(NAMES.values())}
        if near := difflib.get_close_matches(missing, {*row} - known, n=1, cutoff=0.6):
            raise DataError(f"{row.place}: no column '{missing}'; did you mean '{near[0]}'? (--columns {missing}={near[0]})")
        return None
    return "table" if user else None


def column_of(row: Mapping[str, Any], name: str) -> str:
    """Returns the column of a table that is one of NAMES; "" if it has none."""
    return next((column for column in NAMES[name] if column in row), "")


def ratings_of(path: Path) -> Path | None:
    """Returns MovieLens' file of ratings: the path, or the one in a folder; None if there is none."""
    if path.is_dir():
        return next((path / name for name in MOVIES if (path / name).is_file()), None)
    return path if path.name in MOVIES and path.is_file() else None


def criteo_files(path: Path) -> list[Path]:
    """Returns Criteo's files in the order of their days: the path, or those in a folder; [] if they are none."""
    named = [file for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file() and CRITEO.fullmatch(file.name)]
    files = sorted(named, key=lambda file: (int((CRITEO.fullmatch(file.name) or [0, 0])[1] or 0), file.name))
    first = next((line for file in files[:1] for _, line in untrusted.lines(file, DataError)), "")
    return files if files and (not first or len(first.split("\t")) == 1 + sum(FIELDS)) else []


def opened(source: str, columns: Mapping[str, str], positive: float, tally: Tally, tfds: Path) -> Interactions:
    """Returns the interactions of a source other than Criteo's.

    Args:
      source: as of data.clicks.caches.ClickCache.
      columns: the columns of a table that are called otherwise.
      positive: the rating from which on a label is 1.
      tally: counts the rows that can be used, and those that are left out.
      tfds: the folder of what TFDS has prepared.

    Raises:
      DataError: there is no row, a column is missing, or a label, a rating or a time is none.
    """
    location = Location.of(source)
    if location.scheme == "tfds":
        return _collected(_of_tfds(location.name, tfds), positive, tally, location.name, {})
    form = form_of(location.name, columns)
    if form == "movielens":
        ratings = ratings_of(location.path)
        assert ratings is not None
        beside = ratings.parent / MOVIES[ratings.name]
        films = _films(beside) if beside.is_file() else {}
        return _collected(_ratings(ratings), positive, tally, str(ratings), films)
    return _collected(_of_table(location.name, columns), positive, tally, location.name, {})


# --- interactions -----------------------------------------------------------------------------------------------------


class Event(NamedTuple):
    """An interaction as a file has it.

    Attributes:
      place: where it stands, for messages.
      user, item: their names; "" where one is missing.
      label: 0 or 1, or None.
      rating, time: numbers, or None; the time in seconds since 1970.
      title, words: the item's name, and its features by name, where each row has them.
    """

    place: str
    user: str
    item: str
    label: Any = None
    rating: float | None = None
    time: float | None = None
    title: str = ""
    words: Mapping[str, Sequence[str]] = {}


Films = Mapping[str, tuple[str, Sequence[str]]]  # by number: title, genres


def _collected(events: Iterable[Event], positive: float, tally: Tally, name: str, films: Films) -> Interactions:
    """Returns events as arrays, in order of time where all have one."""
    users, items = dict[str, int](), dict[str, int]()
    codes, labels, times, first = list[tuple[int, int]](), list[float | None](), list[float | None](), dict[int, Event]()
    for event in events:
        if not (event.user and event.item):
            tally.leave_out(event.place, f"no {USER if not event.user else ITEM}")
            continue
        user, item = users.setdefault(event.user, len(users)), items.setdefault(event.item, len(items))
        codes.append((user, item))
        labels.append(event.label if event.rating is None else float(event.rating >= positive))
        times.append(event.time)
        first.setdefault(item, event)
    if not codes:
        raise DataError(f"{name}: no interaction in it{f'; {tally.reasons[0]}' if tally.reasons else ''}")
    tally.examples = len(codes)
    codes_2N = np.array(codes, np.int64).T
    order_N, times_N, contexts = np.arange(len(codes)), None, {}
    if None not in times:
        times_N = np.array(times, np.float64)
        order_N = np.argsort(times_N, kind="stable")
        times_N = times_N[order_N]
        contexts = {"hour": (times_N % _DAY // 3600).astype(np.int64), "weekday": ((times_N // _DAY + 3) % 7).astype(np.int64)}
    titles, features = _described(list(items), list(first.values()), films)
    return Interactions(
        users=codes_2N[0][order_N],
        items=codes_2N[1][order_N],
        user_names=list(users),
        item_names=list(items),
        titles=titles,
        labels=None if None in labels else np.array(labels, np.float32)[order_N],
        times=times_N,
        contexts=contexts,
        features=features,
    )


def _described(items: Sequence[str], first: Sequence[Event], films: Films) -> tuple[list[str], dict[str, list[Sequence[str]]]]:
    """Returns the title of each item, and its features by name.

    Args:
      first: the first event of each item.
      films: what is known of items beside the events.
    """
    titles = [event.title or (films[item][0] if item in films else "") for item, event in zip(items, first, strict=True)]
    words: list[Mapping[str, Sequence[str]]] = [
        event.words or ({"genre": films[item][1]} if item in films else {}) for item, event in zip(items, first, strict=True)
    ]
    names = dict.fromkeys(name for some in words for name in some)
    return titles, {name: [some.get(name, ()) for some in words] for name in names}


def _number(value: Any, what: str, place: str) -> float | None:
    """Returns a number, None of a missing one; raises DataError for what is none."""
    if value is None or value == "" or value != value:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise DataError(f"{place}: its {what} is no number: {shortened(str(value))!r}") from None
    if not abs(number) < float("inf"):
        raise DataError(f"{place}: its {what} is {number}")
    return number


def label_of(value: Any, place: str) -> float:
    """Returns a label, 0 or 1 in any form; raises DataError for another."""
    number = {"true": 1.0, "false": 0.0}.get(str(value).lower())
    number = _number(value, "label", place) if number is None else number
    if number not in (0.0, 1.0):
        nearer = "none" if number is None else f"{shortened(str(value))!r}"
        hint = "" if number is None else f"; the nearest is {int(number > 0.5)}, and what is rated stands in a column `rating`"
        raise DataError(f"{place}: its label is {nearer}, neither 0 nor 1{hint}")
    return number


def _time(value: Any, place: str) -> float | None:
    """Returns a time in seconds since 1970; raises DataError for what is none."""
    if isinstance(value, datetime.datetime | datetime.date):
        value = value.isoformat()
    if isinstance(value, str) and value and not _NUMERAL.fullmatch(value):
        try:
            value = _of_words(value)
        except ValueError:
            raise DataError(f"{place}: its time is none, as 2018-05-17T14:30 or 1526567400: {shortened(value)!r}") from None
    number = _number(value, "time", place)
    return number / 1000 if number is not None and number >= _MILLISECONDS else number


def _of_words(value: str) -> float:
    moment = datetime.datetime.fromisoformat(value)
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


# --- tables -----------------------------------------------------------------------------------------------------------


def _of_table(source: str, columns: Mapping[str, str]) -> Iterator[Event]:
    named = dict[str, str]()
    for row in tables.rows(source, columns):
        if not named:
            named = {name: column_of(row, name) for name in NAMES}
            for name in (USER, ITEM):
                if not named[name]:
                    raise DataError(f"{row.place}: no column '{name}'{nearest(name, row)} (--columns {name}=COLUMN)")
        values = {name: row.get(column) if column else None for name, column in named.items()}
        user, item = ("" if v is None or v != v else str(v) for v in (values[USER], values[ITEM]))
        label = label_of(values["label"], row.place) if named["label"] else None
        rating = _number(values["rating"], "rating", row.place) if named["rating"] and label is None else None
        if named["rating"] and label is None and rating is None:
            raise DataError(f"{row.place}: no rating")
        yield Event(row.place, user, item, label, rating, _time(values["time"], row.place))


# --- MovieLens --------------------------------------------------------------------------------------------------------


def _ratings(file: Path) -> Iterator[Event]:
    """Yields MovieLens' ratings: of ratings.csv, with a header; of ratings.dat, "::" between; of u.data, tabs between."""
    if file.suffix == ".csv":
        for row in tables.rows(file):
            user, item, rating, time = (row[column] for column in _RATED.values())
            yield _rated(row.place, str(user), str(item), rating, time)
        return
    sign = "::" if file.suffix == ".dat" else "\t"
    for number, line in untrusted.lines(file, DataError):
        place = f"{file.name}, line {number}"
        if not line.strip():
            continue
        parts = line.rstrip("\r\n").split(sign)
        if len(parts) != 4:
            raise DataError(f"{place}: {len(parts)} fields, where MovieLens has 4: user, film, rating, time")
        yield _rated(place, *parts)


def _rated(place: str, user: str, item: str, rating: Any, time: Any) -> Event:
    number = _number(rating, "rating", place)
    if number is None:
        raise DataError(f"{place}: no rating")
    return Event(place, user, item, rating=number, time=_time(time, place))


def _films(file: Path) -> dict[str, tuple[str, Sequence[str]]]:
    """Returns title and genres of each film, by number."""
    if file.suffix == ".csv":
        rows: Iterable[tuple[Any, Any, Any]] = ((r.get("movieId"), r.get("title"), r.get("genres")) for r in tables.rows(file))
        return {str(film): (str(title), _genres(str(genres or ""))) for film, title, genres in rows}
    films, sign = {}, "::" if file.suffix == ".dat" else "|"
    for number, line in enumerate(_latin_lines(file), 1):
        parts = line.split(sign)
        if len(parts) != (3 if sign == "::" else 5 + len(GENRES)):
            raise DataError(f"{file.name}, line {number}: {len(parts)} fields, which MovieLens' {file.name} has not")
        flags = [genre for genre, flag in zip(GENRES, parts[5:], strict=False) if flag == "1"]
        films[parts[0]] = (parts[1], _genres(parts[2]) if sign == "::" else flags)
    return films


def _genres(text: str) -> list[str]:
    return [genre for genre in text.split("|") if genre and genre != _NO_GENRES]


def _latin_lines(file: Path) -> Iterator[str]:
    """Yields the lines of a file in ISO 8859-1, as MovieLens' older files of films are."""
    text = untrusted.read_bytes(file, DataError).decode("latin-1")
    return (line.rstrip("\r") for line in text.split("\n") if line.strip())


def _of_tfds(name: str, folder: Path) -> Iterator[Event]:
    """Yields the ratings of TFDS' `movielens`, as its fields are called."""
    from data.packages.tfds import Part, dataset_folder, open_builder

    stored = dataset_folder(name if ":" in name else _newest(name, folder), folder)
    features: Any = open_builder(stored).info.features
    genres = features["movie_genres"].feature.names if "movie_genres" in features else []
    for number, example in enumerate(Part(stored, "train")):
        place = f"{name}, example {number}"
        try:
            user, item = (example[key].decode() for key in ("user_id", "movie_id"))
            rating, time = float(example["user_rating"]), float(example["timestamp"])
        except KeyError as problem:
            raise DataError(f"{place}: no field {problem}{nearest(str(problem.args[0]), example)}") from None
        title = example["movie_title"].decode() if "movie_title" in example else ""
        words = {"genre": [genres[genre] for genre in example["movie_genres"].tolist()]} if genres else {}
        yield Event(place, user, item, rating=rating, time=time, title=title, words=words)


def _newest(name: str, folder: Path) -> str:
    versions = sorted(path.parent.name for path in (folder / name).glob("*/dataset_info.json"))
    return f"{name}:{versions[-1]}" if versions else name


# --- Criteo -----------------------------------------------------------------------------------------------------------


class CriteoRow(NamedTuple):
    """Criteo's row: its label, its numbers with NaN for missing ones, its categories, -1 for missing ones."""

    label: float
    numbers: list[float]
    categories: list[int]


def criteo_rows(files: Sequence[Path], start: int, stop: int) -> Iterator[CriteoRow]:
    """Yields the rows of Criteo's files from one number to another, in their order.

    Raises:
      DataError: a line has other fields than these, or a label that is neither 0 nor 1.
    """
    lines = ((f"{file.name}, line {n}", line) for file in files for n, line in untrusted.lines(file, DataError))
    for place, line in itertools.islice(lines, start, stop):
        yield criteo_row(line, place)


def criteo_row(line: str, place: str) -> CriteoRow:
    """Returns the row of a line; raises DataError for one in another form."""
    label, *fields = line.rstrip("\r\n").split("\t")
    if len(fields) != sum(FIELDS):
        raise DataError(f"{place}: {1 + len(fields)} fields, where Criteo's lines have {1 + sum(FIELDS)}, with tabs between")
    numbers, categories = fields[: FIELDS[0]], fields[FIELDS[0] :]
    return CriteoRow(
        label_of(label, place),
        [_parsed(text, float, float("nan"), f"I{i}", place) for i, text in enumerate(numbers, 1)],
        [_parsed(text, _hexadecimal, -1, f"C{i}", place) for i, text in enumerate(categories, 1)],
    )


def _hexadecimal(text: str) -> int:
    if not 0 < len(text) <= 16:
        raise ValueError
    return int(text, 16) & (1 << 63) - 1


def _parsed(text: str, read: Callable[[str], Any], missing: Any, name: str, place: str) -> Any:
    if not text:
        return missing
    try:
        return read(text)
    except ValueError:
        what = "whole number" if name[0] == "I" else "hexadecimal number of at most 16 digits"
        raise DataError(f"{place}: {name} is no {what}: {shortened(text)!r}") from None


def count_lines(files: Sequence[Path]) -> int:
    """Returns the number of lines of files, decompressed; the last need not end."""
    count = 0
    for file in files:
        with untrusted.decompressed(file, DataError) as content:
            last = b"\n"
            while block := content.read(1 << 20):
                count, last = count + block.count(b"\n"), block[-1:]
            count += last != b"\n"
    return count
