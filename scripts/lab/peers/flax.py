"""The side of `transformers` in Flax: FlaxViTForImageClassification of version 4, which version 5 no longer has.

It runs with the zoo's own JAX, Flax and Optax, from the folder of version 4 that `make parity` installs. The step is jitted as a
whole and its state donated.
"""

import platform
import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax

from data.paths import environment
from scripts.lab.peers import sizes
from scripts.lab.peers.serve import Run, serve

sys.path.insert(0, str(environment("parity") / "version4"))
import flax
import transformers  # pyright: ignore[reportMissingImports]


def train(fields: dict[str, Any]) -> tuple[dict[str, Any], Run]:
    m, d, o = fields["model"], fields["data"], fields["optimizer"]
    config = transformers.ViTConfig(hidden_act=m["feed_forward"]["activation"], **sizes.vit(m))
    model = transformers.FlaxViTForImageClassification(config, seed=0)
    optimizer = optax.adamw(o["schedule"]["value"], o["b1"], o["b2"], o["eps"], weight_decay=o["weight_decay"])
    state = model.params, optimizer.init(model.params), jax.random.key(0)

    def loss(params: Any, pixels: jax.Array, labels: jax.Array) -> jax.Array:
        logits = model(pixels, params=params, train=True, dropout_rng=jax.random.PRNGKey(0)).logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(state: Any) -> tuple[Any, jax.Array]:
        params, moments, key = state
        key, k1, k2 = jax.random.split(key, 3)
        pixels = jax.random.uniform(k1, (d["batch_size"], *(m["patches"][side] for side in ("channels", "height", "width"))))
        labels = jax.random.randint(k2, (d["batch_size"],), 0, m["head"]["classes"])
        value, grads = jax.value_and_grad(loss)(params, pixels, labels)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments, key), value

    compiled = jax.jit(step, donate_argnums=0)

    def run(steps: int) -> float:
        nonlocal state
        value = jnp.zeros(())
        for _ in range(steps):
            state, value = compiled(state)
        return float(jax.block_until_ready(value))

    description = {
        "parameters": sum(x.size for x in jax.tree.leaves(model.params)),
        "versions": {
            "python": platform.python_version(),
            "jax": jax.__version__,
            "flax": flax.__version__,
            "transformers": transformers.__version__,
        },
        "settings": f"{type(model).__name__}, compiled",
    }
    return description, run


if __name__ == "__main__":
    serve(train=train)
