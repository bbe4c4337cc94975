"""The table of readers: how each gets a sound sample, how it is read, and what is mutated."""

import contextlib
import csv
import dataclasses
import functools
import hashlib
import io
import json
import random
import re
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from configs import registry
from configs.experiment import Experiment
from data import paths, untrusted
from data.chat import sources as conversations
from data.grids import sources as grids
from data.grids.caches import GridCache
from data.images import pictures
from data.packages import archives
from data.reading import packing
from data.reading.caches import cache_folder, class_names, examples
from data.reading.examples import open_source
from data.speech import folders as sound_folders
from data.speech import sound
from data.speech.caches import SpeechCache
from data.text.config import TextData
from data.vocabularies import files, multilingual, sentencepiece, tokenizers
from data.vocabularies.chat_templates import ChatEncoder, has_template
from models.families import gguf_of, interchange_of
from models.interchange import Shape, tensors
from models.parts.nested import changed
from models.sharding.params import describe
from tests.fuzz import checkpoints, mutations, own_tables, writers
from tests.fuzz.campaign import Reader
from tests.fuzz.mutations import Files, Mutate
from trainers.plan import abstract_model
from trainers.weights import bare, ctranslate2, huggingface, load_any, peft, release, tensor_files
from trainers.weights.source import Arrays, Weights

# Experiments whose shrunk models have all kinds of config.json that the families write.
_CONFIGS = (
    "gpt.gpt2_124m",
    "chat.smollm2_dpo",
    "gpt.gemma2_9b",
    "gpt.gemma3_4b",
    "gpt.gpt_oss_20b",
    "gpt.mixtral_8x7b",
    "gpt.phi4",
    "gpt.qwen3_30b_a3b",
    "gpt.smollm3_3b",
    "bert.base",
    "m2m100.b1_2",
    "nllb.moe_54b",
    "switch.base_128e",
    "t5.bench_60m",
    "whisper.base",
    "vit.b16",
)
_WORDS = ("the", "cat", "sees", "an", "old", "tree", "and", "house", "ö", "1", "22", "💚")
_SYLLABLES = [a + b for a in "bcdfghklmnprst" for b in "aeiouä"]
_LINES = [
    " ".join((*rng.choices(_WORDS, k=5), *("".join(rng.choices(_SYLLABLES, k=3)) for _ in range(4))))
    for rng in map(random.Random, range(400))
]
_TEMPLATE = """{% set ns = namespace(n=0) %}{% macro text(m) %}{{ m.content | trim ~ eos_token }}{% endmacro %}
{% for m in messages[0:] if m.role in ['user', 'assistant'] %}{% set ns.n = ns.n + 1 %}{{ m.role * 1 }}
{% generation %}{{ text(m).replace('a', 'b') if loop.index % 2 == 0 else '%s' % text(m) }}{% endgeneration %}{% endfor %}"""
_LENGTH, _VOCABULARY = 16, 290  # tokens of a cache's rows; pieces


# --- samples -----------------------------------------------------------------------------------------------------


