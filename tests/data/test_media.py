"""Tests of pictures, sounds and conversations in a user's table: what is read, left out and refused (forms: test_media_forms)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from configs.overrides import override
from data.cache_maker import maker_of
from data.chat import sources as chats
from data.chat.caches import ChatCache, PreferenceCache
from data.images.caches import ImageCache
from data.multimodal.caches import MultimodalCache
from data.prepare import prepare, settings_from
from data.reading import media
from data.reading.caches import examples, read_manifest
from data.reading.tally import Tally
from data.speech.caches import SpeechCache
from data.task import DataError
from models.errors import UserError
from tests.helpers.pictures import encoded, smooth
from tests.helpers.sounds import tone, wav

Rows = list[dict[str, Any]]


def write_csv(folder: Path, rows: Rows, separator: str = ",", name: str = "metadata.csv") -> Path:
    lines = [[*rows[0]], *([*row.values()] for row in rows)]
    (folder / name).write_text("".join(separator.join(map(str, line)) + "\n" for line in lines), encoding="utf-8")
    return folder


def write_jsonl(folder: Path, rows: Rows, name: str = "metadata.jsonl") -> Path:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_parquet(folder: Path, rows: Rows) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    return folder / "rows.parquet"


def save_to_disk(folder: Path, rows: Rows, features: dict[str, Any] | None = None) -> Path:
    """Writes rows as `save_to_disk` of `datasets` does; `features` names the classes of columns of numbers."""
    table = pyarrow.Table.from_pylist(rows)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    saved = folder / "saved"
    saved.mkdir()
    with (
        pyarrow.OSFile(str(saved / "data-00000-of-00001.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as out,
    ):
        out.write_table(table)
    (saved / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (saved / "dataset_info.json").write_text("{}")
    return saved


def write_files(folder: Path, contents: list[bytes], ending: str) -> list[str]:
    names = [f"{n:02d}{ending}" for n in range(len(contents))]
    for name, content in zip(names, contents, strict=True):
        (folder / name).write_bytes(content)
    return names


PICTURES = [encoded(smooth(9, 12, n)) for n in range(24)]
SOUNDS = [wav(tone(0.4, 300 + 10 * n)) for n in range(24)]
TOO_NEW = (("a", "train"), ("b", "train"), ("b", "train"), ("c", "test"))
WORDS = ("yes", "no", "yes no", "no yes yes")


def beside(write: Callable[..., Path], column: str, ending: str, contents: list[bytes]) -> Callable[[Path, Rows], Path]:
    """Returns a writer of a table whose rows name files beside it."""

    def form(folder: Path, rows: Rows) -> Path:
        names = write_files(folder, contents, ending)
        return write(folder, [{column: name, **row} for name, row in zip(names, rows, strict=True)])

    return form


def inside(write: Callable[..., Path], column: str, contents: list[bytes]) -> Callable[[Path, Rows], Path]:
    """Returns a writer of a table that has the files' bytes."""

    def form(folder: Path, rows: Rows) -> Path:
        cells = ({"bytes": content, "path": None} for content in contents)
        return write(folder, [{column: cell, **row} for cell, row in zip(cells, rows, strict=True)])

    return form


def made(root: Path, source: Path, **fields: Any) -> tuple[Any, Path, list[str]]:
    """Prepares a cache; returns its settings, its folder, and what was said."""
    said: list[str] = []
    settings = settings_from(str(source), fields.pop("columns", ""))
    settings = type(settings)(**vars(settings) | fields)
    return settings, prepare("made", settings, data_dir=root / "data", progress=said.append), said


def count(manifest: dict[str, Any]) -> int:
    return sum(part["examples"] for part in manifest["parts"].values()) + sum(manifest["held_out"].values())


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "data").mkdir()
    return tmp_path / "mine"


