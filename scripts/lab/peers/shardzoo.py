"""The zoo's side of the comparison, on the first device: its own training step, fed by its own loader; its own beam search
and greedy continuation."""

import contextlib
import sys
from typing import Any

from configs import registry
from configs.experiment import Lora
from scripts import cli
from scripts.lab.peers.serve import Run, serve

open_until_the_end = contextlib.ExitStack()


def train(fields: dict[str, Any]) -> tuple[dict[str, Any], Run]:
    e = registry.from_json(fields)
    cli.use_devices(e.layout)
    import jax

    from trainers.hlo.model_flops import model_flops
    from trainers.measure import throughput
    from trainers.runtime.processes import versions

    subject = open_until_the_end.enter_context(throughput.opened(e))
    meter = subject.meter

    def run(steps: int) -> float:
        metrics = {}
        for _ in range(steps):
            metrics = meter.step(meter.batch(meter.at))
            meter.at += 1
        jax.block_until_ready(metrics)
        return float(metrics["loss"])

    description = {
        "parameters": sum(info.size for info in subject.plan.parameters),
        "step_flops": model_flops(e),
        "versions": {"python": sys.version.split()[0]} | versions(),
        "settings": f"remat {e.execution.remat}",
    }
    return description, run


def generate(fields: dict[str, Any]) -> tuple[dict[str, Any], Run]:
    """Beam search over random sources, or a decoder's greedy continuation of half of each row.

    No token ends an output, so that all have the same length.
    """
    e = registry.from_json(fields)
    cli.use_devices(e.layout)
    import jax
    import jax.numpy as jnp

    from models.parts.decoding import beam_search, sample
    from models.protocol import ContinuesText
    from models.sharding.params import with_params
    from trainers.plan import fresh_state, make_plan
    from trainers.runtime.processes import versions

    e = e.with_finetune(lora=Lora())  # adapters are merged into what generates
    plan = make_plan(e, jax.devices()[: e.layout.devices])
    params = fresh_state(plan).params
    data: Any = e.data
    search: Any = e.eval
    model: Any = plan.model  # a decoder or an encoder-decoder, as scripts.lab.peers.compare says of the experiment
    rows, features = data.batch_size, data.features()
    real_B = jnp.ones(rows, bool)

    def drawn(key: jax.Array) -> dict[str, jax.Array]:
        if "frames" in features:
            shape = rows, *features["frames"].shape
            return {"frames": jax.random.normal(key, shape), "frames_segments": jnp.ones(shape[:2], jnp.int32)}
        return {"inputs": jax.random.randint(key, (rows, data.source_length), 1, model.target_vocab)}

    def continued(whole: Any, key: jax.Array) -> jax.Array:
        half = data.length // 2
        ids_BS = jax.random.randint(key, (rows, half), 0, model.vocab)
        state = whole.start({"tokens": ids_BS, "lengths": jnp.full(rows, half)}, 1, half)
        return sample(whole, state, real_B, key, samples=1, steps=half, temperature=0.0, eos=-2, pad=-1)[0]

    def searched(whole: Any, key: jax.Array) -> jax.Array:
        beams, length = search.beams, search.max_length
        return beam_search(
            whole,
            whole.start(drawn(key), beams, length),
            real_B,
            beams=beams,
            steps=length,
            vocab=model.target_vocab,
            alpha=search.length_penalty,
            eos=-1,
        )[0]

    produce, pad = (continued, -1) if isinstance(plan.model, ContinuesText) else (searched, 0)
    outputs = jax.jit(lambda params, key: produce(with_params(model, params), key))
    done = 0

    def run(steps: int) -> float:
        nonlocal done
        tokens = None
        for _ in range(steps):
            tokens = jax.block_until_ready(outputs(params, jax.random.key(done)))
            done += 1
        assert tokens is not None
        return float((tokens[:, 0] != pad).sum() / rows)

    description = {
        "parameters": sum(info.size for info in plan.parameters),
        "versions": {"python": sys.version.split()[0]} | versions(),
        "settings": "compiled",
    }
    return description, run


if __name__ == "__main__":
    with open_until_the_end:
        serve(train=train, generate=generate)
