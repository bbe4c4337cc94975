"""The first state of a new run: fresh parameters, or those of a release, a Hugging Face folder, a GGUF file or a run."""

import re
from collections.abc import Callable
from pathlib import Path

import jax

from configs.experiment import Experiment
from configs.registry import ConfigError
from data import untrusted
from data.packages import weights as released
from data.vocabularies import files
from data.vocabularies.files import IDS, TOKENIZER
from data.vocabularies.tokenizers import Tokenizer
from models.errors import nearest
from models.families import ModelConfig
from models.sharding.params import components
from trainers import lora
from trainers.plan import Plan, fresh_state, model_infos
from trainers.state import State
from trainers.weights import load_any, source
from trainers.weights.release import MANIFEST, ReleaseError
from trainers.weights.source import Weights


def new_state(plan: Plan, vocabulary: Path | None, say: Callable[[str], object]) -> State:
    """Returns the state of step 0.

    With `train.finetune.init_from`, parameters are read onto the mesh a piece at a time. Those of the components in
    `train.finetune.fresh` may be missing there, or be those of another head: they start fresh, as adapters do, and a line says
    so.

    Args:
      vocabulary: the folder of the run's vocabulary, None for random data; it must be that of the weights.

    Raises:
      UserError: a tensor is missing, superfluous, or of another shape; or the vocabulary is another one.
    """
    e = plan.experiment
    if not e.train.finetune.init_from:
        return fresh_state(plan)
    parts = sources(e.train.finetune.init_from)
    if vocabulary is not None:
        check_reference(parts.get("", Path()), vocabulary)
    known = components(plan.model)
    for component in parts:
        if component and component not in known:
            raise ConfigError(f"train.finetune.init_from: no component {component!r}{nearest(component, known)}")
    given: dict[str, jax.Array] = {}
    for component, path in parts.items():
        weights: Weights = load_any.open_weights(path)
        other_prefixes = [f"{other}." for other in parts if other and other != component]
        infos = [
            info
            for info in model_infos(plan)
            if info.name.startswith(f"{component}." if component else "") and not info.name.startswith(tuple(other_prefixes))
        ]
        wanted = {info.name: info.shape for info in infos}
        if vocabulary is not None and any("vocab" in info.axes for info in infos):  # a tower reads no text
            check_vocabulary(weights, vocabulary)
        weights = source.Component(weights, component) if component else source.Resized(weights, e.model)
        source.check(wanted, weights, e.train.finetune.fresh)
        names = source.fitting(e.model, wanted, weights, e.train.finetune.fresh)
        if fresh := sorted(wanted.keys() - set(names)):
            say(f"starting from {path}; fresh: {', '.join(fresh)}")
        by_name = {info.name: info for info in infos}
        for name in names:  # one at a time: of a matrix that is quantised, no more than one exists whole
            place = {name: by_name[name].placement(plan.shardings.step.mesh)}
            whole = source.load(weights, place, {name: wanted[name]}, e.train.master_dtype)
            given |= lora.quantized(whole, by_name, e.train.finetune.lora)
    return fresh_state(plan, given=given)


def sources(text: str) -> dict[str, Path]:
    """Returns where each component starts from: `train.finetune.init_from`, taken apart; "" is the whole model.

    Raises:
      ConfigError: a component is named twice.
    """
    parts: dict[str, Path] = {}
    for part in [text] if located(text).exists() else text.split(";"):
        component, equals, path = part.partition("=")
        if not equals or not re.fullmatch(r"[\w.]+", component) or located(part).exists():
            component, path = "", part
        if component in parts:
            raise ConfigError(f"train.finetune.init_from={text!r}: component {component!r} is named twice")
        parts[component] = located(path)
    return parts


def model_of(e: Experiment) -> ModelConfig:
    """Returns the configuration of the model whose weights an experiment starts from.

    Raises:
      ConfigError: it starts from none, from those of components alone, or from a model of another family.
    """
    whole = sources(e.train.finetune.init_from).get("") if e.train.finetune.init_from else None
    if whole is None:
        raise ConfigError(
            f"train.finetune.init_from={e.train.finetune.init_from!r}: expected weights of a whole model, whose sizes are taken"
        )
    model = load_any.open_weights(whole).config
    if type(model) is not type(e.model):
        raise ConfigError(f"{whole} is of family {model.family!r}, and {e.name} of {e.model.family!r}")
    return model


def newest_step(text: str) -> int | None:
    """Returns the newest step of the runs that `train.finetune.init_from` names; None where it names none."""
    from trainers.checkpoints import checkpoint  # Orbax takes a third of a second: released weights need not wait for it

    paths = sources(text).values() if text else ()
    return max((step for path in paths if (step := checkpoint.newest_step(path)) is not None), default=None)


def located(text: str) -> Path:
    """Returns the path that `train.finetune.init_from` denotes: a path, or the name of released weights that were fetched."""
    path = Path(text).expanduser()
    if not path.exists() and text in released.WEIGHTS:
        return released.weights_folder(text)
    return path


def check_reference(start: Path, cache: Path) -> None:
    """Raises ConfigError for data that was made with other weights as a reference than those that a run starts from."""
    manifest = cache / MANIFEST
    made_with = untrusted.read_json(manifest, ConfigError).get("reference") if manifest.exists() else None
    if made_with and start.resolve() != located(made_with).resolve():
        raise ConfigError(
            f"train.finetune.init_from={str(start)!r}: the reference of cache {cache.name!r} is {made_with}; start from it, or "
            "prepare the cache anew"
        )


def check_vocabulary(source: Weights, vocabulary: Path) -> None:
    """Raises ReleaseError for weights whose vocabulary is not that of the run's data."""
    named = getattr(source.config, "vocabularies", {})
    silent = named and not any(getattr(source.config, field) for field in named.values())  # pre-trained without texts
    if source.vocabulary is None or silent:
        return
    ours, theirs = ({file.name: file for file in files.listed(folder)} for folder in (vocabulary, source.vocabulary))
    both = ours.keys() & theirs.keys()
    if all(map(files.has_tokenizer, (vocabulary, source.vocabulary))):  # it says everything, also where another file is missing
        same = {TOKENIZER: Tokenizer(vocabulary).same_vocabulary(Tokenizer(source.vocabulary))}
    else:
        encoding = [name for name in ours if name.endswith(".model") or name in (TOKENIZER, IDS)]
        same = {name: name in both and ours[name].read_bytes() == theirs[name].read_bytes() for name in encoding}
    for name in same:
        if not same[name]:
            raise ReleaseError(f"{source.vocabulary}: {name} is another vocabulary than that of {vocabulary.name!r}")