def test_pictures_with_labels(folder, tmp_path):
    """A class of three for each of 24 pictures: all are stored, each split has some of each class, and three rows are shown."""
    write = beside(write_csv, "file_name", ".png", PICTURES)
    source = write(folder, [{"label": ("ant", "bee", "cow")[n % 3]} for n in range(24)])
    settings, cache, said = made(tmp_path, source)
    assert isinstance(settings, ImageCache)
    manifest = read_manifest(cache)
    assert manifest["labels"] == ["ant", "bee", "cow"] and count(manifest) == 24 and not manifest["left_out"]
    assert {e["label"] for e in examples(cache, "test")} == {"ant", "bee", "cow"}
    shown = [line for line in said if line.startswith("a row of train: a picture of 12 x 9 pixels, RGB (PNG, ")]
    assert len(shown) == 3 and all(line.endswith(("'ant'", "'bee'", "'cow'")) for line in shown)


def test_names_of_classes_and_splits_of_a_datasets_folder(folder, tmp_path):
    """Numbers of a ClassLabel have its names; other numbers are classes in the order of numbers; a given test is kept."""
    rows = [{"label": n % 2, "split": "test" if n % 4 == 3 else "train"} for n in range(24)]
    named = {"label": {"_type": "ClassLabel", "names": ["dog", "cat"]}}
    source = inside(lambda folder, rows: save_to_disk(folder, rows, named), "image", PICTURES)(folder, rows)
    manifest = read_manifest(made(tmp_path, source)[1])
    assert manifest["labels"] == ["cat", "dog"] and manifest["held_out"]["test"] == 6
    assert {e["label"] for e in examples(tmp_path / "data" / "caches" / "made", "test")} == {"cat"}
    numbered = [{"kind": (2, 10)[n % 2]} for n in range(24)]
    source = beside(write_csv, "file_name", ".png", PICTURES)(folder, numbered)
    assert read_manifest(made(tmp_path, source, columns="label=kind")[1])["labels"] == ["2", "10"]


def test_a_table_is_read_again_when_a_picture_beside_it_changes(folder, tmp_path):
    """A file of a table alone says which pictures it names, not what is in them."""
    write = beside(lambda folder, rows: write_csv(folder, rows, name="rows.csv"), "file_name", ".png", PICTURES)
    source = write(folder, [{"label": ("ant", "bee")[n % 2]} for n in range(24)]) / "rows.csv"
    before = read_manifest(made(tmp_path, source)[1])
    assert "up to date" in made(tmp_path, source)[2][0]
    (folder / "00.png").write_bytes(encoded(smooth(30, 40, 99)))
    assert read_manifest(made(tmp_path, source)[1])["inputs"] != before["inputs"]


def test_sounds_with_texts(folder, tmp_path):
    """24 sounds of .4 s are stored with what is said, and three rows are shown with their texts."""
    source = inside(save_to_disk, "audio", SOUNDS)(folder, [{"text": WORDS[n % 4]} for n in range(24)])
    settings, cache, said = made(tmp_path, source, seconds=1.6, targets_length=24)
    assert isinstance(settings, SpeechCache)
    assert count(read_manifest(cache)) == 24 and {e["text"] for e in examples(cache, "test")} <= {*WORDS}
    shown = [line for line in said if line.startswith("a row of transcribe: sounds of 0.4 s: ")]
    assert len(shown) == 3 and all(line.partition(": sounds of 0.4 s: ")[2].strip("'") in WORDS for line in shown)


def test_a_row_of_a_part_of_a_sound_is_left_out(folder, tmp_path):
    """Its text is not that of the whole file: a begin inside the file, and a duration that is shorter, are named."""
    names = write_files(folder, [wav(tone(2, 300 + 9 * n)) for n in range(8)], ".wav")
    rows: Rows = [{"audio_filepath": str(folder / name), "text": "yes", "duration": 2.0, "offset": 0.0} for name in names]
    rows[0] |= {"offset": 1.0}
    rows[1] |= {"duration": 0.5}
    source = write_jsonl(folder, rows, "part.jsonl") / "part.jsonl"
    manifest = read_manifest(made(tmp_path, source, seconds=3.2)[1])
    why = sorted(line for lines in manifest["left_out"].values() for line in lines)
    assert why[0].startswith("00.wav: begins 1 s inside its file") and why[1].startswith("01.wav: is 2.0 s long, and its row is")


