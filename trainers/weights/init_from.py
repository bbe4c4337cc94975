"""How a new run begins: with fresh parameters, or with those of a release, a Hugging Face folder, a GGUF file or a run."""

from collections.abc import Callable
from pathlib import Path

from data.packages import weights as released
from data.vocabularies.tokenizers import FILE, Tokenizer
from models.sharding.params import flatten
from trainers import state
from trainers.weights import open
from trainers.weights import source as weights
from trainers.weights.release import ReleaseError
from trainers.weights.source import Weights


def new_state(p: state.Plan, vocabulary: Path | None, say: Callable[[str], object]) -> state.State:
    """The state of step 0.

    With `train.init_from`, parameters are read onto the mesh a piece at a time. Those of the component "head" may be missing
    there, or be another head's: they start fresh, and a line says so. So do adapters.

    Args:
      vocabulary: the folder of the run's vocabulary, None for random tokens; it must be that of the weights.

    Raises:
      UserError: a tensor is missing, too much, or of another shape; or the vocabulary is another one.
    """
    if not p.experiment.train.init_from:
        return state.create(p)
    source = open.open_weights(located(p.experiment.train.init_from))
    if vocabulary is not None:
        check_vocabulary(source, vocabulary)
    wanted = {info.name: info.shape for info in state.model_infos(p)}
    weights.check(wanted, source)
    fitting = weights.fitting(p.experiment.model, wanted, source)
    fresh = sorted(wanted.keys() - set(fitting))
    if fresh:
        say(f"starting from {p.experiment.train.init_from}; fresh: {', '.join(fresh)}")
    loaded = weights.load(source, p.shardings.params, {k: wanted[k] for k in fitting}, p.experiment.train.master_dtype)
    return state.create(p, given=flatten(loaded))


def located(text: str) -> Path:
    """The path that `train.init_from` means: a path, or the name of released weights that were fetched."""
    path = Path(text).expanduser()
    if not path.exists() and text in released.WEIGHTS:
        return released.weights_folder(text)
    return path


def check_vocabulary(source: Weights, vocabulary: Path) -> None:
    """Refuses weights whose tokens are not those of the run's data."""
    if source.vocabulary is None:
        return
    for ours in sorted(vocabulary.glob("*.model")):
        theirs = source.vocabulary / ours.name
        if not theirs.exists() or theirs.read_bytes() != ours.read_bytes():
            raise ReleaseError(
                f"{source.vocabulary}: {ours.name} is another vocabulary than that of {vocabulary.name!r}"
            )
    ours, theirs = vocabulary / FILE, source.vocabulary / FILE
    if ours.exists() and theirs.exists() and not Tokenizer(ours).same_vocabulary(Tokenizer(theirs)):
        raise ReleaseError(f"{source.vocabulary}: {FILE} is another vocabulary than that of {vocabulary.name!r}")