def _tiny(name: str) -> Experiment:
    """Returns a shrunk experiment whose model other libraries' classes can be: heads share its width."""
    e = registry.tiny(registry.load(name))
    m: Any = e.model
    if name in ("gpt.gpt2_124m", "bert.base", "vit.b16"):
        m = changed(m, {"attention.head_dim": m.model_dim // m.attention.heads})
    return dataclasses.replace(e, model=m)


def _weights(e: Experiment, vocabulary: Path | None = None) -> Arrays:
    """Returns random weights of an experiment's model."""
    rng = np.random.default_rng(0)
    infos = describe(abstract_model(e))
    return Arrays(e.model, {info.name: rng.normal(size=info.shape).astype(np.float32) for info in infos}, vocabulary)


def _into(folder: Path, write: Callable[[Path], object]) -> None:
    """Fills a folder that exists with what a writer puts into a new one."""
    with paths.scratch(folder) as room:
        write(room / "new")
        for file in (room / "new").iterdir():
            file.rename(folder / file.name)


def _hugging_face(name: str, shard: int, folder: Path) -> None:
    _into(folder, lambda to: huggingface.write_folder(_weights(_tiny(name)), to, max_shard_bytes=shard))


def _configs(folder: Path) -> None:
    """Writes a folder for each kind of config.json, of which a mutation takes one."""
    for name in _CONFIGS:
        (folder / name).mkdir()
        _hugging_face(name, 10**9, folder / name)


def _safetensors(folder: Path) -> None:
    tensors = {"a": np.ones((3, 4)), "b.c": np.ones(()), "empty": np.ones((0, 4)), "z": np.ones(64)}
    shapes = {name: x.shape for name, x in tensors.items()}
    tensor_files.write(folder / "f.safetensors", shapes, ((k, (x,)) for k, x in tensors.items()), {"format": "pt"})


def _gguf(folder: Path) -> None:
    e = _tiny("chat.smollm2_dpo")
    pieces = json.loads(_bpe(folder.parent / "bpe").read_text())["model"]
    e = dataclasses.replace(e, model=dataclasses.replace(e.model, vocab=len(pieces["vocab"])))
    c: Any = e.model
    heads = dict.fromkeys(("rope.dimension_count", "attention.key_length", "attention.value_length"), c.attention.head_dim)
    vocabulary = writers.gguf_vocabulary(
        list(pieces["vocab"]), [" ".join(pair) for pair in pieces["merges"]], types=[3] + [1] * (len(pieces["vocab"]) - 1), end=0
    )
    settings = {"context_length": c.max_positions or 64} | writers.gguf_settings(c) | heads | vocabulary
    files_ = gguf_of("gpt")
    assert files_
    writers.gguf(folder / "m.gguf", "llama", settings, tensors.written(files_.entries("llama", c), _weights(e).read))


def _bpe(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    tokenizers.train_bpe(_LINES, folder / tokenizers.FILE, _VOCABULARY)
    return folder / tokenizers.FILE


_ENDS = {
    files.CONFIG: {"add_bos_token": True, "bos_token": {"content": "<|endoftext|>"}, "eos_token": None},
    files.SPECIAL: {"eos_token": {"content": "<|endoftext|>"}, "pad_token": "<|endoftext|>"},
    files.GENERATION: {"eos_token_id": [0, 7], "pad_token_id": 0},
    files.MODEL: {"eos_token_id": 0},
}


def _ends(folder: Path) -> None:
    _bpe(folder)
    for name, content in _ENDS.items():
        (folder / name).write_text(json.dumps(content))


def _chat(folder: Path) -> None:
    _bpe(folder)
    (folder / files.TEMPLATE).write_text(_TEMPLATE)
    (folder / files.CONFIG).write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}, "chat_template": "{{ a }}"}))


def _ctranslate2(folder: Path) -> None:
    variables = {"encoder/w": np.ones((3, 5), "<f2"), "decoder/b": np.ones(7, "<f4"), "heads": np.array(2, "<i2")}
    writers.ctranslate2(folder / "model.bin", variables)


def _npz(folder: Path) -> None:
    arrays = {"a/kernel": np.ones((3, 4), np.float32), "b": np.ones(50, np.float16)}
    np.savez(folder / "stored.npz", allow_pickle=False, **arrays)
    np.savez_compressed(folder / "deflated.npz", allow_pickle=False, **arrays)


def _translator(folder: Path) -> None:
    sentencepiece.train(_LINES, folder / files.PIECES, size=400)
    added = {str(500 + i): {"content": f"{tag}"} for i, tag in enumerate(("deu_Latn", "eng_Latn"))}
    (folder / files.CONFIG).write_text(json.dumps({"added_tokens_decoder": added, "legacy_behaviour": True}))


def _pictures(folder: Path) -> None:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (24, 18, 4)).astype(np.uint8)
    for suffix, mode in {
        "jpg": "RGB",
        "png": "RGBA",
        "webp": "RGB",
        "gif": "P",
        "bmp": "RGB",
        "tiff": "RGB",
        "ppm": "RGB",
        "grey.png": "L",
    }.items():
        Image.fromarray(noise).convert(mode).save(folder / f"p.{suffix}")
    Image.fromarray(noise).convert("RGB").save(folder / "deflated.tiff", compression="tiff_adobe_deflate")


def _conversations(folder: Path) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}]
    talk, other = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], {"from": "gpt", "value": "Go"}
    messages = {"messages": turns, "tools": [{"type": "function"}]}, {"conversations": talk, "system": "Be short"}
    pairs = {"prompt": "Hi", "chosen": "Hello", "rejected": "Go"}, {"chosen": turns, "rejected": [talk[0], other]}
    for name, values in (("talks.jsonl", messages), ("pairs.jsonl", pairs)):
        (folder / name).write_text("".join(json.dumps(value) + "\n" for value in values))


