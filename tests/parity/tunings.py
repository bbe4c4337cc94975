"""The experiments that curves.py compares, on real text or sound that packages bring, and their batches as `transformers` takes
them.

B rows of a batch, L positions of a row, N examples of a batch.
"""

import csv
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import soundfile

from configs import registry
from configs.conformer import conformer
from configs.experiment import Experiment, Finetuning, Train
from configs.optimizers import AdamW, Linear, for_steps
from data import paths
from data.chat.caches import ChatCache, PreferenceCache
from data.chat.config import ChatData, PreferenceData
from data.config import Decode, HeldOut
from data.labelled.caches import OwnLabelledCache
from data.labelled.config import LabelledData
from data.packages import archives, debian
from data.packages.fetch import PACKAGE_INDEX, fetch
from data.packages.weights import weights_folder
from data.speech import sources
from data.speech.caches import SpeechCache
from data.speech.config import RATE, SpeechData
from data.text.caches import SummaryCache
from data.text.config import SummaryData
from data.text_to_text.caches import OwnTextToTextCache
from data.text_to_text.config import TextToTextData
from models.conformer.config import ConvolutionalPositions, Ctc, TransformerLayer, Waveform
from models.execution import Execution
from models.m2m100.config import Inputs, M2M100Config
from models.parts.attention.config import GroupedQuery, Learned
from models.parts.heads_config import Classification
from models.parts.nested import changed
from models.parts.transformer_config import Dense, NormConfig, TokenLoss
from models.sharding.layouts import ONE_DEVICE
from scripts.recipes.prepare import prepare
from tests.helpers.chats import write_vocabulary
from trainers.plan import fresh_state, make_plan
from trainers.weights import huggingface, load_any
from trainers.weights.source import Arrays

Batch = Mapping[str, np.ndarray]
_EVERY = 25  # of this many packages one is read
_IGNORED = -100  # the label of what is not learned, in `transformers`
_PADDING = 2047
_VOCABULARY = 2000  # ids that are made of the texts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """A way to train a model that is compared.

    Attributes:
      experiment: returns it for a folder, in which it writes a model to start from and data, and so many steps.
      theirs: a batch as the arguments of their model, of N examples that have a row each.
      loss: which the other side takes (tests/parity/training.py).
      settings: of the config.json that the other side starts from, in place of those that are written.
      tolerance: the most by which a step's loss may differ, in nats.
    """

    experiment: Callable[[Path, int], Experiment]
    theirs: Callable[[Batch], dict[str, np.ndarray]]
    loss: Literal["own", "tokens", "preferences"] = "own"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    tolerance: float = 1e-3


def trained(e: Experiment, steps: int, *, peak: float, start: Path | None = None, **finetune: Any) -> Experiment:
    """Returns an experiment as all that train whole models: AdamW with weight decay, a tenth of the steps of warm-up, then
    linearly to 0, gradients clipped to 1, in single precision on one device."""
    return dataclasses.replace(
        e,
        layout=ONE_DEVICE,
        execution=Execution(dtype="float32"),
        optimizer=AdamW(schedule=Linear(peak=peak, steps=steps, warmup=steps // 10), weight_decay=0.01),
        train=Train(steps=steps, clip_norm=1.0, finetune=Finetuning(init_from=str(start or ""), **finetune)),
    )


# --- texts --------------------------------------------------------------------------------------------------------


def packages() -> list[dict[str, str]]:
    """Returns packages of Debian: their `name`, `section`, `summary` and the `text` that describes them."""
    (index,) = fetch([PACKAGE_INDEX], paths.data_dir() / "packages")
    members = {name: content.decode() for name, content in archives.members(index, "^(Packages|Translation-en)$")}
    texts, taken = debian.parse_descriptions(members["Translation-en"]), []
    for fields in itertools.islice(debian.parse_packages(members["Packages"]), 0, None, _EVERY):
        summary, *text = texts.get(fields.get("Description-md5", ""), [""])
        if summary and text:
            known = {"name": fields["Package"], "section": fields["Section"]}
            taken.append(known | {"summary": summary, "text": "\n".join(text)})
    return taken


def table(to: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    """Writes a table as JSON lines; returns its location as caches have it."""
    to.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"file:{to}"


def small_decoder(to: Path, texts: Iterable[str]) -> Path:
    """Writes a small decoder of SmolLM2's form from random weights, with a vocabulary of these texts and a chat template."""
    released = registry.load("gpt.smollm2_135m")
    write_vocabulary(to.with_name("vocabulary"), size=_VOCABULARY, lines=texts)
    sizes = {"vocab": _VOCABULARY + 2, "layers": 2, "model_dim": 128, "feed_forward.hidden_dim": 384}
    heads = {"attention.heads": 4, "attention.kv_heads": 2, "attention.head_dim": 32}
    e = dataclasses.replace(released, layout=ONE_DEVICE, model=changed(released.model, sizes | heads))
    params = jax.device_get(fresh_state(make_plan(e.with_finetune(init_from=""), jax.devices()[:1])).params)
    return huggingface.write_folder(Arrays(e.model, params, to.with_name("vocabulary")), to)


