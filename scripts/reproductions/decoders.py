"""Decoders: PaLM (arXiv 2204.02311), LaMDA (arXiv 2201.08239), GLaM (arXiv 2112.06905), and a released one that
is fine-tuned as LaMDA."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

from configs import registry
from data.lamda import metrics
from data.lamda.config import RateAndRank
from data.lamda.prompt_format import ATTRIBUTES
from scripts.reproductions import training
from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.sizes import parameters, parts, step_flops


@reproduction("PaLM, section 4.1, Table 3 and appendix B", "memory", unit="share of 6144 TPU v4's peak")
def palm_mfu() -> Iterator[Row]:
    """238.3 thousand tokens a second are 45.7 % of the peak without attention, 46.2 % with it."""
    e = registry.load("gpt.palm_540b")
    rate, peak = 238.3e3, 6144 * 275e12
    a_token = step_flops(e.name) / (e.data.batch_size * 2048)
    without = 6 * parameters(e.name)
    yield Row("without attention", "45.7 %", without * rate / peak, "6 N a token at the paper's rate")
    yield Row("with attention", "46.2 %", a_token * rate / peak, "FLOPs counted in the traced loss")


@reproduction("LaMDA, Table 27", unit="share of the chips' peak that its budget would need", minutes=1)
def lamda_budget() -> Iterator[Row]:
    """137 billion parameters were trained in 57.7 days on 1024 TPU-v3 chips at 56.5 % of their peak."""
    e = registry.load("lamda.lamda_137b")
    a_token = step_flops(e.name) / (e.data.batch_size * e.data.length)  # pyright: ignore[reportAttributeAccessIssue]
    share = a_token * 3e6 * 256e3 / (57.7 * 86_400 * 1024 * 123e12)
    note = "3 million steps of 256 thousand tokens: more than the peak, so that one of the paper's numbers is off"
    yield Row("137B", "56.5 %", share, note)


@reproduction("GLaM, Table 4", unit="parameters")
def glam() -> Iterator[Row]:
    """Mixtures of 64 experts in every second layer: 1.2 trillion parameters, 96.6 billion of them for a token, and 143 billion,
    9.8 of them."""
    note = "the vocabulary of 256,000 in the largest, 32,000 in the other"
    for name, (paper, active) in {"glam_64b_64e": ("1.2T", "96.6B"), "glam_8b_64e": ("143B", "9.8B")}.items():
        moe = registry.load(f"gpt.{name}").model.moe  # pyright: ignore[reportAttributeAccessIssue]
        total = parameters(f"gpt.{name}")
        experts = sum(n for key, n in parts(f"gpt.{name}").items() if key.startswith("decoder.sparse.ffn.w"))
        yield Row(name, paper, total, note)
        yield Row(
            f"{name}, for a token", active, total - experts * (moe.experts.count - moe.router.choices) // moe.experts.count, note
        )


# --- trained -----------------------------------------------------------------------------------------------------

SEEDS, TUNING, TEST, RATED = (0,), 150, 320, 303  # steps; test conversations, and those of them that people rated
ADAPTED = ("q", "k", "v", "o", "wi", "wg", "wo")


@reproduction("LaMDA (arXiv 2201.08239), section 6.1 and Figure 4", unit="AUC of ratings", kind="trained", minutes=15)
def lamda_finetuning(folder: Path) -> list[Row]:
    """Fine-tuning on labelled dialog improves quality, safety and groundedness over pre-training alone: the model responds
    better, and rates responses so that those which it chooses are better."""
    # SmolLM2 as released is the pre-trained model: no decoder that is trained here in minutes knows English. Rows have half the
    # length of lamda.smollm2_chat's, and adapters of rank 8 take two thirds of the time of a step that trains the matrices. A
    # seed takes a quarter of an hour of one core; the errors of one are those of the held-out sample.
    e = dataclasses.replace(
        registry.load("lamda.smollm2_chat"), eval=RateAndRank(split="test", limit=TEST, batch_size=4, responses=0, others=15)
    )
    fields = (
        "--data.cache=chitchat_short",
        "--data.length=128",
        "--train.finetune.freeze",
        "--train.finetune.freeze_layers=0",
        "--train.finetune.lora.rank=8",
        "--train.finetune.lora.targets",
        *ADAPTED,
        "--optimizer.schedule.peak=1e-3",
    )
    arm = training.arm("finetuned", training.shortened(e, TUNING, *fields))
    start = training.started(folder, arm)
    runs = training.train(folder, [arm], SEEDS)["finetuned"]
    rows, claims = [], []

    def claimed(label: str, name: str, other: float, sign: int, note: str, *errors: float) -> None:
        """Adds the claim that a figure of the fine-tuned model is on one side of another, which no seed changes."""
        after = training.values(runs, f"eval/{name}")
        difference = training.less(after, other)
        note = f"{training.mean(after).value:.3g} against {other:.3g}; {note}"
        claims.append(training.claim(label, training.sampled(difference, *errors) if errors else difference, sign, None, note))

    note = "one seed; in part the form of the turns, which is new to it; the paper asks people for quality"
    claimed("nats a token of a response", "cross_entropy", start["eval/cross_entropy"], -1, note)
    people = f"one seed; the error is that of {RATED} test conversations, rated as a whole by those who took part"
    for name in ATTRIBUTES:
        label, score, before = f"{name}: AUC of ratings", f"auc_{name}", start[f"eval/auc_{name}"]
        after = training.mean(training.values(runs, f"eval/{score}")).value
        good = round(RATED * start[f"eval/good_{name}"])
        errors = [metrics.auc_error(area, good, RATED - good) for area in (before, after)]
        rows.append(Row(f"{label}, pre-trained", None, before, "error of the sample", error=errors[0], compared=False))
        rows.append(Row(f"{label}, fine-tuned", None, after, "error of the sample", error=errors[1], compared=False))
        claimed(f"{label}, fine-tuned less pre-trained", score, before, 1, people, *errors)
    for name in ATTRIBUTES:
        share = start[f"eval/good_{name}"]
        often = max(share, 1 - share)
        error = math.sqrt(often * (1 - often) / RATED)
        note = "that of always naming the more frequent rating; good is what has a probability above a half"
        claimed(f"{name}: accuracy less the majority's", f"accuracy_{name}", often, 1, note, error, error)
    for name in ATTRIBUTES:
        share, chosen = start[f"eval/good_{name}"], start[f"eval/chosen_{name}"]
        note = f"rated so by people; pre-trained {chosen:.3g}; people's conversations stand for the model's own candidates"
        claimed(f"{name}: best of 16 less any", f"chosen_{name}", share, 1, note, metrics.best_of_error(share, RATED, 16))
    return [*rows, *claims, *_LEFT_OUT]


_UNLABELLED = "left out: no package of conversations has such labels, and what is upbeat is not what is safe"
_UNASKED = "left out: the annotated turns with queries are not public, so that no model here asks tools"
_LEFT_OUT = (Row("safety", "better", None, _UNLABELLED), Row("groundedness", "better", None, _UNASKED))
