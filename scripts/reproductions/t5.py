"""T5 (arXiv 1910.10683), mT5 (arXiv 2010.11934), Switch Transformer (arXiv 2101.03961) and NLLB (arXiv 2207.04672): FLOPs,
scaling, and small ones trained."""

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from configs import registry
from configs.experiment import Experiment
from data.text.config import TextData
from models.parts.moe.config import Capacity, ExpertsConfig, MoeConfig, Top1, TopK
from models.parts.nested import changed
from scripts.reproductions import small_decoder, training
from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.sizes import parameters, step_flops


@reproduction("Switch Transformer, Table 9", unit="FLOP of a sequence, forward", minutes=2)
def switch_flops() -> Iterator[Row]:
    """A sparse model needs the FLOPs of the dense one beside it: 124, 425 and 6300 billion a sequence."""
    printed = {
        "t5.v1_1_base": "124B",
        "switch.base_128e": "124B",
        "t5.v1_1_large": "425B",
        "switch.large_128e": "425B",
        "t5.v1_1_xxl": "6.3T",
        "switch.xxl_128e": "6.3T",
        "switch.c_2048e": "890B",
    }
    dense = "512 inputs and 114 targets in rows of 128, every product; the paper does not say what it counts"
    sparse = "as the dense one, with a router; a token's one expert is counted, not its buffers' empty slots"
    for name, paper in printed.items():
        ours = step_flops(name) / 3 / registry.load(name).data.batch_size
        yield Row(name, paper, ours, dense if name.startswith("t5") else sparse)


@reproduction("Switch Transformer, its table of distillation (64 and 128 experts) and Figure 4 (256)", unit="parameters")
def switch_scaling() -> Iterator[Row]:
    """Experts add parameters and no FLOPs a token: from 8 to 256 of them, at T5-Base's FLOPs."""
    dense = parameters("t5.v1_0_base")
    stated = {8: None, 16: None, 32: None, 64: "3.8B", 128: "7.4B", 256: "14.7B"}
    for experts, paper in stated.items():
        ours = parameters(f"switch.base_{experts}e")
        yield Row(f"{experts} experts", paper, ours, f"{ours / dense:.3g} times T5-Base's")


@reproduction("Switch Transformer, Tables 6 to 8", unit="parameters, and the share that distillation saves")
def switch_compression() -> Iterator[Row]:
    """Mixtures of 1.1 to 14.7 billion parameters are distilled into T5-Base, which has 82 to 99 % fewer."""
    dense = parameters("t5.v1_0_base")
    yield Row("T5-Base", "223M", dense)
    printed = {16: ("1.1B", "82 %"), 32: ("2.0B", "90 %"), 64: ("3,800M", "95 %"), 128: ("7410M", "97 %"), 256: ("14.7B", "99 %")}
    for experts, (paper, saved) in printed.items():
        ours = parameters(f"switch.base_{experts}e")
        yield Row(f"{experts} experts", paper, ours)
        yield Row(f"{experts} experts, compressed by", saved, 1 - dense / ours, "the number of experts is found by the size")


@reproduction(
    "Switch Transformer, Table 1, sections 3.1 to 3.3", "derived", "printed", unit="time of an example over T5-Base's", minutes=1
)
def switch_speeds() -> Iterator[Row]:
    """On 32 cores mixtures take 1.6 to 2 times T5-Base's time, T5-Large, of 3.5 times the FLOPs, 3.4 times."""
    base = registry.load("switch.base_128e")
    dense, large = (_slot_flops(registry.load(f"t5.v1_1_{size}")) for size in ("base", "large"))
    yield Row("T5-Large, its FLOPs", "3.5", large / dense, "512 inputs and 114 targets in rows of 128", "printed")
    yield Row("T5-Large", 1600 / 470, large / dense, "by FLOPs")
    rates = {
        ("Switch", 2.0): 860,
        ("Switch", 1.25): 910,
        ("Switch", 1.0): 1000,
        ("MoE", 2.0): 840,
        ("MoE", 1.25): 790,
        ("MoE", 1.0): 860,
    }
    small = _slot_flops(registry.load("t5.v1_0_base"))
    note = "7.5 times fewer steps, and a seventh of the time; by FLOPs, all slots counted"
    yield Row("Switch-Base, 64 experts (Figure 5)", 7.5 / 7, _slot_flops(registry.load("switch.base_64e")) / small, note)
    for (name, factor), rate in rates.items():
        moe: Any = base.model.moe  # pyright: ignore[reportAttributeAccessIssue]
        router = moe.router if name == "Switch" else TopK(choices=2, normalized=True, init_std=0.02)
        capacity = dataclasses.replace(moe.capacity, factor=factor)  # the paper's formula has no number of choices
        e = dataclasses.replace(base, model=changed(base.model, {"moe.router": router, "moe.capacity": capacity}))
        note = "by FLOPs, all slots counted: what is left of the paper's time is exchange and routing"
        yield Row(f"{name}-Base, factor {factor:g}", 1600 / rate, _slot_flops(e) / small, note)


