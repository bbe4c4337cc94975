"""A setting that a config.json lacks is the default of that class of `transformers`, or the folder is refused."""

import json
from typing import Any

import pytest

from models.interchange import InterchangeError
from tests.parity.live import FIXTURES
from trainers.weights import huggingface

DEFAULTS: dict[str, dict[str, Any]] = json.loads((FIXTURES / "defaults.json").read_text())
FOLDERS = sorted(path.parent.name for path in FIXTURES.glob("*/config.json"))
# Made of the other settings, of which the defaults are those of another size.
DERIVED = {
    "decoder_vocab_size",
    "dense_act_fn",
    "ffn_hidden_size",
    "head_dim",
    "is_gated_act",
    "layer_types",
    "no_rope_layers",
    "num_decoder_layers",
    "num_key_value_heads",
    "num_kv_heads",
    "pooler_hidden_size",
    "pooler_output_size",
    "projection_size",
    "rope_parameters",
    "sliding_window",
    "word_embed_proj_dim",
}

PARTS = ("encoder", "decoder", "text_config", "vision_config")  # settings of a model's parts


def read(settings: dict[str, Any]) -> object:
    """Returns the configuration that is read, or the class of the error."""
    try:
        return huggingface.interchange_of_type(settings).read_config(settings)
    except Exception as error:  # a config's own check too, which a folder's reader makes one line
        return type(error)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_setting_that_is_left_out_is_the_default(name):
    """Key for key of a folder of every kind: left out, it gives the model that the default gives, or none."""
    settings = json.loads((FIXTURES / name / "config.json").read_text())
    sides = [settings, *(side for side in map(settings.get, PARTS) if isinstance(side, dict))]
    whole = read(settings)
    assert not isinstance(whole, type)
    for side in sides:
        for key, default in DEFAULTS.get(side["model_type"], {}).items():
            if key in {"model_type", "architectures", *DERIVED}:
                continue
            had = key in side
            value = side.pop(key, None)
            without = read(settings)
            side[key] = default
            if without is not InterchangeError:
                assert without == read(settings), key
            del side[key]
            if had:
                side[key] = value
    assert read(settings) == whole
