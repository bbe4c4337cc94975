"""No split of any kind of data has what another has: an example, a source sentence, a group, the content of a file.

Each kind is given what would leak: copies in other groups, other classes, other folders and under other names.
"""

import dataclasses
import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import kinds
from data.cache_maker import maker_of
from data.chat import caches as chat
from data.chat import maker as chat_cache
from data.chat.config import ChatData, PreferenceData
from data.clicks.caches import ClickCache
from data.config import DataConfig
from data.features import Example
from data.images.caches import ImageCache
from data.images.config import ImageData
from data.images.emoji import look
from data.images.sources import PACKAGES, open_source
from data.labelled.caches import LabelledCache
from data.labelled.sources import TASKS
from data.lamda import maker as lamda_cache
from data.lamda.caches import LamdaCache
from data.multimodal import sources as multimodal
from data.multimodal.caches import MultimodalCache
from data.multimodal.config import MultimodalData
from data.multimodal.sources import PICTURE, SOUND, Clip
from data.packages import weights
from data.packages.fetch import npm_package
from data.packages.locations import PackageSource
from data.prepare import PREPARED, prepare, settings_from
from data.reading.caches import examples
from data.reading.examples import unpack
from data.reading.splits import Item
from data.sequences.caches import SequenceCache
from data.sequences.maker import SequenceTableMaker
from data.speech.config import SpeechData
from data.text import corpus as text
from data.text import sources as text_sources
from data.text.caches import TextCache
from data.text_to_text.caches import TextToTextCache
from data.translation import corpus as translation
from data.translation.catalogues import Catalogue, Pair
from data.translation.holdout import english_key
from data.vocabularies import tokenizers
from tests.helpers.archives import tarball
from tests.helpers.catalogues import WORDS
from tests.helpers.chats import turns, write_vocabulary
from tests.helpers.clicks import stored_rows, write_csv
from tests.helpers.grids import FIELDS, times, write_grid_cache
from tests.helpers.labelled_packages import tiny_packages
from tests.helpers.pictures import encoded, smooth, write_folder
from tests.helpers.rows import read_rows
from tests.helpers.sounds import tone, wav, write_sounds
from tests.helpers.text_packages import sentence, tiny_corpus

SPLITS = ("train", "validation", "test")
Splits = Mapping[str, Iterable[Any]]  # by split, what must be in it alone


def quiet(line: str) -> None:
    """Progress that goes nowhere."""


def rows_of(path: Path, data: DataConfig) -> list[Example]:
    """The rows of a file of a cache, or of all files of a folder."""
    import grain

    files: list[Any] = sorted(path.iterdir()) if path.is_dir() else [path]
    sources: list[Any] = [grain.sources.ArrayRecordDataSource(str(file)) for file in files]
    return [unpack(np.frombuffer(s[i], np.uint8), data.stored()) for s in sources for i in range(len(s))]


def stored(cache: Path, data: DataConfig, array: str) -> Splits:
    """By split, an array of the rows of a cache."""
    files = {"train": cache / "train", **{split: cache / f"{split}.array_record" for split in SPLITS[1:]}}
    return {split: [row[array].tobytes() for row in rows_of(file, data)] for split, file in files.items()}


def said(cache: Path, data: DataConfig) -> Splits:
    """By split, the marks "talk 7 end" in what is said; training rows are decoded."""
    tokenizer = tokenizers.Tokenizer(cache)
    rows = rows_of(cache / "train", data)
    texts = {"train": " ".join(tokenizer.decode(row["tokens"].tolist()) for row in rows)}
    texts |= {split: json.dumps(list(examples(cache, split))) for split in SPLITS[1:]}
    return {split: re.findall(r"talk \d+ end", text) for split, text in texts.items()}


# --- the kinds ---------------------------------------------------------------------------------------------------------