def _slot_flops(e: Experiment) -> float:
    """Returns the FLOPs of an example, with all slots of experts."""
    from trainers.hlo.model_flops import slot_flops

    return slot_flops(e) / e.data.batch_size


# --- trained -----------------------------------------------------------------------------------------------------

LOSS = small_decoder.LOSS
SWITCH = "Switch Transformer (arXiv 2101.03961)"
SHORT_STEPS = 120
PRINTED = "the paper prints its negative"  # the negative log perplexity, where a cross-entropy stands here


def _small(steps: int, moe: MoeConfig | None = None, **model: Any) -> Experiment:
    """Returns T5 with 4 layers of 64 on spans of English; with a mixture in every second layer at the same FLOPs a token."""
    e = registry.load("t5.quickstart")
    sizes: Any = {"layers": 4, "model_dim": 64, "feed_forward.hidden_dim": 128, "attention.heads": 4, "attention.head_dim": 16}
    e = dataclasses.replace(e, model=changed(e.model, sizes | model | {"moe": moe}))
    return training.shortened(e, steps, "--data.batch_size=16", "--train.log_every=20", evaluations=5)


def _mixture(experts: int, choices: int = 1, factor: float = 1.25, **router: Any) -> MoeConfig:
    """Returns Switch's mixture, or one of two experts a token, of which none is dropped at random: no step draws anything."""
    router = {"init_std": 0.02} | router
    return MoeConfig(
        experts=ExpertsConfig(count=experts),
        router=Top1(**router) if choices == 1 else TopK(choices=choices, normalized=True, **router),
        capacity=Capacity(factor=factor, eval_factor=4.0),
        group_size=256,
    )


@reproduction(f"{SWITCH}, section 3.1", unit="held-out cross-entropy, nats a token", kind="trained", minutes=60)
def switch_steps(folder: Path) -> list[Row]:
    """At the same FLOPs a token 64 experts reach T5-Base's loss in 60,000 of its 450,000 steps, and more experts are better."""
    mixtures = {n: small_decoder.top1(n) for n in (8, 32)}  # of 128 see gshard.experts: they would need more text
    arms = [small_decoder.arm("dense"), *(small_decoder.arm(f"top1-{n}", moe) for n, moe in mixtures.items())]
    runs = small_decoder.train(folder, arms)
    dense, few, many = (runs[arm.name] for arm in arms)
    rows = training.curve_rows(runs, LOSS)
    for (n, moe), of_arm in zip(mixtures.items(), (few, many), strict=True):
        label, paper = f"switch-{n}: share of the dense model's steps, less 1", "below 0 (-0.87 with 64 experts)"
        rows.append(small_decoder.share_of_steps(label, of_arm, dense, paper, small_decoder.routers(of_arm, moe)))
    note = "a decoder of two layers of 64 and 8.2 million tokens, where the paper has T5-Base and some 10^11"
    for label, better, other in (
        ("switch-8 less dense, at the end", few, dense),
        ("switch-32 less switch-8, at the end", many, few),
    ):
        difference = training.less(training.values(better, LOSS), training.values(other, LOSS))
        rows.append(training.claim(label, difference, -1, "below 0", note))
    return rows


