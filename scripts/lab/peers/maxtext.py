"""MaxText's side of the comparison, in an environment of its own.

Depends on the fields of an experiment only, not on the zoo's code. State, sharded and compiled step and loader of random tokens
(always the same batch) are MaxText's own, set up as in its `train_loop`, without its logs. Settings are its defaults, except
for the experiment's shapes and optimizer, and no clipping of gradients; by default it recomputes whole layers (remat_policy
full).
"""

import importlib.metadata
import platform
import tempfile
from typing import Any

from scripts.lab.peers.serve import Run, serve


def settings(fields: dict[str, Any], folder: str) -> list[str]:
    """Returns the command line of MaxText's trainer."""
    m, d, o = fields["model"], fields["data"], fields["optimizer"]
    values = {
        "run_name": "bench",
        "hardware": "cpu",
        "skip_jax_distributed_system": "true",
        "base_output_directory": folder,
        "enable_checkpointing": "false",
        "dataset_type": "synthetic",
        "packing": "false",
        "decoder_block": "gpt3",
        "base_emb_dim": m["model_dim"],
        "base_num_query_heads": m["attention"]["heads"],
        "base_num_kv_heads": m["attention"]["heads"],
        "head_dim": m["attention"]["head_dim"],
        "base_mlp_dim": m["feed_forward"]["hidden_dim"],
        "base_num_decoder_layers": m["layers"],
        "vocab_size": m["vocab"],
        "trainable_position_size": m["positions"]["rows"],
        "mlp_activations": '["gelu"]',
        "logits_via_embedding": "true",
        "normalize_embedding_logits": "false",
        "max_target_length": d["length"],
        "per_device_batch_size": d["batch_size"],
        "dtype": "float32",
        "weight_dtype": "float32",
        "attention": "dot_product",
        "dropout_rate": m["dropout"],
        "learning_rate": o["schedule"]["value"],
        "adam_b1": o["b1"],
        "adam_b2": o["b2"],
        "adam_eps": o["eps"],
        "adam_weight_decay": o["weight_decay"],
        "gradient_clipping_threshold": 0,
    }
    return ["maxtext", *(f"{name}={value}" for name, value in values.items())]


def prepare(fields: dict[str, Any]) -> tuple[dict[str, Any], Run]:
    import jax
    from flax import nnx
    from flax.core.spmd import logical_axis_rules
    from maxtext.trainers.pre_train import train  # pyright: ignore[reportMissingImports]
    from maxtext.utils import sharding, train_utils  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        config, recorder = train.initialize(settings(fields, folder))
        _, _, shardings, _, mesh, _, _, loader, rampup, _, whole = train_utils.setup_train_loop(config, recorder)
    model, state = nnx.split(whole)
    params_shardings, shardings = sharding.maybe_update_params_sharding_with_opt(config, shardings)
    step, _ = train_utils.jit_train_and_eval_step(
        config, model, mesh, state, shardings, train.train_step, train.eval_step, None, params_shardings
    )

    def run(steps: int) -> float:
        nonlocal state
        metrics = {}
        for _ in range(steps):
            batch = loader.load_next_batch(rampup_manager=rampup)
            with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
                state, metrics = step(state, batch)
        jax.block_until_ready(state)
        return float(metrics["scalar"]["learning/loss"])

    params = jax.tree.leaves(nnx.state(whole.model, nnx.Param))
    description = {
        "parameters": sum(x.size for x in params),
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("maxtext", "jax", "jaxlib", "flax")},
        "settings": f"decoder_block gpt3, remat_policy {config.remat_policy}, {config.attention}",
    }
    return description, run


if __name__ == "__main__":
    serve(train=prepare)
