"""Opens a trained model in any form: a run's workdir, a release, a Hugging Face folder, a GGUF file, bare arrays, a checkpoint of
T5X or MaxText."""

import dataclasses
import os
from pathlib import Path

from configs import registry
from configs.experiment import Experiment
from configs.registry import ConfigError
from data import paths
from data.packages.weights import how_to_fetch
from data.reading.caches import cache_folder
from models.errors import nearest, shortened
from models.execution import Dtype, Execution
from models.families import ModelConfig, family_of
from models.interchange import InterchangeError
from trainers.audit import log as audit
from trainers.weights import bare, huggingface, peft, release, tensorstores
from trainers.weights.source import Arrays, Weights, precision

CTRANSLATE2 = "model.bin"  # whose name PyTorch's pickles do not have
_ADAPTERS = 4  # of which each is the base of the next; one that names itself has no end


def open_weights(path: Path, base: Path | None = None) -> Weights:
    """Returns the weights at a path.

    Args:
      base: the weights that an adapter in PEFT's form belongs to; by default the path that it names.

    Raises:
      UserError: the path holds no weights, or damaged ones, or is no signed release where only these are opened.
    """
    return _opened(path, base, None)[1]


def _opened(path: Path, base: Path | None, step: int | None) -> tuple[Experiment | None, Weights]:
    """Returns the weights at a path and their experiment, which a foreign model has not; logs that they are read."""
    experiment, weights = _recognised(path, base, step)
    match weights:
        case Arrays():  # a run, whose checkpoint is logged where it is read
            pass
        case release.Release():
            audit.record_read(path, title(path, weights), files=audit.digests(path, release.SUMS))
        case _:
            audit.record_read(path, title(path, weights), listing=paths.folder_digest(path if path.is_dir() else path.parent))
    return experiment, weights


def _recognised(path: Path, base: Path | None, step: int | None) -> tuple[Experiment | None, Weights]:
    """Returns what `_opened` does.

    A folder with checksums is a release, whatever else is in it, and release.verify refuses what they do not cover: its form
    is settled before any other file is looked for.
    """
    if path.name != CTRANSLATE2:
        huggingface.refuse_pickle(path)
    if not path.exists():
        raise InterchangeError(f"no weights at {path}: there is no such file or folder{how_to_fetch(path)}")
    if (path / release.SUMS).exists():
        source = release.Release(path)
        return source.experiment, source
    if release.owner():
        raise release.ReleaseError(
            f"{path} is no release ({release.SUMS} is missing), and ${release.KEY} is set: only releases that its owner "
            "signed are opened"
        )
    if peft.is_adapter(path):
        return None, _adapted(path, base)
    if (path / CTRANSLATE2).exists():
        return None, bare.Bare(path / CTRANSLATE2, bare.FILES[".bin"])
    if (path / huggingface.CONFIG).exists():
        return None, huggingface.HuggingFace(path)
    if (path / release.CHECKPOINTS).exists():
        return _run(path, step)
    if path.is_dir() and (form := bare.form_of(path)):
        return None, bare.Bare(path, form)
    files = [path] if path.is_file() else [*path.glob("*.gguf"), *path.glob("*.safetensors")]
    if len(files) == 1 and files[0].suffix == ".gguf":
        from trainers.weights.gguf import Gguf  # its library takes a sixth of a second, which others need not wait for

        return None, Gguf(files[0])
    if len(files) == 1 and (form := bare.form_of(files[0])):
        return None, bare.Bare(files[0], form)
    raise InterchangeError(
        f"{path} holds no weights: expected a release ({release.SUMS}), a run ({release.CHECKPOINTS}/), a Hugging Face folder "
        f"({huggingface.CONFIG}), CTranslate2's {CTRANSLATE2}, a checkpoint of T5X ({tensorstores.T5X}) or MaxText "
        f"({tensorstores.ITEMS}/), one GGUF file, or an .npz or safetensors file of a known model"
    )


def _adapted(path: Path, base: Path | None) -> Weights:
    """Returns an adapter merged into its base, which may be an adapter too; raises InterchangeError where there is no such
    folder."""
    adapters = [path]
    while True:
        named = peft.base_of(adapters[-1])
        base = base or (Path(named) if os.path.exists(named) else None)  # also of a name that no path can have
        if base is None:
            raise InterchangeError(
                f"{adapters[-1]} is an adapter of {shortened(named or 'an unnamed model')!r}, which is no folder here: name its "
                "base, python -m scripts.convert from ADAPTER --base FOLDER --to RELEASE"
            )
        # An adapter's files in a release are no files of it, which the release refuses.
        if not peft.is_adapter(base) or (base / release.SUMS).exists():
            break
        if len(adapters) == _ADAPTERS:
            raise InterchangeError(
                f"{path} is an adapter whose base, {shortened(str(base))!r}, is an adapter too, and so on, more than {_ADAPTERS} "
                "times; the last base must be a model"
            )
        adapters.append(base)
        base = None
    weights = open_weights(base)
    for folder in reversed(adapters):
        weights = peft.Peft(folder, weights)
    return weights