@reproduction(f"{SWITCH}, Table 1", unit="held-out cross-entropy, nats a token", kind="trained", minutes=9)
def switch_top1(folder: Path) -> list[Row]:
    """One expert a token is as good as two at small capacity, and faster: negative log perplexity at 100,000 steps with
    factors of 1.0, 1.25 and 2.0 is -1.561, -1.553, -1.554 of Switch and -1.572, -1.559, -1.547 of a mixture with two."""
    printed = {
        ("top1", 1.0): (-1.561, 1000),
        ("top1", 1.25): (-1.553, 910),
        ("top1", 2.0): (-1.554, 860),
        ("top2", 1.0): (-1.572, 860),
        ("top2", 1.25): (-1.559, 790),
        ("top2", 2.0): (-1.547, 840),
    }
    arms = {
        (gating, factor): training.arm(f"{gating}-{factor:g}", _small(SHORT_STEPS, _mixture(8, int(gating[-1]), factor)))
        for gating, factor in printed
    }
    runs = training.train(folder, list(arms.values()), seeds=(0, 1))
    rows, loss, speed = [], {}, {}
    for key, (paper, _) in printed.items():
        of_arm = runs[arms[key].name]
        loss[key], speed[key] = training.values(of_arm, LOSS), [_speed(run) for run in of_arm]
        dropped = training.mean(training.values(of_arm, "moe/dropped")).value
        note = f"{dropped:.1%} of choices dropped"
        rows.append(training.measured(f"{key[0]}, factor {key[1]:g}", loss[key], f"{-paper:.3f}", f"{PRINTED}; {note}"))
    for factor in (1.0, 1.25, 2.0):
        first, second = ("top1", factor), ("top2", factor)
        gap = printed[first][0] - printed[second][0]  # of the negative log perplexity, which is better above
        rows.append(
            training.claim(
                f"top2 less top1, factor {factor:g}", training.less(loss[second], loss[first]), 1 if gap > 0 else -1, gap
            )
        )
    ratios = [a / b for a, b in zip(speed["top1", 1.0], speed["top2", 2.0], strict=True)]
    note = "medians of logged steps, beside other work; 1000 against 840 examples a second in the paper"
    difference = training.less(ratios, 1.0)
    return [*rows, training.claim("speed of top1 with 1.0 over top2 with 2.0, less 1", difference, 1, 1000 / 840 - 1, note)]