def _table(form: str, folder: Path) -> None:
    rows = [{"file_name": f"{i}.wav", "text": line, "split": ""} for i, line in enumerate(_LINES[:12])]
    import soundfile

    for row in rows:
        soundfile.write(folder / row["file_name"], np.zeros(160, np.float32), 16_000)
    with (folder / f"metadata.{form}").open("w", newline="") as file:
        if form == "jsonl":
            file.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def _series(folder: Path) -> None:
    import xarray

    rain = np.random.default_rng(0).random((8, 4, 5)).astype(np.float32)
    times = np.datetime64("2020-01-01", "ns") + np.arange(8) * np.timedelta64(5, "m")
    dataset = xarray.Dataset({"rain": (("time", "y", "x"), rain)}, coords={"time": times})
    for name, engine in (("hdf5.nc", "h5netcdf"), ("netcdf3.nc", "scipy")):
        dataset.to_netcdf(folder / name, engine=engine)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _sounds(folder: Path) -> None:
    wave = np.sin(np.arange(2000) / 9).astype(np.float32)
    import soundfile

    for suffix in ("wav", "flac", "ogg", "mp3", "aiff", "au", "caf"):
        soundfile.write(folder / f"s.{suffix}", np.stack([wave, wave], 1), 22_050)
    counted = (folder / "s.mp3").read_bytes()
    (folder / "stream.mp3").write_bytes(counted[counted.index(b"\xff\xf3", 4) :])  # without the frame that says how many follow


def _archives(folder: Path) -> None:
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        for name in ("x/one.txt", "two.json", "../three"):
            zipped.writestr(name, b"content " * 50)
    for name in ("t.tgz", "data.tar.xz"):
        with tarfile.open(folder / name, "w:gz" if name == "t.tgz" else "w:xz") as tar:
            for member in ("package/one.txt", "../two", "/three"):
                info = tarfile.TarInfo(member)
                info.size = 400
                tar.addfile(info, io.BytesIO(b"content " * 50))
            tar.addfile(_linked("package/link", "/etc/passwd"))
    payload = (folder / "data.tar.xz").read_bytes()
    (folder / "data.tar.xz").unlink()
    deb = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0\n"), ("data.tar.xz", payload)):
        deb += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2)
    (folder / "p.deb").write_bytes(deb)