def test_pictures_with_captions(folder, tmp_path):
    """Each caption of a picture is an example; they are of the language "en" where no other is said."""
    write = beside(write_jsonl, "file_name", ".png", PICTURES)
    source = write(folder, [{"caption": f"a {WORDS[n % 4]} thing"} for n in range(24)])
    settings, cache, said = made(tmp_path, source)
    assert isinstance(settings, MultimodalCache)
    manifest = read_manifest(cache)
    assert count(manifest) == 24 and [name.rpartition("-")[2] for name in manifest["parts"]] == ["en"]
    assert sum("pixels, RGB" in line and "thing" in line for line in said) == 3


def test_several_captions_of_a_picture_are_in_one_split(folder, tmp_path):
    """Lists of captions, one of them in another language's row; a picture without any is left out and counted."""
    rows: Rows = [{"captions": [f"thing {n}", f"a thing {n}"]} for n in range(24)]
    rows[5] = {"captions": [" "]}
    cache = made(tmp_path, inside(write_parquet, "image", PICTURES)(folder, rows), test=0.25)[1]
    manifest, held = read_manifest(cache), [e["text"] for e in examples(cache, "test")]
    assert count(manifest) == 46 and sum(len(lines) for lines in manifest["left_out"].values()) == 1
    assert len(held) >= 10 and {text.removeprefix("a ") for text in held} == {text for text in held if text[0] != "a"}


def test_pictures_with_captions_are_not_all_in_memory(folder, tmp_path, monkeypatch):
    """Pictures of training are read as their rows are written, a window at a time, and each once, whatever its language."""
    rows: Rows = [{"caption": f"thing {n}", "language": ("en", "de")[n % 2]} for n in range(24)]
    settings = settings_from(str(inside(write_parquet, "image", PICTURES)(folder, rows)))
    reads, read = [], media.Store._read

    def counted(store: media.Store, *place: int) -> bytes:
        reads.append(place)
        return read(store, *place)

    monkeypatch.setattr(media.Store, "_read", counted)
    monkeypatch.setattr("data.multimodal.maker._WINDOW", 2)
    maker: Any = maker_of("mine", settings, tmp_path)
    maker.folder = tmp_path
    maker.open()
    reads.clear()
    english = maker.records("rows-en", tally := Tally())
    assert next(english) and 0 < len(reads) <= 2
    everything = [*english, *maker.records("rows-de", tally)]
    assert len(everything) + 1 == len(reads) == len({*reads}) == len(maker.sources["rows"]["train"])


@pytest.mark.parametrize("write", [write_parquet, save_to_disk], ids=["parquet", "datasets"])
def test_conversations_and_preferences_in_tables(folder, write):
    """The same records as from JSON lines: fields that a message lacks, null in a table, are not there."""
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello", "weight": 0}]
    rows = [{"messages": talk, "split": "train"}, {"messages": talk[:1], "split": "test"}]
    source = write(folder, rows)
    assert settings_from(str(source)) == ChatCache(source=f"{'folder' if source.is_dir() else 'file'}:{source}")
    read = list(chats.read(source))
    assert [record["messages"] for record in read] == [talk, talk[:1]] and read[1]["split"] == "test"
    assert chats.split_of(read[1], {}) == "test"
    (folder / "pairs").mkdir()
    pairs = write(folder / "pairs", [{"ask": "Hi", "chosen": "Hello", "rejected": "No"}] * 2)
    assert isinstance(settings_from(str(pairs), "prompt=ask"), PreferenceCache)
    (record, _) = chats.read(pairs, "prompt=ask")
    assert [record[side][-1]["content"] for side in ("prompt", "chosen", "rejected")] == ["Hi", "Hello", "No"]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([{"file_name": "../x.png", "label": "a"}], r"metadata\.jsonl, row 1: file_name '\.\./x\.png' leaves the folder"),
        ([{"file_name": "/etc/x.png", "label": "a"}], r"row 1: file_name '/etc/x\.png' leaves the folder of its table"),
        ([{"file_name": "a.png", "label": "a"}, {"label": "b"}], r"row 2: no column 'file_name'"),
        ([{"file_name": "a.png", "label": "a"}, {"file_name": "", "label": "b"}], r"row 2: no file_name"),
        ([{"file_name": "a.png", "label": ["a", "b"]}], r"row 1: label \['a', 'b'\] is no class"),
        ([{"file_name": "a.png", "label": "a"}], r"all pictures of training are of one class, 'a'"),
        ([{"file_name": "a.png", "label": "a", "split": "tset"}], r"no split 'tset'; did you mean 'test'"),
        ([{"file_name": "a.png", "label": "a", "split": "test"}], r"no row is of the split 'train', but of 'test'"),
        (
            [{"file_name": f"{n}.png", "label": label, "split": split} for n, (label, split) in enumerate(TOO_NEW)],
            r"3\.png: no training picture is of class 'c'",
        ),
    ],
)
def test_a_crafted_table_is_one_line(folder, tmp_path, rows, line):
    """Files outside the table's folder, rows without a file, classes that are none."""
    with pytest.raises(UserError, match=line) as caught:
        made(tmp_path, write_jsonl(folder, rows))
    assert "\n" not in str(caught.value)