def _run(path: Path, step: int | None) -> tuple[Experiment, Weights]:
    from trainers.checkpoints import checkpoint  # Orbax takes a third of a second, which other forms need not wait for

    e, _, params, data = checkpoint.read_params(path, step)
    vocabulary = cache_folder(e.data) if e.data.cache else None
    if vocabulary:
        release.check_data(data, vocabulary)
    return e, Arrays(e.model, params, vocabulary)


def open_model(path: Path, step: int | None = None, like: str = "", base: Path | None = None) -> tuple[Experiment, Weights]:
    """Returns the experiment and the weights of a trained model.

    Args:
      step: the checkpoint of a workdir; the newest by default.
      like: an experiment whose data and evaluation replace the model's own. A foreign model, which has none, gets those of
        `bert.base`, `gpt.gpt2_124m` and so on, on random tokens; it is computed in the precision in which it is stored.
      base: as of `open_weights`.

    Raises:
      UserError: as of `open_weights`.
      ConfigError: `like` is not an experiment of the model's family.
    """
    e, weights = _opened(path, base, step)
    return (_as_if(e, like) if e else experiment_of(weights, like)), weights


def title(path: Path, weights: Weights) -> str:
    """Returns which form the weights have that were opened at a path."""
    match weights:
        case release.Release():
            return "a release"
        case peft.Peft():
            return "an adapter in PEFT's form, with its base"
        case bare.Bare():
            return weights.form.title
        case huggingface.HuggingFace():
            return f"a Hugging Face folder ({weights.theirs['model_type']}) of {weights.written_as}"
    return "a run" if path.is_dir() and (path / release.CHECKPOINTS).exists() else "a GGUF file"


def open_to_serve(path: Path, step: int | None = None) -> tuple[Weights, Execution]:
    """Returns the weights of a trained model, and how it is computed: as the experiment says that trained it, and a foreign model
    in the precision in which it is stored; raises UserError as `open_model` does."""
    e, weights = _opened(path, None, step)
    return weights, e.execution if e else Execution(dtype=precision(weights.stored))


def _as_if(e: Experiment, like: str) -> Experiment:
    if not like:
        return e
    other = registry.load(like)
    _same_family(e.model, other)
    return dataclasses.replace(e, data=other.data, eval=other.eval)


def experiment_of(weights: Weights, like: str = "") -> Experiment:
    """Returns the experiment of a foreign model's weights: computed as they are stored, and read as their folder says.

    Raises:
      InterchangeError: nothing here reads sounds or pictures as the folder says; `like` has data of its own.
    """
    e, whole = foreign(weights.config, like, precision(weights.stored)), weights
    while isinstance(whole, peft.Peft):
        whole = whole.base
    fields = whole.data_fields() if isinstance(whole, huggingface.HuggingFace) and not like else {}
    return dataclasses.replace(e, data=dataclasses.replace(e.data, **fields))


def foreign(model: ModelConfig, like: str = "", dtype: Dtype = "float32") -> Experiment:
    """Returns the experiment that a foreign model is given, on one device; see `open_model`.

    Args:
      dtype: the precision in which it is computed, that of its weights: an experiment's own is chosen for its training.
    """
    e = registry.load(like or family_of(model).default_experiment(model))
    _same_family(model, e)
    layout = dataclasses.replace(e.layout, mesh=tuple((name, 1) for name, _ in e.layout.mesh))
    data = e.data if like else family_of(model).adapt_data(model, dataclasses.replace(e.data, cache=""))
    execution = dataclasses.replace(e.execution, dtype=dtype)
    return dataclasses.replace(e, model=model, layout=layout, data=data, execution=execution)


def _same_family(model: ModelConfig, other: Experiment) -> None:
    if type(other.model) is not type(model):
        fitting = [n for n in registry.names() if n.startswith(f"{model.family}.")]
        raise ConfigError(f"{other.name} is no experiment of family {model.family!r}{nearest(other.name, fitting)}")