def _speed(run: training.Run) -> float:
    """Returns the median of the logged tokens a second."""
    rates = sorted(rate for _, rate in run.curve("tokens_per_s"))
    return rates[len(rates) // 2]


@reproduction(f"{SWITCH}, Tables 2 and 3", unit="held-out cross-entropy, nats a token", kind="trained", minutes=9)
def switch_stability(folder: Path) -> list[Row]:
    """A router in bfloat16 diverges (-3.780 instead of -1.718), one in float32 inside a bfloat16 model does not (-1.716); a tenth
    of the initial variance is better after 3,500 steps, and spreads less: -2.72, standard deviation .01, against -3.60, .68."""
    fine: Any = dict(init_std=0.0)  # so that init_scale holds for routers too
    low = ["--execution.dtype=bfloat16"]
    arms = [
        training.arm("float32", _small(SHORT_STEPS, _mixture(8, **fine), init_scale=0.1)),
        training.arm("selective", _small(SHORT_STEPS, _mixture(8, **fine), init_scale=0.1), *low),
        training.arm("bfloat16-router", _small(SHORT_STEPS, _mixture(8, **fine, dtype="same"), init_scale=0.1), *low),
        training.arm("init-1.0", _small(SHORT_STEPS, _mixture(8, **fine))),
    ]
    runs = training.train(folder, arms)
    loss = {name: training.values(of_arm, LOSS) for name, of_arm in runs.items()}
    printed = {"float32": "1.718", "selective": "1.716", "bfloat16-router": "3.780"}
    rows = []
    for name, of_arm in runs.items():
        lost = sum(run.diverged for run in of_arm)
        note = f"{lost} of {len(of_arm)} seeds gave up; standard deviation over seeds {_deviation(loss[name]):.2g}"
        note = f"{PRINTED}; {note}" if name in printed else note
        rows.append(training.measured(name, loss[name], printed.get(name), note))
    close = training.less(loss["selective"], loss["float32"])
    rows.append(training.claim("selective less float32, below .02", training.below(close, 0.02), -1, 1.716 - 1.718 - 0.02))
    router = training.less(loss["bfloat16-router"], loss["selective"])
    small = "8 experts and a few hundred steps: probabilities of an eighth lose little in 8 bits of mantissa"
    rows.append(training.claim("bfloat16 router less selective", router, 1, 3.780 - 1.716, small))
    scale = training.less(loss["init-1.0"], loss["float32"])
    rows.append(training.claim("init 1.0 less init 0.1", scale, 1, 3.60 - 2.72, "a norm stands before each layer here too"))
    ratio = _deviation(loss["init-1.0"]) / max(_deviation(loss["float32"]), 1e-9)
    return [*rows, Row("deviation over seeds, init 1.0 over 0.1", 68.0, ratio, f"{len(training.SEEDS)} seeds", compared=False)]


@reproduction(f"{SWITCH}, abstract and section 4.2", unit="held-out cross-entropy, nats a token", kind="trained", minutes=70)
def switch_distillation(folder: Path) -> list[Row]:
    """A dense model that a mixture teaches keeps 30 % of the mixture's gain; the teacher has a quarter of each target's mass."""
    arms = [small_decoder.arm("dense"), small_decoder.arm("top1-8", small_decoder.top1(8))]
    runs = small_decoder.train(folder, arms) | {"taught": []}
    for seed, run in zip(training.SEEDS, runs["top1-8"], strict=True):  # each by the mixture of its own seed
        taught = training.arm("taught", arms[0].experiment, f"--train.distillation.teacher={run.workdir}")
        runs["taught"] += training.train(folder, [taught], (seed,))["taught"]
    loss = {name: training.values(of_arm, LOSS) for name, of_arm in runs.items()}
    gain, kept = (training.less(loss["dense"], loss[name]) for name in ("top1-8", "taught"))
    note = f"keeps {kept} of the mixture's {gain} nats; all weights start fresh, in the paper from the teacher's"
    lost = training.less(loss["taught"], loss["top1-8"])
    return [
        *training.curve_rows(runs, LOSS),
        training.claim("taught less dense", training.less(loss["taught"], loss["dense"]), -1, "below 0 (30 % of the gain)", note),
        training.claim("taught less its teacher", lost, 1, "above 0 (70 % of the gain)"),
    ]


MESSAGE_STEPS = 1500  # 1.4 times 2.2 million tokens
LEAST = 10  # held-out texts of a language that counts by itself


@reproduction(f"{SWITCH}, section 4.3, Figures 7 and 8", unit="held-out cross-entropy, nats a token", kind="trained", minutes=25)
def switch_languages(folder: Path) -> list[Row]:
    """All of 101 languages gain from experts at the same FLOPs a token, and reach the dense model's loss in a fifth of its steps
    on average, 91 % of them in a quarter or less."""
    moe, fields = small_decoder.top1(8), ("--data.cache=messages_4k",)
    arms = [
        small_decoder.arm(name, of_arm, *fields, steps=MESSAGE_STEPS, vocab=4096)
        for name, of_arm in (("dense", None), ("top1-8", moe))
    ]
    runs = training.train(folder, arms)
    dense, sparse = runs.values()
    gains = [_gains(*pair) for pair in zip(dense, sparse, strict=True)]
    means = {language: statistics.fmean(of_seed[language] for of_seed in gains) for language in gains[0]}
    rows = training.curve_rows(runs, LOSS)
    data = (
        f"{len(means)} languages with at least {LEAST} held-out messages of programs, of which most translate the same English "
        "ones: the error is over seeds alone; the paper has mC4"
    )
    shares = [sum(gain > 0 for gain in of_seed.values()) / len(of_seed) for of_seed in gains]
    rows.append(training.measured("share of the languages that gain", shares, "100 %", data))
    least, most = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    extremes = f"{data}; from {means[least]:.3f} ({least}) to {means[most]:.3f} ({most}), means over seeds"
    gain = training.mean([statistics.fmean(of_seed.values()) for of_seed in gains])
    rows.append(training.claim("gain, mean over languages", gain, 1, "above 0", extremes))
    note = small_decoder.routers(sparse, moe)
    share = small_decoder.share_of_steps("share of the dense model's steps, less 1", sparse, dense, "below 0 (a fifth)", note)
    return [*rows, share]


def _gains(dense: training.Run, sparse: training.Run) -> dict[str, float]:
    """Returns by how much the held-out loss of each language is lower with experts, in nats a token."""
    first, second = (training.kept(run, "languages", lambda run=run: _losses(run)) for run in (dense, sparse))
    return {language: first[language] - second[language] for language in sorted(first)}


def _losses(run: training.Run) -> dict[str, float]:
    """Returns the loss of validation and test messages by language, of those with enough."""
    from data.reading.caches import cache_folder, examples
    from data.reading.examples import unpack
    from data.text import encoding
    from data.vocabularies.tokenizers import Tokenizer
    from trainers.evaluation.held_out import HeldOutEvaluator
    from trainers.inference.load import load
    from trainers.weights.load_any import open_model

    e, weights = open_model(run.workdir)
    served, cache, data = load(weights, e.execution), cache_folder(e.data), e.data
    assert isinstance(data, TextData)
    evaluator, tokenizer = HeldOutEvaluator(served.model, e, cache, cache), Tokenizer(cache)
    texts: dict[str, list[str]] = defaultdict(list)
    for split in ("validation", "test"):
        for document in examples(cache, split):
            texts[document["id"].split("/")[1]].append(document["text"])  # messages/LANGUAGE/PROGRAM/NUMBER
    losses = {}
    for language, of_language in texts.items():
        if len(of_language) >= LEAST:
            records, _ = encoding.rows_of(of_language, tokenizer, data.length)
            rows = [unpack(record, data.stored()) for record in records]
            total = evaluator.measure(served.params, rows)[0]["cross_entropy"]
            losses[language] = float(total.sum) / float(total.over)
    return losses


def _deviation(values: list[float]) -> float:
    error = training.mean(values).error
    return (error or 0.0) * math.sqrt(len(values))
