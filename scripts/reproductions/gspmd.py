"""GSPMD (arXiv 2105.04663) and its dense decoders, as Lingvo publishes them."""

from pathlib import Path

from configs import registry
from models.sharding.pipelines.schedule import Schedule
from scripts.reproductions.entry import Row, reproduction
from scripts.reproductions.plans import modelled
from scripts.reproductions.sizes import parameters

PAPER = "GSPMD (arXiv 2105.04663)"


@reproduction(f"{PAPER}, Table 2; exact counts of Lingvo's lm/params/synthetic_packed_input.py", unit="parameters")
def table_2_sizes() -> list[Row]:
    """Dense decoders of 64 billion to a trillion parameters, in units of 2^30."""
    exact = {"gspmd_128b": 137_702_416_384, "gspmd_1t": 1_100_041_175_040, "lingvo_175b": 174_366_928_896}
    rows = [Row(name, count, parameters(f"gpt.{name}"), within=1e-12) for name, count in exact.items()]
    for name, printed in {"gspmd_64b": 64, "gspmd_256b": 256, "gspmd_512b": 512}.items():
        rows.append(Row(f"{name}, in 2^30", printed, parameters(f"gpt.{name}") / 2**30, "layers follow from the size"))
    return rows


@reproduction(f"{PAPER}, Table 1, finalised annotations; Lingvo's DenseBuilder", unit="dimensions on X and on Y")
def table_1() -> list[Row]:
    """Weights and activations of a dense layer cut in two dimensions: M of weights and the batch on X, heads, H and M of
    activations on Y."""
    from trainers.programs import tables

    paper = {
        "decoder.attention.q": ("X", "Y", None),
        "decoder.attention.k": ("X", "Y", None),
        "decoder.attention.v": ("X", "Y", None),
        "decoder.attention.o": ("Y", None, "X"),
        "decoder.ffn.wi": ("X", "Y"),
        "decoder.ffn.wo": ("Y", "X"),
    }
    e = registry.load("gpt.gspmd_128b")
    letters = {axis: letter for (axis, _), letter in zip(e.layout.mesh, "XY", strict=True)}
    found = {t["name"]: t for t in tables.describe(e)["tensors"]}
    rows = []
    for name, want in paper.items():
        tensor = found[name]
        cuts = tensor["spec"].strip("()").split(", ")
        ours = tuple(letters.get(cut) for cut in cuts)[-len(want) :]
        rows.append(Row(name, _written(want), _written(ours), f"{e.layout.name} of {dict(e.layout.mesh)}"))
    return rows


def _written(cuts: tuple[str | None, ...]) -> str:
    return " ".join(cut or "-" for cut in cuts)


@reproduction(f"{PAPER}, section 3.3 and Tables 4 and 5", unit="share of all time that is bubble")
def bubbles() -> list[Row]:
    """A pipeline's bubble is (L - 1) / (m + L - 1) of all time by GPipe and (L - 1) / (R m + L - 1) with R rounds."""
    rows = []
    for stages, rounds, microbatches in ((2, 1, 8), (4, 1, 16), (8, 1, 32), (4, 4, 16), (8, 3, 16)):
        s = Schedule(stages, rounds, microbatches)
        formula = (stages - 1) / (rounds * microbatches + stages - 1)
        idle = sum(not cell for row in s.timeline(backward=False) for cell in row)
        ours = idle / (stages * s.ticks)
        rows.append(
            Row(
                f"{stages} stages, {rounds} rounds, {microbatches} microbatches",
                formula,
                ours,
                "counted in the timeline",
            )
        )
    return rows


@reproduction(f"{PAPER}, Table 2", unit="FLOPS utilisation, recomputation counted", kind="modelled", minutes=12)
def table_2(folder: Path) -> list[Row]:
    """2048 TPU-v3 cores reach 47 to 63 % of their peak on decoders of 64 billion to a trillion parameters."""
    rows = []
    for name, printed in {"gspmd_128b": 0.565, "gspmd_256b": 0.541, "gspmd_512b": 0.475, "gspmd_1t": 0.556}.items():
        planned = modelled(folder, f"gpt.{name}")
        note = (
            f"{planned['topology']}, modelled; the paper's ran on v3, and its figures are not checked against its PDF"
        )
        rows.append(Row(name, printed, planned["modelled_hfu"], note, within=0.15))
    return rows