def test_files_that_are_missing_or_no_pictures_are_left_out(folder, tmp_path):
    """A file that is not there, a pipe that would be waited for, bytes that are no picture, in a table and beside it."""
    rows: Rows = [{"image": {"bytes": content, "path": None}, "label": "ab"[n % 2]} for n, content in enumerate(PICTURES)]
    rows[0]["image"] = {"bytes": b"no picture", "path": None}
    rows[1]["image"] = {"bytes": None, "path": "gone.png"}
    manifest = read_manifest(made(tmp_path, write_parquet(folder, rows))[1])
    why = " ".join(line for lines in manifest["left_out"].values() for line in lines)
    assert count(manifest) == 22 and "rows.parquet, row 1: cannot be decoded" in why and "gone.png is missing" in why


def test_captions_of_pictures_that_are_all_missing_are_refused(folder, tmp_path):
    source = write_jsonl(folder, [{"file_name": f"{n}.png", "caption": "a thing"} for n in range(24)])
    with pytest.raises(DataError, match=r"made: no text of the training can be used; \d+\.png: .* is missing"):
        made(tmp_path, source)
    assert not (tmp_path / "data/caches/made").exists()


def test_sounds_inside_a_table_may_have_one_path(folder, tmp_path):
    """Each is alone, and some are held out."""
    cells: Rows = [{"audio": {"bytes": content, "path": "audio.wav"}, "text": "yes no"} for content in SOUNDS]
    manifest = read_manifest(made(tmp_path, write_parquet(folder, cells))[1])
    assert count(manifest) == 24 and min(manifest["held_out"].values()) >= 1


def test_contents_of_a_table_are_kept_in_a_file(tmp_path):
    """Contents are read again from a file without a name, in any order, and nothing is left behind."""
    store = media.Store(tmp_path)
    readers = [store.add(bytes([n]) * n) for n in range(5)]
    assert [readers[n]() for n in (4, 0, 2)] == [b"\4" * 4, b"", b"\2\2"]
    assert not list(tmp_path.iterdir())


def test_a_folder_of_class_folders_is_no_table(tmp_path):
    """Tables that lie beside pictures and are not called metadata are other things, damaged or not."""
    for label in ("ant", "bee"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "a.png").write_bytes(PICTURES[0])
    (tmp_path / "notes.json").write_text("{")
    assert media.tables_of(tmp_path) == []
    assert settings_from(str(tmp_path)) == ImageCache(source=f"folder:{tmp_path}")
    with pytest.raises(DataError, match="leaves the folder"):
        list(media.read(write_csv(tmp_path, [{"file_name": "../a.png"}]), "", media.PICTURE, None))


@pytest.mark.parametrize(
    ("field", "value", "reason"), [("seconds", "1", "multiple of 0.08; nearest is 0.96"), ("slots", "0", "1 or more")]
)
def test_rows_of_sounds_that_cannot_be_are_refused_before_anything_is_read(field, value, reason):
    with pytest.raises(UserError, match=reason):
        override(SpeechCache(source="folder:/nowhere"), [f"--{field}", value])
