"""MaxText's own model, in an environment of its own (.venv-maxtext): knows nothing of the zoo's code.

maxtext_model.py make TO           a folder for each case: config.yml, items/ as MaxText saves it, logits in expected.safetensors
maxtext_model.py run FOLDER...     the logits of checkpoints that the zoo wrote, for the tokens of expected.safetensors there

    DECOUPLE_GCLOUD=TRUE JAX_PLATFORMS=cpu .venv-maxtext/bin/python tests/parity/maxtext_model.py make TO
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import maxtext  # pyright: ignore[reportMissingImports]
import numpy as np
import yaml
from flax.linen import logical_axis_rules
from jax.sharding import Mesh
from maxtext.checkpoint_conversion.utils.utils import save_weights_to_checkpoint  # pyright: ignore[reportMissingImports]
from maxtext.common import checkpointing  # pyright: ignore[reportMissingImports]
from maxtext.configs import pyconfig  # pyright: ignore[reportMissingImports]
from maxtext.layers import quantizations  # pyright: ignore[reportMissingImports]
from maxtext.models import models  # pyright: ignore[reportMissingImports]
from maxtext.utils import max_utils, maxtext_utils  # pyright: ignore[reportMissingImports]
from safetensors.numpy import load_file, save_file

_LENGTH = 16
_SIZES = dict(
    base_emb_dim=16,
    base_num_query_heads=4,
    base_num_kv_heads=2,
    base_mlp_dim=24,
    head_dim=8,
    vocab_size=48,
    mlp_activations=["silu", "linear"],
    normalization_layer_epsilon=1e-5,
    rope_max_timescale=500,
    enable_dropout=False,
)
CASES: dict[str, dict[str, Any]] = {
    "scanned": _SIZES
    | dict(decoder_block="llama2", base_num_decoder_layers=3, rope_type="default", logits_via_embedding=False, scan_layers=True),
    "unscanned": _SIZES
    | dict(
        decoder_block="mistral",
        base_num_decoder_layers=2,
        rope_type="llama3.1",
        logits_via_embedding=True,
        normalize_embedding_logits=False,
        scan_layers=False,
    ),
}
_PLACE = dict(
    run_name="t",
    dtype="float32",
    weight_dtype="float32",
    max_target_length=_LENGTH,
    per_device_batch_size=1,
    hardware="cpu",
    skip_jax_distributed_system=True,
    attention="dot_product",
    async_checkpointing=False,
    matmul_precision="highest",
    log_config=False,
)


class Model:
    """The model that settings describe."""

    def __init__(self, settings: dict[str, Any], to: Path):
        base = str(Path(maxtext.__path__[0]) / "configs/base.yml")
        given = settings | _PLACE | dict(base_output_directory=str(to))
        self.config = pyconfig.initialize(["", base, *(f"{key}={value}" for key, value in given.items())])
        self.mesh = Mesh(maxtext_utils.create_device_mesh(self.config), self.config.mesh_axes)
        quant = quantizations.configure_quantization(self.config)
        self.model = models.transformer_as_linen(self.config, self.mesh, quant=quant, model_mode="train")
        places = np.arange(_LENGTH, dtype=np.int32)[None]
        self.rest = dict(decoder_positions=places, decoder_segment_ids=np.ones_like(places), enable_dropout=False)

    def shapes(self, tokens: np.ndarray) -> Any:
        with self.mesh, logical_axis_rules(self.config.logical_axis_rules):
            keys = dict.fromkeys(("params", "aqt", "dropout"), jax.random.key(0))
            return max_utils.unbox_logicallypartioned(jax.eval_shape(lambda: self.model.init(keys, tokens, **self.rest)))

    def logits(self, params: Any, tokens: np.ndarray) -> np.ndarray:
        with self.mesh, logical_axis_rules(self.config.logical_axis_rules):
            return np.asarray(jax.jit(lambda p: self.model.apply(p, tokens, **self.rest))(params), np.float32)


def make(name: str, to: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 48, (1, _LENGTH)).astype(np.int32)
    model = Model(CASES[name], to)

    def draw(path: Any, x: Any) -> np.ndarray:
        value = rng.normal(size=x.shape)
        if path[-1].key == "embedding":  # it is rounded where it makes logits too
            return np.asarray(value / 4, jnp.bfloat16).astype(np.float32)
        return (1 + value / 3 if path[-1].key == "scale" else value / 4).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(draw, model.shapes(tokens))
    given = {"tokens": tokens, "mask": np.ones_like(tokens)}
    (to / name).mkdir(parents=True)
    save_file(given | {"logits": model.logits(params, tokens)}, to / name / "expected.safetensors")
    save_weights_to_checkpoint(str(to / name / "run"), params["params"], 1, True, True)
    shutil.move(to / name / "run/0/items", to / name / "items")
    shutil.rmtree(to / name / "run")
    (to / name / "config.yml").write_text(yaml.safe_dump(CASES[name]))


def run(folder: Path) -> None:
    model = Model(yaml.safe_load((folder / "config.yml").read_text()), folder)
    tokens = load_file(folder / "expected.safetensors")["tokens"]
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=host), model.shapes(tokens))
    params = checkpointing.load_params_from_path(str(folder / "items"), wanted, 96)
    save_file({"logits": model.logits(params, tokens)}, folder / "outputs.safetensors")


if __name__ == "__main__":
    for name in sys.argv[2:] if sys.argv[1] == "run" else CASES:
        run(Path(name).absolute()) if sys.argv[1] == "run" else make(name, Path(sys.argv[2]).absolute())