def decoder(data: Any, start: Path) -> Experiment:
    """Returns an experiment of a folder's decoder."""
    e = registry.load("chat.smollm2_sft")
    return dataclasses.replace(e, model=load_any.open_weights(start).config, data=data, eval=HeldOut())


def asked(package: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns the beginning of a conversation about a package."""
    return [{"role": "user", "content": f"What is {package['name']}?"}]


def conversations(scratch: Path, steps: int) -> Experiment:
    """All parameters of a small decoder; the assistant's turns are learned."""
    known, name = packages(), "conversations"
    start = small_decoder(scratch / "base", (p["summary"] for p in known))
    talks = ({"messages": [*asked(p), {"role": "assistant", "content": p["summary"]}]} for p in known)
    prepare(name, ChatCache(source=table(scratch / "talks.jsonl", talks), length=128), vocabulary=start)
    return trained(decoder(ChatData(cache=name, batch_size=4, length=128), start), steps, peak=1e-3, start=start)


def preferences(scratch: Path, steps: int) -> Experiment:
    """The same decoder told which of two answers is of the package, by DPO."""
    known, name = packages()[:600], "preferences"
    start = small_decoder(scratch / "base", (p["summary"] for p in known))
    pairs = (
        {"prompt": asked(p), "chosen": p["summary"], "rejected": other["summary"]}
        for p, other in zip(known, [*known[1:], known[0]], strict=True)
    )
    location = table(scratch / "pairs.jsonl", pairs)
    prepare(name, PreferenceCache(source=location, reference=str(start), length=192, pairs=2))
    data = PreferenceData(cache=name, batch_size=2, length=192, pairs=2)
    return trained(decoder(data, start), steps, peak=1e-3, start=start)


def adapters(scratch: Path, steps: int) -> Experiment:
    """All of SmolLM2 by the recipe of `mlperf.llama2_70b_lora`, but for dropout, on reports with their summaries in full rows."""
    start = huggingface.write_folder(load_any.open_weights(weights_folder("smollm2_135m")), scratch / "base")
    name, length = "reports", 128
    reports = ({"input": p["text"], "output": p["summary"]} for p in packages())
    prepare(name, SummaryCache(source=table(scratch / "reports.jsonl", reports), length=length), vocabulary=start)
    e = registry.load("mlperf.llama2_70b_lora")
    lora = dataclasses.replace(e.train.finetune.lora, dropout=0.0)
    train = dataclasses.replace(e.train, steps=steps, benchmark="", finetune=Finetuning(init_from=str(start), lora=lora))
    return dataclasses.replace(
        decoder(SummaryData(cache=name, batch_size=2, length=length), start),
        layout=ONE_DEVICE,
        execution=Execution(dtype="float32"),
        optimizer=for_steps(e.optimizer, e.train.steps, steps),
        train=train,
    )


def classification(scratch: Path, steps: int) -> Experiment:
    """MiniLM told the section of a package from its summary; its pooler and head start anew."""
    name = "sections"
    rows = ({"text": p["summary"], "label": p["section"]} for p in packages())
    prepare(name, OwnLabelledCache(source=table(scratch / "sections.jsonl", rows), length=64, slots=4))
    manifest = json.loads((paths.data_dir() / "caches" / name / "manifest.json").read_text())
    e = registry.load("bert.minilm_debian_sections_1k")
    model = changed(
        e.model, {"dropout": 0.0, "head": Classification(labels=len(manifest["labels"])), "output.label_smoothing": 0.0}
    )
    e = dataclasses.replace(e, model=model, data=LabelledData(cache=name, batch_size=4, length=64, slots=4))
    fresh = e.train.finetune.fresh
    return trained(e, steps, peak=1e-4, start=weights_folder("minilm_l6"), fresh=fresh)


def summaries(scratch: Path, steps: int) -> Experiment:
    """A small BART from random weights writes the summary of a description.

    The bias of its outputs, which `transformers` keeps fixed, is frozen. As `transformers` does not train the vector of padding,
    padding is an id that no text has.
    """
    name = "summaries"
    rows = ({"document": p["text"], "summary": p["summary"]} for p in packages())
    source = table(scratch / "summaries.jsonl", rows)
    prepare(name, OwnTextToTextCache(source=source, vocabulary_size=_VOCABULARY, inputs_length=256, targets_length=48))
    model = M2M100Config(
        vocab=_PADDING + 1,
        layers=4,
        model_dim=128,
        attention=GroupedQuery(heads=4, head_dim=32, biases="qkvo"),
        feed_forward=Dense(hidden_dim=512, activation="gelu", bias=True),
        positions=Learned(rows=258, first=2),
        norm=NormConfig(kind="layer", bias=True, eps=1e-5, order="post"),
        inputs=Inputs(scaled=False, norm=True),
        logits_bias=True,
        loss=TokenLoss(),
        dropout=0.0,
    )
    data = TextToTextData(cache=name, batch_size=4, inputs_length=256, targets_length=48)
    e = Experiment(
        model=model,
        layout=ONE_DEVICE,
        data=data,
        optimizer=AdamW(schedule=Linear(peak=1, steps=1)),
        train=Train(steps=1),
        eval=Decode(),
    )
    return trained(e, steps, peak=1e-3, freeze=("logits_bias",))


# --- sounds -------------------------------------------------------------------------------------------------------


def transcripts(scratch: Path, steps: int) -> Experiment:
    """A small wav2vec 2.0 from random weights writes down three read sentences, which silence before and
    behind them makes equally long, in three places; two more, without letters that these lack, are held out."""
    name, folder, seconds = "sentences", scratch / "sounds", 7.12
    splits = ("train", "test", "train", "train", "validation")
    folder.mkdir()
    source = sources.PACKAGES["librivox"]
    with (folder / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "text", "split"])
        items = source.reader(*fetch(list(source.packages), paths.data_dir() / "packages"))
        for (at, (item, split)), place in itertools.product(enumerate(zip(items, splits, strict=True)), range(3)):
            samples, sound = item.example.read(), np.zeros(round(seconds * RATE), np.float32)
            start = place * (len(sound) - len(samples)) // 2
            sound[start : start + len(samples)] = samples
            soundfile.write(folder / f"{at}-{place}.wav", sound, RATE)
            writer.writerow([f"{at}-{place}.wav", item.example.texts["transcribe"], split])
    prepare(name, SpeechCache(source=f"folder:{folder}", seconds=seconds, targets_length=192))
    manifest = json.loads((paths.data_dir() / "caches" / name / "manifest.json").read_text())
    model = conformer(
        2,
        96,
        4,
        layer=TransformerLayer(order="post"),
        positions=ConvolutionalPositions(taps=32, groups=4),
        front=Waveform(channels=32, norm="group", bias=False),
        objective=Ctc(vocab=manifest["vocabulary"]),
        dropout=0.0,
    )
    data = SpeechData(cache=name, batch_size=2, seconds=seconds, front="waveform", targets_length=192)
    e = Experiment(
        model=model,
        layout=ONE_DEVICE,
        data=data,
        optimizer=AdamW(schedule=Linear(peak=1, steps=1)),
        train=Train(steps=1),
        eval=Decode(),
    )
    return trained(e, steps, peak=1e-3)


