"""TrOCR: a ViT, and a decoder of BART's form that reads its vectors. Published sizes, and folders that are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import registry
from models.errors import UserError
from models.interchange import InterchangeError
from models.multimodal.huggingface import INTERCHANGE
from models.parts.attention.config import Sinusoidal
from models.parts.nested import changed
from models.sharding.params import describe
from tests.helpers.folders import assert_refused
from tests.parity import ours
from tests.parity.live import FIXTURES
from tests.parity.odd import DRAWS
from trainers.weights.huggingface import HuggingFace

_ENCODER = dict(model_type="vit", image_size=384, qkv_bias=False)
_LARGE = _ENCODER | dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
_DECODER = dict(model_type="trocr", is_decoder=True)
# The settings of released folders, from memory, and what `transformers` counts of such models; its ViT has a pooler, a matrix and
# biases, which neither uses. The paper (arXiv 2109.10282, table 2) prints 334 M and 558 M.
RELEASED: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "base": (_ENCODER, _DECODER | dict(cross_attention_hidden_size=768), 333_921_792),
    "large": (
        _LARGE,
        _DECODER | dict(cross_attention_hidden_size=1024, use_learned_position_embeddings=False, scale_embedding=True),
        557_700_096,
    ),
}


def whole(encoder: dict[str, Any], decoder: dict[str, Any]) -> dict[str, Any]:
    return dict(model_type="vision-encoder-decoder", encoder=encoder, decoder=decoder, decoder_start_token_id=2)


@pytest.mark.parametrize("name", RELEASED)
def test_released_sizes_are_exact(name):
    """Both are read, built, abstractly, counted, and written as what they were."""
    encoder, decoder, count = RELEASED[name]
    c = INTERCHANGE.read_config(whole(encoder, decoder))
    width = encoder.get("hidden_size", 768)
    assert sum(info.size for info in describe(ours.abstract(c))) == count - width * (width + 1)
    assert INTERCHANGE.read_config(INTERCHANGE.write_config(c)) == c


def test_drawn_settings_go_there_and_back():
    """Folders of random settings are written as what they were, and their tensors are all parameters of the model."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        settings = DRAWS["trocr"](rng)[1]
        decoder = settings["decoder"]
        c = INTERCHANGE.read_config(settings | {"model_type": "vision-encoder-decoder"})
        written = INTERCHANGE.write_config(c)
        assert INTERCHANGE.read_config(written) == c
        kept = {key: value for key, value in decoder.items() if key != "max_position_embeddings"}
        assert {key: written["decoder"][key] for key in kept} == kept
        parts = {part.name: (*e.stacked, *part.shape) for e in INTERCHANGE.readable_entries(c) for part in e.parts}
        assert parts == {info.name: info.shape for info in describe(ours.abstract(c))}


def copy(to: Path, side: str, **settings: Any) -> Path:
    shutil.copytree(FIXTURES / "trocr", to)
    config = json.loads((to / "config.json").read_text())
    config[side] |= settings
    (to / "config.json").write_text(json.dumps(config))
    return to


@pytest.mark.parametrize(
    ("side", "settings", "error"),
    [
        ("decoder", dict(is_decoder=False), "decoder.is_decoder is false: the text would not depend on the picture"),
        ("decoder", dict(cross_attention_hidden_size=20), "cross_attention_hidden_size=20 is not supported, only 30"),
        ("decoder", dict(cross_attention_hidden_size=None), "encoder_attn.k_proj.weight is [20, 30], expected [20, 20]"),
        ("decoder", dict(tie_word_embeddings=False), "tie_word_embeddings=false is not supported, only true"),
        ("decoder", dict(activation_function="tanh"), "no activation 'tanh' here"),
        ("decoder", dict(d_model=21), "d_model=21 is no multiple of decoder_attention_heads=5"),
        ("decoder", dict(max_position_embeddings=16), "embed_positions.weight is [19, 20], expected [18, 20]"),
        ("decoder", dict(use_learned_position_embeddings=False, pad_token_id=3), "pad_token_id=3: sinusoids only behind 1"),
        ("decoder", dict(model_type="bart"), "decoder.model_type='bart' is not supported, only 'gpt2' or 'trocr'"),
        ("encoder", dict(model_type="deit"), "encoder.model_type='deit' is not supported, only 'vit'"),
        ("encoder", dict(qkv_bias=True), "attention.key.bias is missing"),
    ],
)
def test_a_folder_of_another_model_is_refused(side, settings, error, tmp_path):
    """In one line, with the setting, its value and what would do."""
    assert_refused(copy(tmp_path / "f", side, **settings), error)


def test_texts_beyond_the_table_of_positions_are_refused():
    """Past its last row a table would give that row again."""
    c = HuggingFace(FIXTURES / "trocr").config
    model, pictures = ours.abstract(c), jax.ShapeDtypeStruct((1, 1, 21, 21, 3), jnp.float32)
    batch = {"images": pictures, "images_segments": jax.ShapeDtypeStruct((1, 1), jnp.int32)}
    jax.eval_shape(lambda m, b: m.start(b, 1, 17), model, batch)
    with pytest.raises(UserError, match=r"a row of 18 tokens: .*positions\.rows=19.* has 17"):
        jax.eval_shape(lambda m, b: m.start(b, 1, 18), model, batch)


def test_what_makes_no_model_is_refused():
    """Sinusoids without inputs that add them, and towers of two widths whose vectors are read as they are."""
    c: Any = HuggingFace(FIXTURES / "trocr").config
    with pytest.raises(ValueError, match="inputs=None: with positions=Sinusoidal"):
        changed(c, {"inputs": None, "positions": Sinusoidal()})
    hears: Any = registry.load("multimodal.quickstart").model
    with pytest.raises(ValueError, match=r"seam='none': towers of widths .*; nearest is 'plain'"):
        changed(hears, {"towers.seam": "none", "towers.vision.model_dim": 2 * hears.towers.audio.model_dim})
    with pytest.raises(InterchangeError, match=r"no ViT and GPT-2 of Hugging Face is like this model: .*towers\.seam='none'"):
        INTERCHANGE.write_config(changed(HuggingFace(FIXTURES / "captioner").config, {"towers.seam": "none"}))
