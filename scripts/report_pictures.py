"""Draws a run on pictures as one self-contained page: curves, what it gets wrong, what it confuses, where it looks.

    python -m scripts.report_pictures runs/vit

Scores the split that the run was evaluated on; writes DIR/index.html.
"""

from pathlib import Path
from typing import Any

import numpy as np

from configs.experiment import Experiment
from models.errors import UserError
from scripts import cli, pages
from scripts.pages import COLORS, picture

WRONG, LOOKED_AT = 24, 8  # pictures on the page


def write(workdir: Path, e: Experiment, weights: Any) -> Path:
    """Writes DIR/index.html and returns its path; raises UserError for a model that does not classify pictures."""
    import matplotlib

    matplotlib.use("agg")
    import jax

    from data.kinds import task_of
    from data.reading.batches import held_out_batches
    from data.reading.caches import cache_folder, class_names
    from models.protocol import Classifies, ShowsAttention
    from models.sharding.params import with_params
    from trainers.evaluation.place import placed
    from trainers.monitoring import history

    plan, params = placed(e, weights)
    if not isinstance(plan.model, Classifies) or "images" not in e.data.features():
        raise UserError(f"{e.name}: this model does not classify pictures")
    folder = cache_folder(e.data)
    names = class_names(folder)
    split: str = getattr(e.eval, "split", "test")
    held_out = task_of(e.data).held_out(folder, folder, split, 0)
    outputs = jax.jit(lambda params, batch: jax.nn.softmax(with_params(plan.model, params)(batch)))
    found = [np.asarray(outputs(params, b)) for b in held_out_batches(held_out.rows, e.data.features(), e.eval.batch_size)]
    p_NC, labels_N = np.concatenate(found)[: held_out.count], held_out.extra
    said_N = p_NC.argmax(axis=1)
    surest = sorted(np.flatnonzero(said_N != labels_N), key=lambda at: -p_NC[at, said_N[at]])[:WRONG]
    wrong = [(held_out.rows[int(at)]["images"], names[labels_N[at]], names[said_N[at]], p_NC[at].max()) for at in surest]
    lines = history.logged(workdir)
    parts = [
        ("Loss and accuracy over steps", picture(curves, lines), f"Evaluated on {held_out.count:,} pictures of {split}."),
        (
            "What it is surest of and gets wrong",
            picture(mistakes, wrong, size=(9, 5.4)),
            "True class, and what it says and how sure it is.",
        ),
        (
            "What it takes for what",
            picture(confusion, (labels_N, said_N, names)),
            "Pictures by true class and answer; those on the diagonal are left out.",
        ),
    ]
    if isinstance(plan.model, ShowsAttention):
        some = [held_out.rows[at] for at in np.linspace(0, held_out.count - 1, LOOKED_AT).astype(int).tolist()]
        (batch,) = held_out_batches(some, e.data.features(), LOOKED_AT)
        maps = jax.jit(lambda params, batch: with_params(plan.model, params).attention_maps(batch))(params, batch)
        note = "How much of each patch the others take, mean over heads and queries: in the first layer (middle) and in the last."
        parts.append(("Where it looks", picture(looks, (batch["images"], np.asarray(maps))), note))
    heading = f"{e.name}: {np.mean(said_N == labels_N):.1%} of {held_out.count:,} right"
    return pages.write(workdir / "index.html", e.name, heading, parts)


def curves(figure: Any, lines: list[dict[str, Any]]) -> str:
    """Draws the training loss, and the held-out accuracy."""
    trained = [line for line in lines if "loss" in line]
    scored = [line for line in lines if "eval/accuracy" in line]
    left, right = figure.subplots(1, 2)
    left.plot([line["step"] for line in trained], [line["loss"] for line in trained], color=COLORS["high"])
    left.set(xlabel="step", ylabel="training loss, nats", ylim=(0, None))
    right.plot([line["step"] for line in scored], [line["eval/accuracy"] for line in scored], color=COLORS["middle"], marker="o")
    right.set(xlabel="step", ylabel="held-out accuracy", ylim=(None, 1))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return f"accuracy rises to {scored[-1]['eval/accuracy']:.3f}" if scored else "loss over steps"


def mistakes(figure: Any, wrong: list[tuple[np.ndarray, str, str, float]]) -> str:
    """Draws pictures with their class, and the one that was said."""
    grid = figure.subplots(3, WRONG // 3, squeeze=False).flatten()
    for axes in grid:
        axes.axis("off")
    for axes, (image_HWC, true, said, sure) in zip(grid, wrong, strict=False):
        _show(axes, image_HWC)
        axes.set_title(f"{true},\nnot {said}: {sure:.0%}", fontsize=7)
    return f"{len(wrong)} pictures that are classified wrongly"


def confusion(figure: Any, data: tuple[np.ndarray, np.ndarray, list[str]]) -> str:
    """Draws how many pictures of each class are taken for each other one."""
    labels_N, said_N, names = data
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (labels_N, said_N), 1)
    np.fill_diagonal(counts, np.nan)
    axes = figure.subplots()
    image = axes.imshow(counts, cmap="Blues", aspect="auto")
    if len(names) <= 40:
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="said", ylabel="true")
    figure.colorbar(image, ax=axes, label="pictures")
    return "pictures by true class and answer"


def looks(figure: Any, data: tuple[np.ndarray, np.ndarray]) -> str:
    """Draws pictures, and below each how much its parts are attended to in the first and in the last layer."""
    images, maps = data
    grid = figure.subplots(3, len(images), squeeze=False)
    for column, image_HWC in enumerate(images):
        _show(grid[0, column], np.asarray(image_HWC))
        for row, layer in ((1, 0), (2, -1)):
            grid[row, column].imshow(maps[layer, column], cmap="magma")
            grid[row, column].axis("off")
    return f"attention in {maps.shape[0]} layers on {len(images)} pictures"


def _show(axes: Any, image_HWC: np.ndarray) -> None:
    """Shows a normalised picture, from its least to its greatest value."""
    low, high = image_HWC.min(), image_HWC.max()
    axes.imshow(((image_HWC - low) / max(high - low, 1e-6)).squeeze(), cmap="gray")
    axes.axis("off")


def main() -> int:
    return pages.of_model(__doc__, write)


if __name__ == "__main__":
    cli.run(main)
