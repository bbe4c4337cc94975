"""Draws a run of translations as one self-contained page: loss, BLEU, expert load, one tensor's place on the mesh.

    python -m scripts.report_translations runs/quickstart

Reads metrics.jsonl, evaluation.json (written by scripts.quickstart) and the newest checkpoint's experiment; writes
DIR/index.html.
"""

from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from configs.registry import ConfigError
from data import untrusted
from scripts import cli, pages
from scripts.pages import COLORS, picture


def write(workdir: Path, e: Experiment) -> Path:
    """Writes DIR/index.html and returns its path."""
    import matplotlib

    matplotlib.use("agg")
    from data.reading.caches import cache_folder
    from trainers.monitoring import history

    steps = [line for line in history.logged(workdir) if "loss" in line]
    evaluation = untrusted.read_json(workdir / "evaluation.json", ConfigError) | {"cache": cache_folder(e.data)}
    with untrusted.damage(workdir / "evaluation.json", ConfigError):
        return _write(workdir, e, steps, evaluation)


def _write(workdir: Path, e: Experiment, steps: list[dict[str, Any]], evaluation: dict[str, Any]) -> Path:
    parts = [
        ("Loss", picture(loss_curve, steps), "Training objective and plain cross-entropy per target token, in nats."),
        (
            "Scores on held-out test strings",
            scores_table(evaluation),
            "Stripped: without placeholders, tags, punctuation and "
            "case, which copying gets right for free. “Other sources” is the same model fed with another sentence of the "
            "same language: what it scores without looking.",
        ),
        (
            "BLEU by language",
            picture(bleu_by_language, evaluation),
            "Stripped BLEU. A language has only a few sentences here: read the shape, not single bars.",
        ),
        ("Translations", samples_table(evaluation), ""),
    ]
    if any(name.startswith("moe/load") for name in steps[-1]):
        parts += [
            ("Expert load over time", picture(expert_load, steps), "Tokens served by each expert over the mean: 1 is balanced."),
            ("Where an expert tensor lives", picture(tensor_place, e), "Each box is one device's share of the tensor."),
        ]
    return pages.write(workdir / "index.html", e.name, f"{e.name}, step {steps[-1]['step']}", parts)


def loss_curve(figure: Any, steps: list[dict[str, Any]]) -> str:
    axes = figure.subplots()
    x = [s["step"] for s in steps]
    axes.plot(x, [s["loss"] for s in steps], color="#999", label="objective (smoothed labels, balance loss)")
    axes.plot(x, [s["cross_entropy"] for s in steps], color=COLORS["high"], label="cross-entropy")
    axes.set(xlabel="step", ylabel="nats per token", ylim=(0, None))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return f"loss falls from {steps[0]['loss']:.2f} to {steps[-1]['loss']:.2f}"


def bleu_by_language(figure: Any, evaluation: dict[str, Any]) -> str:
    from matplotlib.patches import Patch

    from data.reading.caches import read_manifest
    from data.translation.decoding import buckets

    manifest = read_manifest(evaluation["cache"])
    bucket_of = buckets(manifest["languages"])
    ranked = sorted(evaluation["languages"], key=lambda k: -manifest["languages"][k]["pairs"])
    axes = figure.subplots()
    axes.bar(ranked, [evaluation["languages"][k]["stripped_bleu"] for k in ranked], color=[COLORS[bucket_of[k]] for k in ranked])
    copied = evaluation["baselines"]["source copied"]["stripped_bleu"]
    axes.axhline(copied, color="#a33", lw=1, ls="--")
    axes.tick_params(axis="x", rotation=90, labelsize=5.5)
    axes.margins(x=0.005)
    axes.set(ylabel="stripped BLEU", xlabel="languages, most training pairs first")
    handles = [Patch(color=c, label=f"{k} resource") for k, c in COLORS.items()]
    handles.append(axes.plot([], [], color="#a33", ls="--", label="source copied, all languages")[0])
    axes.legend(handles=handles, frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return f"stripped BLEU of {len(ranked)} languages"


def expert_load(figure: Any, steps: list[dict[str, Any]]) -> str:
    towers = figure.subplots(1, 2, sharey=True)
    image = None
    for axes, tower in zip(towers, ("encoder", "decoder"), strict=True):
        load = list(zip(*(s[f"moe/load_{tower}"] for s in steps), strict=True))
        image = axes.imshow(
            load,
            aspect="auto",
            cmap="RdBu_r",
            vmin=0,
            vmax=2,
            interpolation="nearest",
            extent=(steps[0]["step"], steps[-1]["step"], len(load) - 0.5, -0.5),
        )
        axes.set(title=tower, xlabel="step", yticks=range(len(load)))
    towers[0].set_ylabel("expert")
    figure.colorbar(image, ax=towers, label="load over mean")
    return "expert load over time, encoder and decoder"


def tensor_place(figure: Any, e: Experiment) -> str:
    from matplotlib.patches import Rectangle

    from trainers.plan import make_plan

    info = next(i for i in make_plan(e, abstract=True).parameters if "expert" in i.axes)
    cuts = e.layout.cut(info.axes, info.shape, component=info.scope.path)
    at = info.axes.index("expert")
    experts, shards = info.shape[at], e.layout.num_shards(cuts[at])
    axes = figure.subplots()
    for expert in range(experts):
        device = expert * shards // experts
        axes.add_patch(Rectangle((expert, 0), 0.9, 1, facecolor=f"C{device % 10}", alpha=0.75))
        axes.text(expert + 0.45, 0.62, f"expert {expert}", ha="center", fontsize=8)
        axes.text(expert + 0.45, 0.36, f"device {device}", ha="center", fontsize=8, weight="bold")
    shape = " x ".join(f"{n} {s}" for n, s in zip(info.axes, info.shape, strict=True))
    axes.set(xlim=(-0.1, experts), ylim=(-0.1, 1.15), title=f"{info.name}: {shape}, {info.spec()}")
    axes.axis("off")
    return f"{info.name}: {experts} experts over {shards} devices"


def scores_table(evaluation: dict[str, Any]) -> str:
    columns = ("stripped_bleu", "bleu", "stripped_chrf", "chrf")
    rows = {"the model": evaluation["all"]} | {f"{k} resource": evaluation["buckets"][k] for k in ("high", "middle", "low")}
    rows |= evaluation["baselines"]
    shown = ([name, *(f"{scores[column]:.1f}" for column in columns)] for name, scores in rows.items())
    return pages.table(["", *(column.replace("_", " ") for column in columns)], shown, range(1, 5))


def samples_table(evaluation: dict[str, Any]) -> str:
    keys = ("lang", "source", "output", "reference")
    head = "".join(f"<th>{k}</th>" for k in keys)
    lines = ["".join(f"<td dir='auto'>{pages.escaped(s[k])}</td>" for k in keys) for s in evaluation["samples"]]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def main() -> int:
    return pages.of_model(__doc__, lambda workdir, e, weights: write(workdir, e))


if __name__ == "__main__":
    cli.run(main)