def of_chat(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """Conversations that come three times, and preference pairs whose prompts come three times with other answers."""
    talks = [{"messages": turns(f"talk {n} end", "yes")} for n in range(80)] * 3
    file = root / "talks.jsonl"
    file.write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    settings = chat.ChatCache(source=f"file:{file}", length=64, validation=0.1, test=0.2)
    vocabulary = write_vocabulary(root / "vocabulary")
    cache = prepare("talks", settings, data_dir=root, vocabulary=vocabulary, progress=quiet)
    yield said(cache, ChatData(batch_size=1, length=64))

    pairs = [{"prompt": f"talk {n} end", "chosen": f"yes {i}", "rejected": "no"} for i in range(3) for n in range(80)]
    file = root / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    settings = chat.PreferenceCache(source=f"file:{file}", reference="any", length=64, pairs=2, validation=0.1, test=0.2)
    reference = chat_cache.reference_of(settings, root)
    write_vocabulary(reference.folder)
    reference.write("scores.jsonl", [(-1.0, -2.0)] * len(pairs))
    reference.finish()
    cache = prepare("pairs", settings, data_dir=root, progress=quiet)
    yield said(cache, PreferenceData(batch_size=1, length=64, pairs=2))


def of_clicks(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """Interactions that stand twice in a table, far from each other, and many at one time."""
    rows = [{"user": n % 60, "item": n, "label": n % 2, "time": 1_000_000 + n // 7} for n in range(300)]
    file = write_csv(root / "clicks.csv", rows + rows[::-1])
    cache = prepare("clicked", ClickCache(source=f"file:{file}", hashed=1 << 30), data_dir=root, progress=quiet)
    yield {split: [row["ids"].tobytes() for row in some] for split, some in stored_rows(cache).items()}


def of_sequences(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """Users' histories in a table in no order, some at one time: what is trained on, and what is predicted of each split."""
    rows = [{"user": n % 20, "item": n * n % 31, "label": n % 2, "time": 1_000_000 + n // 3} for n in range(300)]
    file = write_csv(root / "histories.csv", rows[::-1])
    for split in ("time", "last"):
        settings = SequenceCache(source=f"file:{file}", length=6, split=split)
        maker = SequenceTableMaker("histories", settings, root, quiet)
        maker.open()
        log = maker.log
        numbers = {"train": np.concatenate(list(log.training())).tolist()}
        numbers |= {name: [row.number for row in log.held_out(name)] for name in ("validation", "test")}
        names = [f"{user} {item}" for user, item in zip(log.data.users, log.data.items, strict=True)]
        assert log.data.times is not None
        moments = log.data.times.tolist()
        yield {name: [f"{names[n]} {moments[n]}" for n in some] for name, some in numbers.items()}


def of_lamda(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """Conversations that come twice, with other names."""
    talks = [
        {"id": f"{copy}-{n}", "turns": [f"talk {n} end", "yes", "why", "so"], "ratings": {}}
        for copy in range(2)
        for n in range(80)
    ]
    patch.setattr(lamda_cache.conversations, "read", lambda package: iter(talks))
    patch.setattr(weights, "write_vocabulary", lambda name, packages, path: tokenizers.train_bpe(["talk end yes"] * 9, path, 260))
    folder = root / "talks"
    folder.mkdir()
    maker_of("talks", LamdaCache(tokenizer="minilm_l6", length=64, turn_length=32), root, quiet).build(folder)
    yield {split: [json.dumps(talk["turns"]) for talk in examples(folder, split)] for split in SPLITS}


def of_grids(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """A series with a gap: the frames of all windows, first input to last target."""
    cache = write_grid_cache(root, at=times(60, without=range(20, 25)))
    train = [int(row[0]) for row in read_rows(cache / "train" / "all.array_record")]
    ats = {"train": train, **{split: [e["at"] for e in examples(cache, split)] for split in SPLITS[1:]}}
    before, after = FIELDS["frames"] - 1, FIELDS["leads"]
    yield {split: [frame for at in some for frame in range(at - before, at + after + 1)] for split, some in ats.items()}


def of_images(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """A folder with every picture in two classes; given splits that overlap; and emoji of people, in a package."""
    data = ImageData(batch_size=1)
    drawn = write_folder(root / "drawn", {"ant": 60})
    write_folder(drawn, {"bee": 60})
    write_folder(drawn, {"cow": 30}, first=100)
    yield stored(prepare("drawn", ImageCache(source=f"folder:{drawn}"), data_dir=root, progress=quiet), data, "picture")
    for at, split in enumerate(SPLITS):
        write_folder(root / "given" / split, {"ant": 20, "bee": 20}, first=30 * at)
    given = ImageCache(source=f"folder:{root / 'given'}")
    yield stored(prepare("given", given, data_dir=root, progress=quiet), data, "picture")

    jobs = [f"{who}-200D-{0x1F300 + job:X}" for job in range(40) for who in ("1F468", "1F469", "1F9D1")]
    flags = [f"1F1E6-{0x1F1E6 + n:X}" for n in range(26)] + [f"1F1E7-{0x1F1E6 + n:X}" for n in range(26)]
    files = {code: encoded(smooth(8, 8, seed)) for seed, code in enumerate(jobs)}
    files |= {code: encoded(smooth(8, 8, 1000 + n % 26)) for n, code in enumerate(flags)}
    index = [
        {
            "image": f"{code.lower()}.png",
            "category": "Flags" if code in flags else "People & Body",
            "short_name": code,
            "unified": code,
            "has_img_google": True,
        }
        for code in files
    ]
    members: dict[str, str | bytes] = {f"package/img/google/64/{code.lower()}.png": file for code, file in files.items()}
    (root / "packages").mkdir(exist_ok=True)
    source = PACKAGES["emoji"]
    package = tarball(root / "packages" / "tiny.tgz", members | {"package/emoji.json": json.dumps(index)})
    pin = dataclasses.replace(source.packages[0], file=package.name)
    patch.setitem(PACKAGES, "emoji", dataclasses.replace(source, packages=(pin,)))
    splits = open_source(ImageCache(source="emoji"), root).splits
    yield {split: [picture.read() for picture in some] for split, some in splits.items()}
    yield {split: [look(picture.name) for picture in some] for split, some in splits.items()}


def of_multimodal(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """Pictures and sounds that are in two groups each."""

    def things(form: int, content: Callable[[int], bytes]) -> list[Item]:
        files = [content(n % 40) for n in range(80)]
        texts = [{"cs": f"kočka {n}", "en": f"cat {n}"} for n in range(80)]
        return [Item(f"g{n}", Clip(f"thing {n}", texts[n], form, lambda n=n: files[n])) for n in range(80)]

    def seen() -> list[Item]:
        return things(PICTURE, lambda n: encoded(smooth(8, 8, n)))

    def heard() -> list[Item]:
        return things(SOUND, lambda n: wav(tone(0.2, 200 + 10 * n))[44:])

    for name, read in (("seen", seen), ("heard", heard)):
        patch.setitem(multimodal.SOURCES, name, PackageSource(packages=(), reader=read))
    settings = MultimodalCache(
        sources=("seen", "heard"), seconds=1.6, targets_length=24, vocabulary_size=320, validation=0.1, test=0.2
    )
    cache = prepare("made", settings, data_dir=root, progress=quiet)
    yield stored(cache, MultimodalData(batch_size=1, targets_length=24), "content")


def of_speech(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """Sounds under two names and of two groups, in drawn splits and in those that the table gives."""
    data = SpeechData(batch_size=1, seconds=1.6, targets_length=24)
    for name, given in (("drawn", False), ("given", True)):
        rows = [
            {"file_name": f"{n:02d}.wav", "text": "ano", "seconds": 0.4, "group": f"g{n // 2}"}
            | ({"split": SPLITS[n % 3]} if given else {})
            for n in range(60)
        ]
        folder = write_sounds(root / name, rows)
        for n in range(20):
            (folder / f"{n + 30:02d}.wav").write_bytes((folder / f"{n + 1:02d}.wav").read_bytes())
        settings = settings_from(str(folder))
        settings = dataclasses.replace(settings, seconds=1.6, targets_length=24, validation=0.2, test=0.2)  # pyright: ignore[reportCallIssue]
        cache = prepare(name, settings, data_dir=root, progress=quiet)
        yield stored(cache, data, "samples")


def of_text(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """Documents that come twice, in other groups, and once more with a word changed."""
    chance = random.Random(0)
    texts = [" ".join(sentence(chance) for _ in range(8)) for _ in range(400)]
    changed = [text.replace(" ", " oh ", 1) for text in texts]
    entries = [(f"d{n}", f"g{n}", said) for n, said in enumerate([*texts, *changed, *texts])]
    pin = npm_package("tiny", "1.0", "")
    only = (text_sources.Source("letters", pin, lambda package: iter(entries)),)
    patch.setitem(text_sources.CORPORA, "english_small", only)
    splits = text.divide("english_small", root)
    yield {split: [document.group for document in some] for split, some in splits.items()}
    yield {split: [document.text.replace(" oh ", " ", 1) for document in some] for split, some in splits.items()}


def of_translation(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """Sentences in four languages, once more in capitals and with other numbers, and two sentences with one translation."""
    chance = random.Random(1)
    english = sorted({" ".join(chance.sample(WORDS, chance.randint(5, 9))) for _ in range(300)})
    pairs = [
        Pair("tiny", language, f"{language} {text if n % 5 else english[n - 1]}", variant)
        for language in ("br", "sr", "sw", "zh")
        for n, text in enumerate(english)
        for variant in (f"{text} 1.", f"{text.upper()} 2!")
    ]
    catalogue = Catalogue(sources=(), languages=9, test=9, validation=5, share=0.1)
    splits = translation.divide_pairs(catalogue, pairs)
    flat = {split: [pair for some in languages.values() for pair in some] for split, languages in splits.items()}
    yield {split: [english_key(pair.english) for pair in some] for split, some in flat.items()}
    held = [pair for split in SPLITS[1:] for pair in flat[split]]
    yield {
        "train": [(pair.language, pair.source) for pair in flat["train"]],
        "held out": [(pair.language, pair.source) for pair in held],
    }


def tagged(root: Path, patch: pytest.MonkeyPatch) -> None:
    """Puts documents in place of the Brown corpus of which many have a sentence in common."""
    items = [
        Item(f"d{n}", {"words": ["the", "cat", f"{place}{n if place else n % 4}"], "tags": ["DET", "NOUN", "NUM"]}, "news")
        for n in range(40)
        for place in range(4)
    ]
    task: Any = TASKS["brown_tags"]
    patch.setitem(TASKS, "brown_tags", dataclasses.replace(task, read=lambda package: iter(items)))


def inputs(cache: Path) -> Splits:
    return {split: [json.dumps(example["words"]) for example in examples(cache, split)] for split in SPLITS}


def of_labelled(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """Sentences that come in several documents."""
    with tiny_packages(root):
        tagged(root, patch)
        settings = LabelledCache(task="brown_tags", tokenizer="minilm_l6", length=32, slots=16)
        yield inputs(prepare("tags", settings, data_dir=root, progress=quiet))


def of_text_to_text(root: Path, patch: pytest.MonkeyPatch) -> Iterable[Splits]:
    """The same, as text."""
    with tiny_packages(root), tiny_corpus(root):
        tagged(root, patch)
        patch.setitem(PREPARED, "letters", TextCache(corpus="english_small", tokenizer="bpe_300", length=24))
        settings = TextToTextCache(task="brown_tags", tokenizer="letters", inputs_length=64, targets_length=32)
        yield inputs(prepare("written", settings, data_dir=root, progress=quiet))


KINDS = {
    "chat": of_chat,
    "clicks": of_clicks,
    "lamda": of_lamda,
    "grids": of_grids,
    "images": of_images,
    "labelled": of_labelled,
    "multimodal": of_multimodal,
    "sequences": of_sequences,
    "speech": of_speech,
    "text": of_text,
    "text_to_text": of_text_to_text,
    "translation": of_translation,
}
BY_TENSORFLOW = ("labelled", "text_to_text")


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.integration if k in BY_TENSORFLOW else ()) for k in KINDS])
def test_no_split_has_what_another_has(kind, tmp_path, monkeypatch):
    """Whatever is given: every split has something, and nothing that another has."""
    seen = 0
    for splits in KINDS[kind](tmp_path, monkeypatch):
        contents = {split: set(some) for split, some in splits.items()}
        assert all(contents.values()), {split: len(some) for split, some in contents.items()}
        for (one, some), (other, others) in itertools.combinations(contents.items(), 2):
            assert not some & others, (kind, one, other, sorted(map(str, some & others))[:3])
        seen += 1
    assert seen


def test_every_kind_of_data_is_tested():
    """A kind that is registered needs its own line above."""
    assert set(KINDS) == {name for name, package in kinds.KINDS.items() if package.startswith("data.")}