def _linked(name: str, to: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, to
    return info


def _cached() -> Experiment:
    e = _tiny("gpt.gpt2_124m")
    data = TextData(cache="fuzz", batch_size=4, length=_LENGTH)
    return dataclasses.replace(e, data=data, model=dataclasses.replace(e.model, vocab=_VOCABULARY))


def _cache(folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer(_bpe(folder))
    (folder / "train").mkdir()
    rng = np.random.default_rng(0)
    rows = [np.concatenate([rng.integers(1, _VOCABULARY, _LENGTH), np.ones(_LENGTH), np.arange(_LENGTH)]) for _ in range(20)]
    packing.write_rows(folder / "train" / "toy.array_record", rows)
    part = {"examples": 20, "rows": 20, "tokens": 20 * _LENGTH, "dropped": 0}
    manifest = {
        "cache": "fuzz",
        "kind": "text",
        "corpus": "toy",
        "length": _LENGTH,
        "vocabulary": tokenizer.size,
        "fingerprint": "f" * 64,
        "parts": {"toy": part},
        "labels": ["a", "b"],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "test.jsonl").write_text("".join(json.dumps({"id": str(i), "text": t}) + "\n" for i, t in enumerate(_LINES[:9])))


def _release(folder: Path) -> None:
    e = _cached()
    e = dataclasses.replace(e, data=dataclasses.replace(e.data, cache=""))
    vocabulary = folder.parent / "cache"
    vocabulary.mkdir()
    _cache(vocabulary)
    _into(folder, lambda to: release.write_weights(_weights(e, vocabulary), e, to, "step 1"))


def _adapter(folder: Path) -> None:
    """Writes a base and an adapter of it."""
    (folder / "base").mkdir()
    _hugging_face("chat.smollm2_dpo", 10**9, folder / "base")
    (folder / "adapter").mkdir()
    base = huggingface.HuggingFace(folder / "base")
    interchange = interchange_of(base.config.family)
    assert interchange
    tensors: dict[str, np.ndarray] = {}
    for entry in interchange.entries(base.config):
        for name in entry.names():
            if ".q_proj." in name:
                module, (outputs, inputs) = name.removesuffix(".weight"), entry.shape
                tensors[f"base_model.model.{module}.lora_A.weight"] = np.ones((2, inputs))
                tensors[f"base_model.model.{module}.lora_B.weight"] = np.ones((outputs, 2))
    shapes: dict[str, Shape] = {name: x.shape for name, x in tensors.items()}
    named = ((name, (x,)) for name, x in tensors.items())
    tensor_files.write(folder / "adapter" / peft.TENSORS, shapes, named, {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "base",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj"],
        "rank_pattern": {},
        "alpha_pattern": {},
        "bias": "none",
        "use_rslora": True,
    }
    (folder / "adapter" / peft.CONFIG).write_text(json.dumps(config))


# --- reading -----------------------------------------------------------------------------------------------------


def _read_all(weights: Weights) -> None:
    for name in weights.shapes:
        weights.read(name, ())
    if weights.vocabulary is not None and files.readable(weights.vocabulary):
        _read_tokenizer(weights.vocabulary)


def _read_weights(folder: Path) -> None:
    _read_all(load_any.open_weights(folder))


def _read_each(folder: Path) -> None:
    """Reads the folder that was mutated, or the first."""
    chosen = folder / "chosen"
    _read_weights(folder / (chosen.read_text() if chosen.exists() else _CONFIGS[0]))


def _read_tensors(opener: Callable[[Path], Any], folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        file = opener(path)
        for name in file.shapes:
            np.array(file(name))


def _read_release(folder: Path) -> None:
    weights = load_any.open_weights(folder)
    _read_all(weights)
    if isinstance(weights, release.Release):
        class_names(folder)


def _read_tokenizer(folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer(folder)
    for text in _LINES[:2]:
        tokenizer.decode(tokenizer.encode(text))
        tokenizer.encode_words(text.split())
    has_template(folder)


def _read_chat(folder: Path) -> None:
    encoder = ChatEncoder(folder)
    encoder.conversation([{"role": role, "content": "the cat"} for role in ("user", "assistant", "user", "assistant")])
    encoder.prompt([{"role": "user", "content": "the cat"}])


def _read_pieces(folder: Path) -> None:
    vocabulary = sentencepiece.Vocabulary(folder / files.PIECES)
    vocabulary.decode(vocabulary.encode(_LINES[0]))


def _read_translator(folder: Path) -> None:
    vocabulary = multilingual.Multilingual(folder)
    vocabulary.decode(vocabulary.source("deu_Latn", _LINES[0], 12) if "deu_Latn" in vocabulary.languages else [])


def _read_pictures(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        pictures.cut_out(untrusted.read_bytes(path, pictures.PictureError), 3, lambda width, height: (0, 0, width, height), 8, 8)


def _read_sounds(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        for _ in sound.blocks(path):
            pass


def _read_archives(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        for _ in archives.members(path, ""):
            pass


def _read_cache(folder: Path) -> None:
    e = _cached()
    link = cache_folder(e.data)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    source = open_source(e.data, e.model)
    for at in range(40):
        source.row(at)
    class_names(folder)
    for _ in examples(folder, "test"):
        pass


def _read_conversations(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if conversations.is_conversations(path) is not None:
            for record in conversations.read(path):
                conversations.split_of(record, {"test": 0.5})


def _read_table(folder: Path) -> None:
    for utterances in sound_folders.open_folder(folder, SpeechCache(source=str(folder))).values():
        for utterance in utterances:
            with contextlib.suppress(sound.SoundError):  # which preparation leaves out
                utterance.read()


def _read_series(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        settings = GridCache(source=f"file:{path}", variables=("rain",))
        with grids.opened(settings, folder) as series:
            series.read(0, 4, (1.0,))


def _read_adapter(folder: Path) -> None:
    _read_all(peft.Peft(folder / "adapter", huggingface.HuggingFace(folder / "base")))


# --- mutations ---------------------------------------------------------------------------------------------------


def _header(files_: Files, rng: random.Random) -> None:
    """Mutates a safetensors file's header, mostly as JSON, and puts its length right."""
    (name,) = files_
    content = files_[name]
    assert isinstance(content, bytes)
    end = 8 + int.from_bytes(content[:8], "little")
    header = mutations.mutated("header.json", content[8:end], rng)
    if rng.randrange(8) == 0 or not isinstance(header, bytes):
        files_[name] = mutations.mutated(name, content, rng)
    else:
        files_[name] = len(header).to_bytes(8, "little") + header + content[end:]


def _member(files_: Files, rng: random.Random) -> None:
    """Mutates an array in its archive, whose checksums are then right."""
    name = rng.choice(sorted(files_))
    content = files_[name]
    assert isinstance(content, bytes)
    if rng.randrange(2):
        files_[name] = mutations.mutated(name, content, rng)
        return
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.namelist():
            data = old.read(member)
            if rng.randrange(2):  # sizes and types are text
                data = re.sub(rb"\d+", lambda _: str(rng.choice((0, 3, -1, 2**31, 2**62, 10**30))).encode(), data[:128], count=2)
            new.writestr(member, mutations.of_bytes(data, rng))
    files_[name] = made.getvalue()


def _one_config(files_: Files, rng: random.Random) -> None:
    chosen = rng.choice(_CONFIGS)
    mutations.of(f"{chosen}/{huggingface.CONFIG}")(files_, rng)
    files_["chosen"] = chosen.encode()


def _summed(files_: Files, rng: random.Random) -> None:
    """Mutates a release's experiment, manifest or vocabulary, and puts the checksums right."""
    names = sorted(files_.keys() - {release.SUMS, release.WEIGHTS, "README.md"})
    mutations.of(release.EXPERIMENT, *names)(files_, rng)
    listed = {name: content for name, content in files_.items() if isinstance(content, bytes) and name != release.SUMS}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in listed.items()}
    files_[release.SUMS] = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()


def _line(files_: Files, rng: random.Random) -> None:
    """Mutates the list of checksums: its bytes, or the name of a file."""
    content = files_[release.SUMS]
    assert isinstance(content, bytes)
    if rng.randrange(3):
        files_[release.SUMS] = mutations.mutated(release.SUMS, content, rng)
        return
    lines = content.decode().splitlines()
    at = rng.randrange(len(lines))
    name = rng.choice(("../x", "/dev/zero", "/etc/passwd", "..", "a/../b", "README.md", "\u2028", "x" * 9999))
    lines[at] = f"{lines[at][:64]}  {name}"
    files_[release.SUMS] = "\n".join(lines).encode("utf-8", "surrogatepass")


def _within(folder: str, *names: str) -> Mutate:
    return mutations.of(*(f"{folder}/{name}" for name in names))


READERS: Mapping[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("safetensors header", _safetensors, functools.partial(_read_tensors, bare.FloatTensors), _header),
        Reader("config.json", _configs, _read_each, _one_config),
        Reader(
            "shard index", functools.partial(_hugging_face, "gpt.gpt2_124m", 4000), _read_weights, mutations.of(huggingface.INDEX)
        ),
        Reader("GGUF", _gguf, _read_weights, mutations.of("m.gguf")),
        Reader(
            "CTranslate2 model.bin", _ctranslate2, functools.partial(_read_tensors, ctranslate2.CTranslate2File), mutations.of()
        ),
        Reader("Flax msgpack", checkpoints.write_flax, checkpoints.read_flax, mutations.of()),
        Reader("T5X checkpoint", checkpoints.write_t5x, _read_weights, mutations.of()),
        Reader("MaxText checkpoint", checkpoints.write_maxtext, _read_weights, mutations.of()),
        Reader("npz", _npz, functools.partial(_read_tensors, bare.NpzFile), _member),
        Reader("PEFT adapter", _adapter, _read_adapter, _within("adapter", peft.CONFIG, peft.TENSORS)),
        Reader("release: experiment.json", _release, _read_release, _summed),
        Reader("release: SHA256SUMS", _release, _read_weights, _line),
        Reader("tokenizer.json", _bpe, _read_tokenizer, mutations.of(tokenizers.FILE)),
        Reader("ends of texts", _ends, _read_tokenizer, mutations.of(*_ENDS)),
        Reader("SentencePiece", _translator, _read_pieces, mutations.of(files.PIECES)),
        Reader("translator's vocabulary", _translator, _read_translator, mutations.of()),
        Reader("pictures", _pictures, _read_pictures, mutations.of()),
        Reader("sounds", _sounds, _read_sounds, mutations.of()),
        Reader("archives", _archives, _read_archives, mutations.of()),
        Reader("chat template", _chat, _read_chat, mutations.of(files.TEMPLATE, files.CONFIG), ("<template>", "<unknown>")),
        Reader("conversations", _conversations, _read_conversations, mutations.of()),
        Reader("sound table: csv", functools.partial(_table, "csv"), _read_table, mutations.of("metadata.csv")),
        Reader("sound table: jsonl", functools.partial(_table, "jsonl"), _read_table, mutations.of("metadata.jsonl")),
        Reader("tables", own_tables.write_tables, own_tables.read_tables, mutations.of()),
        Reader("texts and translations", own_tables.write_texts, own_tables.read_texts, mutations.of()),
        Reader("gridded series", _series, _read_series, mutations.of()),
        Reader("cache", _cache, _read_cache, mutations.of("manifest.json", "train/toy.array_record", "test.jsonl")),
    )
}
