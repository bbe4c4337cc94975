"""Numbers of configurations: those of which a model would make NaN are refused, typed or out of a file."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest

from configs import registry
from configs.overrides import override
from configs.registry import ConfigError
from models.interchange import InterchangeError
from models.parts import nested
from models.parts.attention.config import LayerVariant, LongRope, Yarn
from trainers.weights.huggingface import HuggingFace

PARITY = Path(__file__).parents[1] / "fixtures" / "parity"
NONE = (math.nan, math.inf, -math.inf)


@pytest.mark.parametrize(
    "field, values",
    [
        ("norm.eps", (0.0, -1.0, 1e-300, 1.0, 1e308, *NONE)),
        ("positions.base", (0.0, -1.0, 1.0, 1e308, *NONE)),
        ("attention.logit_cap", NONE),
        ("attention.scale_dim", NONE),
        ("embedding_scale", NONE),
    ],
)
def test_numbers_that_give_nan_are_refused_by_hand(field, values):
    """An option of an experiment is refused in one line that names it and its value; others are taken."""
    e = registry.load("gpt.quickstart")
    for value in values:
        with pytest.raises(ConfigError, match=re.escape(f"{field.rpartition('.')[2]}={value}: must be ")):
            override(e, [f"--model.{field}={value}"])
    assert override(e, [f"--model.{field}", "0.5" if field == "norm.eps" else "1e6"]) != e


@pytest.mark.parametrize("name, field", [("conformer.large", "norm_eps"), ("bert.base", "norm.eps"), ("vit.b16", "norm.eps")])
def test_every_family_checks_its_norms(name, field):
    """Configurations that share no class have the same check."""
    model = registry.load(name).model
    for value in (0.0, math.nan):
        with pytest.raises(ValueError, match=f"eps={value}: must be "):
            nested.changed(model, {field: value})


def test_parts_check_their_numbers():
    """So have the stretching of positions, and layers with a base of their own."""
    for value in NONE:
        with pytest.raises(ValueError, match=rf"amplitude={value}: must be a finite number"):
            Yarn(factor=2.0, original=4, amplitude=value)
        with pytest.raises(ValueError, match=r"long=.*: must be a finite number"):
            LongRope(original=4, short=(1.0, 1.0), long=(1.0, value))
        with pytest.raises(ValueError, match=rf"base={value}: must be "):
            LayerVariant(base=value)


def changed(folder: Path, name: str, **settings) -> Path:
    """Returns a copy of a fixture's folder with these settings, of rope_parameters those of one type of layer."""
    shutil.copytree(PARITY / name, folder)
    config = json.loads((folder / "config.json").read_text())
    rope = config.get("rope_parameters", {})
    for key, value in settings.items():
        kind, _, inner = key.partition("__")
        place = rope[kind] if inner else rope if key in rope else config
        place[inner or key] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "name, setting",
    [
        ("mixtral", "rms_norm_eps"),
        ("mixtral", "rope_theta"),
        ("gemma3", "sliding_attention__rope_theta"),
        ("modernbert", "full_attention__rope_theta"),
        ("modernbert", "sliding_attention__rope_theta"),
        ("deepseek_v3", "rope_theta"),
        ("bert", "layer_norm_eps"),
        ("gpt2", "layer_norm_epsilon"),
    ],
)
def test_numbers_that_give_nan_are_refused_from_files(tmp_path, name, setting):
    """A config.json with a base or an epsilon of 0, below 0, too large or NaN is refused in one line."""
    for i, value in enumerate((0, -1, math.nan, 1e308)):
        with pytest.raises(InterchangeError, match=r"config\.json: .*: must be ") as error:
            HuggingFace(changed(tmp_path / str(i), name, **{setting: value}))
        assert "\n" not in str(error.value)
