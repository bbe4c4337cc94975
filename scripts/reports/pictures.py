"""Parts of a page about a classifier of pictures: what it gets wrong, what it confuses, where it looks."""

from typing import Any, NamedTuple

import numpy as np

from configs.experiment import Experiment
from models.protocol import Classifies, Model, ShowsAttention
from scripts.reports.page import Part, picture
from trainers.inference.load import Served

WRONG, LOOKED_AT = 24, 8  # pictures on the page


class Mistake(NamedTuple):
    """A picture that is classified wrongly, its class, the predicted one and the probability of that."""

    image_HWC: np.ndarray
    label: str
    prediction: str
    probability: float


def suits(e: Experiment, model: Model) -> bool:
    return isinstance(model, Classifies) and "images" in e.data.features()


def parts(e: Experiment, served: Served) -> list[Part]:
    """Returns the parts, from the split that the run was evaluated on."""
    from data.kinds import task_of
    from data.reading.batches import held_out_batches
    from data.reading.caches import cache_folder, class_names
    from trainers.inference.classification import probabilities
    from trainers.inference.runner import Runner

    folder, features = cache_folder(e.data), e.data.features()
    names = class_names(folder)
    split: str = getattr(e.eval, "split", "test")
    held_out = task_of(e.data).held_out(folder, folder, split, 0)
    p_NC = Runner(served.model, features, e.eval.batch_size, probabilities).map(served.params, held_out.rows)
    labels_N = held_out.extra
    predictions_N = p_NC.argmax(axis=1)
    surest = sorted(np.flatnonzero(predictions_N != labels_N), key=lambda at: -p_NC[at, predictions_N[at]])[:WRONG]
    wrong = [
        Mistake(held_out.rows[int(at)]["images"], names[labels_N[at]], names[predictions_N[at]], p_NC[at].max()) for at in surest
    ]
    accuracy = f"{np.mean(predictions_N == labels_N):.1%} of {held_out.count:,} pictures of {split} right"
    result = [
        (f"Surest mistakes: {accuracy}", picture(mistakes, wrong, size=(9, 5.4)), "Class, prediction and its probability."),
        (
            "Confusion",
            picture(confusion, (labels_N, predictions_N, names)),
            "Pictures by class and prediction; those on the diagonal are left out.",
        ),
    ]
    if isinstance(served.model, ShowsAttention):
        some = [held_out.rows[at] for at in np.linspace(0, held_out.count - 1, LOOKED_AT).astype(int).tolist()]
        (batch,) = held_out_batches(some, features, LOOKED_AT)
        maps = Runner(served.model, features, LOOKED_AT, lambda model, batch: model.attention_maps(batch))(served.params, batch)
        note = "How much of each patch the others take, mean over heads and queries: in the first layer (middle) and in the last."
        result.append(("Where it looks", picture(attention, (batch["images"], maps)), note))
    return result


def mistakes(figure: Any, wrong: list[Mistake]) -> str:
    grid = figure.subplots(3, WRONG // 3, squeeze=False).flatten()
    for axes in grid:
        axes.axis("off")
    for axes, mistake in zip(grid, wrong, strict=False):
        _show(axes, mistake.image_HWC)
        axes.set_title(f"{mistake.label},\nnot {mistake.prediction}: {mistake.probability:.0%}", fontsize=7)
    return f"{len(wrong)} pictures that are classified wrongly"


def confusion(figure: Any, data: tuple[np.ndarray, np.ndarray, list[str]]) -> str:
    """Draws how many pictures of each class are taken for each other one."""
    labels_N, predictions_N, names = data
    counts = np.zeros((len(names), len(names)))
    np.add.at(counts, (labels_N, predictions_N), 1)
    np.fill_diagonal(counts, np.nan)
    axes = figure.subplots()
    image = axes.imshow(counts, cmap="Blues", aspect="auto")
    if len(names) <= 40:
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="prediction", ylabel="class")
    figure.colorbar(image, ax=axes, label="pictures")
    return "pictures by class and prediction"


def attention(figure: Any, data: tuple[np.ndarray, np.ndarray]) -> str:
    """Draws pictures, and below each how much its patches are attended to in the first and in the last layer."""
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
