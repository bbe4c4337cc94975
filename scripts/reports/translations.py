"""Parts of a page about translations that were scored: BLEU by language, examples, and one tensor's place on the mesh."""

from pathlib import Path
from typing import Any

from configs.experiment import Experiment
from configs.registry import ConfigError
from data import untrusted
from data.translation.decoding import BUCKETS
from scripts.reports.page import COLORS, Part, picture, table

FILE = "evaluation.json"  # written by scripts.quickstart
BELIEVABLE = 20.0  # stripped BLEU below which few translations are right: at 11.5 three of 700 had all words
NO_TRANSLATOR = (
    "This is no translator: minutes on a laptop teach it words and forms, and most translations of unseen strings are wrong. "
    "The run shows that tokens travel to experts and back, how evenly they are dealt out, and that the loss falls."
)
FEW = 12  # languages have a row each in the table of scores; more are drawn


def suits(workdir: Path) -> bool:
    return (workdir / FILE).exists()


def parts(workdir: Path, e: Experiment) -> list[Part]:
    """Returns the parts, from the scores in the folder; raises ConfigError if these are damaged."""
    from data.reading.caches import cache_folder

    evaluation = untrusted.read_json(workdir / FILE, ConfigError) | {"cache": cache_folder(e.data)}
    with untrusted.damage(workdir / FILE, ConfigError):
        result = [
            (
                "Scores on held-out test strings",
                scores_table(evaluation),
                "Stripped: without placeholders, tags, punctuation and case, which copying gets right for free. “Other sources” "
                "is the same model fed with another sentence of the same language: what it scores without looking.",
            ),
            (
                "BLEU by language",
                picture(bleu_by_language, evaluation) if len(evaluation["languages"]) > FEW else "",
                "Stripped BLEU. A language has only a few sentences here: read the shape, not single bars.",
            ),
            (
                "Translations of held-out strings",
                samples_table(evaluation),
                NO_TRANSLATOR if evaluation["all"]["stripped_bleu"] < BELIEVABLE else "",
            ),
        ]
    if picture_of_tensor := expert_tensor(e):
        result.append(("Where an expert tensor lives", picture_of_tensor, "Each box is one device's share of the tensor."))
    return result


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


def expert_tensor(e: Experiment) -> str:
    """Returns a picture of the first tensor of experts; "" for a model without experts."""
    from trainers.plan import make_plan

    infos = [info for info in make_plan(e, abstract=True).parameters if "expert" in info.axes]
    return picture(tensor_place, (e, infos[0])) if infos else ""


def tensor_place(figure: Any, data: tuple[Experiment, Any]) -> str:
    from matplotlib.patches import Rectangle

    e, info = data
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
    rows = {"the model": evaluation["all"]}
    if len(evaluation["languages"]) <= FEW:
        rows |= {f"the model, {language}": scores for language, scores in evaluation["languages"].items()}
    else:
        rows |= {f"{k} resource": evaluation["buckets"][k] for k in BUCKETS}
    rows |= evaluation["baselines"]
    shown = ([name, *(f"{scores[column]:.1f}" for column in columns)] for name, scores in rows.items())
    return table(["", *(column.replace("_", " ") for column in columns)], shown, range(1, 5))


def samples_table(evaluation: dict[str, Any]) -> str:
    keys = ("lang", "source", "output", "reference")
    return table(keys, ([sample[key] for key in keys] for sample in evaluation["samples"]))