# --- batches as theirs --------------------------------------------------------------------------------------------


def examples(batch: Batch, *sides: str, segments: str = "segments") -> Iterator[list[np.ndarray]]:
    """Yields the parts of each packed example, row by row."""
    for row, numbers in enumerate(batch[segments]):
        for number in range(1, numbers.max() + 1):
            yield [batch[side][row][numbers == number] for side in sides]


def padded(arrays: Sequence[np.ndarray], fill: int = 0) -> np.ndarray:
    """Returns int32 [N, longest]."""
    longest = max(map(len, arrays))
    return np.stack([np.pad(x.astype(np.int32), (0, longest - len(x)), constant_values=fill) for x in arrays])


def masks(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns where `padded` has something, int32 [N, longest]."""
    return padded([np.ones(len(x)) for x in arrays])


def learned(batch: Batch) -> dict[str, np.ndarray]:
    """Returns a decoder's arguments: the learned tokens are labels."""
    tokens, weights = zip(*examples(batch, "tokens", "loss_weights"), strict=True)
    labels = [np.where(used > 0, ids, _IGNORED) for ids, used in zip(tokens, weights, strict=True)]
    return {"input_ids": padded(tokens), "attention_mask": masks(tokens), "labels": padded(labels, _IGNORED)}


def in_pairs(batch: Batch) -> dict[str, np.ndarray]:
    """Returns the arguments of chosen answers, with their prompts, and then those of the rejected ones."""
    return {name: np.concatenate([x[::2], x[1::2]]) for name, x in learned(batch).items()}


def labelled(batch: Batch) -> dict[str, np.ndarray]:
    """Returns the arguments of a classifier: an example's label is that of the slot at its first token."""
    tokens, types = zip(*examples(batch, "tokens", "types"), strict=True)
    labels = batch["targets"][batch["targets"] >= 0]
    assert len(labels) == len(tokens)
    return {"input_ids": padded(tokens), "attention_mask": masks(tokens), "token_type_ids": padded(types), "labels": labels}


def written(batch: Batch) -> dict[str, np.ndarray]:
    """Returns the arguments of an encoder-decoder."""
    (inputs,) = zip(*examples(batch, "inputs", segments="inputs_segments"), strict=True)
    (targets,) = zip(*examples(batch, "targets", segments="targets_segments"), strict=True)
    return {"input_ids": padded(inputs), "attention_mask": masks(inputs), "labels": padded(targets, _IGNORED)}


def heard(batch: Batch) -> dict[str, np.ndarray]:
    """Returns the arguments of a model of waveforms, all of one length."""
    (targets,) = zip(*examples(batch, "targets", segments="targets_segments"), strict=True)
    assert batch["frames_segments"].all()
    return {"input_values": batch["frames"][..., 0], "labels": padded(targets, _IGNORED)}


TUNINGS = {
    "adapters": Tuning(experiment=adapters, theirs=learned, tolerance=0.01),
    "conversations": Tuning(experiment=conversations, theirs=learned),
    "preferences": Tuning(experiment=preferences, theirs=in_pairs, loss="preferences"),
    "classification": Tuning(experiment=classification, theirs=labelled),
    "summaries": Tuning(experiment=summaries, theirs=written, settings={"pad_token_id": _PADDING}),
    "transcripts": Tuning(experiment=transcripts, theirs=heard, loss="tokens"),
}
