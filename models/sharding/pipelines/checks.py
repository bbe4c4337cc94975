"""The pipelines of a layout that a model cannot have: their stages would compute another loss than one device."""

from models.families import family_of
from models.protocol import Model, Staged
from models.sharding.layout import Layout, LayoutError
from models.sharding.pipelines import one_f_one_b


def check_pipelines(model: Model) -> None:
    """Raises LayoutError for 1F1B of a component that does not end in the loss, or of a loss that is no sum over rows, and for a
    pipeline of layers that compare rows with each other: a stage has those of a microbatch alone."""
    layout = model.scope.layout
    stack = model.stack_name if isinstance(model, Staged) else ""
    for path, pipeline in layout.pipelines:
        if within := _coupled_in(model, path):
            raise LayoutError(
                f"layout {layout.name!r}: the layers of {within!r} compare rows of a batch with each other, and a pipeline would "
                f"compare those of a microbatch; choose a layout without stages of it{_such_as(model)}"
            )
        if pipeline.schedule == "1f1b" and path != stack:
            raise LayoutError(
                f"layout {layout.name!r}: {path!r} does not end in the loss, so it has no '1f1b' schedule; give it 'gpipe'"
                f"{f', or pipeline {stack!r}' if stack else ''}"
            )
    if one_f_one_b.is_used(model) and model.coupled:
        raise LayoutError(f"layout {layout.name!r}: this loss compares rows of a batch with each other; choose 'gpipe'")


def _coupled_in(model: Model, path: str) -> str | None:
    """Returns the first component of a stack, itself or below it, that compares rows with each other."""
    return next((name for name in model.coupled if f"{name}.".startswith(f"{path}.")), None)


def _such_as(model: Model) -> str:
    """Names the first of the family's layouts that has no pipeline of what compares rows."""

    def suits(layout: Layout) -> bool:
        return not any(_coupled_in(model, path) for path, _ in layout.pipelines)

    layouts = family_of(model.c).layouts
    suitable = (name for name, recipe in layouts.items() if suits(recipe(*(1 for _ in recipe.axes))))
    return "".join(f", such as {name!r}" for name in [*suitable][:1])
