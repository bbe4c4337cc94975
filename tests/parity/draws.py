"""Compares the zoo with `transformers` on folders whose settings are drawn at random.

    python -m tests.parity.draws KIND...          20 folders of each model type of DRAWS

A drawn config.json is read here, gets random weights, and is read there as it was drawn; then logits of rows with padding on
either side are compared, in float32. A difference counts relative to the largest logit, or to 1.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from models.errors import nearest
from tests.parity import ours
from tests.parity.live import theirs
from trainers.weights import huggingface
from trainers.weights import source as weights

FOLDERS = 20
TOLERANCE = 1e-5
Drawn = dict[str, Any]


class Draw:
    """Draws settings one after the other."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.heads, self.head_dim = self.below(1, 7), 2 * self.below(1, 6)
        self.dims = 2 * self.below(1, self.head_dim // 2 + 1)  # that are turned

    def below(self, low: int, high: int) -> int:
        """An integer from `low` on, below `high`."""
        return int(self.rng.integers(low, high))

    def one_of(self, *values: Any) -> Any:
        return values[self.below(0, len(values))]

    def factor(self) -> float:
        """A number of three digits between 0.1 and 2.5."""
        return round(float(self.rng.uniform(0.1, 2.5)), 3)

    def sizes(self, width: str, layers: str, heads: str, hidden: str) -> Drawn:
        """Sizes by their names, and the vocabulary's; a hidden size without a name is no setting."""
        drawn = {width: self.heads * self.head_dim, layers: self.below(1, 4), heads: self.heads, "vocab_size": self.below(20, 90)}
        return drawn | ({hidden: self.below(5, 40)} if hidden else {}) | {"tie_word_embeddings": self.one_of(True, False)}


_PLAIN = ("hidden_size", "num_hidden_layers", "num_attention_heads")


def _neox(d: Draw) -> Drawn:
    stretched = {"rope_scaling": {"rope_type": "linear", "factor": 1 + d.factor()}}
    turned = {"rotary_pct": d.dims / d.head_dim + 1e-9, "rotary_emb_base": 1000 * d.factor()} | d.one_of({}, stretched)
    return (
        d.sizes(*_PLAIN, "intermediate_size")
        | turned
        | dict(
            use_parallel_residual=d.one_of(True, False),
            attention_bias=d.one_of(True, False),
            hidden_act=d.one_of("gelu", "relu", "gelu_new", "silu"),
            layer_norm_eps=d.one_of(1e-5, 1e-3),
        )
    )


def _opt(d: Draw) -> Drawn:
    return d.sizes(*_PLAIN, "ffn_dim") | dict(
        max_position_embeddings=d.below(13, 50),
        enable_bias=d.one_of(True, False),
        activation_function=d.one_of("relu", "gelu", "gelu_new"),
    )


def _granite(d: Draw) -> Drawn:
    names = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    return (
        d.sizes(*_PLAIN, "intermediate_size")
        | {name: d.factor() for name in names}
        | dict(
            num_key_value_heads=d.one_of(1, d.heads),
            attention_bias=d.one_of(True, False),
            mlp_bias=d.one_of(True, False),
            rms_norm_eps=d.one_of(1e-5, 1e-3),
            rope_theta=1000 * d.factor(),
            hidden_act=d.one_of("silu", "gelu"),
        )
    )


def _gptj(d: Draw) -> Drawn:
    return d.sizes("n_embd", "n_layer", "n_head", d.one_of("n_inner", "")) | dict(
        rotary_dim=d.dims, activation_function=d.one_of("gelu_new", "relu", "gelu"), layer_norm_epsilon=d.one_of(1e-5, 1e-3)
    )


def _falcon(d: Draw) -> Drawn:
    divisors = [n for n in range(1, d.heads + 1) if d.heads % n == 0]
    kind = d.one_of(
        dict(new_decoder_architecture=True, num_kv_heads=d.one_of(*divisors), num_ln_in_parallel_attn=d.one_of(1, 2)),
        dict(new_decoder_architecture=True),
        dict(multi_query=d.one_of(True, False), parallel_attn=d.one_of(True, False)),
    )
    return (
        d.sizes(*_PLAIN, d.one_of("ffn_hidden_size", ""))
        | kind
        | dict(
            bias=d.one_of(True, False),
            activation=d.one_of("gelu", "relu", "silu"),
            layer_norm_epsilon=d.one_of(1e-5, 1e-3),
            rope_theta=1000 * d.factor(),
        )
    )


def _bloom(d: Draw) -> Drawn:
    width, layers, heads = d.one_of(("hidden_size", "n_layer", "n_head"), ("n_embed", "num_hidden_layers", "num_attention_heads"))
    return d.sizes(width, layers, heads, "") | dict(layer_norm_epsilon=d.one_of(1e-5, 1e-3))


DRAWS: dict[str, Callable[[Draw], Drawn]] = {
    "gpt_neox": _neox,
    "opt": _opt,
    "granite": _granite,
    "gptj": _gptj,
    "falcon": _falcon,
    "bloom": _bloom,
}


def given(vocab: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Three rows of 11 tokens: whole, with padding behind, and in front."""
    mask = (np.arange(11) < np.array([[11], [6], [6]])).astype(np.int32)
    mask[2] = mask[2, ::-1]
    return {"tokens": rng.integers(vocab, size=mask.shape).astype(np.int32) * mask, "mask": mask}


def check(kind: str, scratch: Path) -> list[float]:
    """Returns the largest relative difference of each of a kind's folders; prints the settings of those that differ."""
    made = {}
    for i in range(FOLDERS):
        rng = np.random.default_rng(list(f"{kind} {i}".encode()))
        settings = {"model_type": kind} | DRAWS[kind](Draw(rng))
        interchange = huggingface.interchange_of_type(settings)
        config, folder = interchange.read_config(settings), scratch / f"{kind}{i}"
        source = weights.Arrays(config, ours.fresh(config, i))
        huggingface.write_folder(source, folder)
        written = json.loads((folder / "config.json").read_text())
        assert interchange.read_config(written) == config, settings
        (folder / "config.json").write_text(json.dumps(settings | {"architectures": written["architectures"]}))
        inputs = given(config.vocab, rng)
        save_file(inputs, folder / "inputs.safetensors")
        made[folder] = settings, ours.outputs(source, inputs)["logits"], inputs["mask"] > 0
    theirs("run", *made)
    differences = []
    for folder, (settings, logits, real) in made.items():
        want = load_file(folder / "outputs.safetensors")["logits"]
        apart = np.abs(logits - want)[real].max() / max(1.0, np.abs(want[real]).max())
        differences.append(float(apart))
        if not apart <= TOLERANCE:
            print(f"{apart:.1e} apart: {json.dumps(settings)}")
    return differences


def main(kinds: list[str]) -> int:
    if unknown := [kind for kind in kinds if kind not in DRAWS]:
        print(f"no settings of {unknown[0]!r} are drawn{nearest(unknown[0], DRAWS)}", file=sys.stderr)
        return 1
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        for kind in kinds:
            differences = check(kind, Path(scratch))
            worst = max(worst, *differences)
            print(f"{kind:<32}{len(differences)} folders, at most {max(differences):.1e} of the largest logit apart", flush=True)
    return worst > TOLERANCE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
