"""T5 1.0, 1.1 and mT5 in T5X's checkpoints, by the names of its own model (t5x/examples/t5). No JAX.

Sizes are those of the arrays. What no array shows is what all of these models have, and what Hugging Face's folders of them say:
a gate means GELU's tanh form, no gate ReLU, and logits without a matrix of their own are scaled.
"""

from collections.abc import Mapping
from typing import Any

from models.interchange import ArrayFiles, Entry, InterchangeError, Shape
from models.interchange.layers import Names, attention_names, encoder_decoder_layers
from models.interchange.settings import Settings
from models.interchange.tensors import as_linen, matrix, table, vector
from models.parts.attention.config import RelativeBuckets
from models.t5.config import T5Config
from models.t5.huggingface import INTERCHANGE as HUGGING_FACE

_TABLE, _OUTPUT, _BIAS = "token_embedder.embedding", "decoder.logits_dense", "relpos_bias.rel_embedding"
_FIRST = "encoder.layers_0."
_PROJECTIONS = ("query", "key", "value", "out")
_DISTANCE = 128  # from which on all positions have one bias, in all of these models


def _names(c: T5Config, side: str) -> Names:
    inside = {"mlp.wi_0": "ffn.wg", "mlp.wi_1": "ffn.wi"} if c.feed_forward.gated else {"mlp.wi": "ffn.wi"}
    own, norm = ("self_attention", "pre_self_attention") if side == "decoder" else ("attention", "pre_attention")
    return {
        f"{norm}_layer_norm": "attention_norm",
        **attention_names(own, _PROJECTIONS),
        "pre_cross_attention_layer_norm": "cross_norm",
        **attention_names("encoder_decoder_attention", _PROJECTIONS, "cross_attention"),
        "pre_mlp_layer_norm": "ffn_norm",
        **inside,
        "mlp.wo": "ffn.wo",
    }


class _T5x(ArrayFiles[T5Config]):
    def read_config(self, shapes: Mapping[str, Shape], settings: Settings) -> T5Config:
        """Returns the configuration of the model whose arrays have these shapes. Raises InterchangeError where an array that
        tells a size is missing, as in a model whose layers are scanned."""

        def sizes(name: str) -> Shape:
            if len(shape := shapes.get(name, ())) != 2:
                raise InterchangeError(f"no T5 of T5X without scanned layers: {name} {_state(shapes, name)}")
            return shape

        gated = f"{_FIRST}mlp.wi_0.kernel" in shapes
        (vocab, width), (heads, buckets) = sizes(_TABLE), sizes(f"encoder.{_BIAS}")
        inner, hidden = (sizes(f"{_FIRST}{name}.kernel")[1] for name in ("attention.query", "mlp.wi_0" if gated else "mlp.wi"))
        depths = {
            side: len({n.split(".")[1] for n in shapes if n.startswith(f"{side}.layers_")}) for side in ("encoder", "decoder")
        }
        theirs: dict[str, Any] = dict(
            model_type="t5",
            vocab_size=vocab,
            d_model=width,
            d_kv=inner // max(heads, 1),
            d_ff=hidden,
            num_layers=depths["encoder"],
            num_decoder_layers=depths["decoder"],
            num_heads=heads,
            relative_attention_num_buckets=buckets,
            relative_attention_max_distance=_DISTANCE,
            feed_forward_proj="gated-gelu" if gated else "relu",
            tie_word_embeddings=f"{_OUTPUT}.kernel" not in shapes,
        )
        return HUGGING_FACE.read_config(theirs)

    def write_settings(self, c: T5Config) -> dict[str, Any]:
        """Returns no settings: T5X keeps those elsewhere, in Gin's files."""
        theirs = HUGGING_FACE.write_config(c)
        wanted = {"model_type": "t5", "relative_attention_max_distance": _DISTANCE}
        wanted["feed_forward_proj"] = "gated-gelu" if c.feed_forward.gated else "relu"
        wanted |= {"layer_norm_epsilon": 1e-6, "tie_word_embeddings": c.scale_logits}
        for key, value in wanted.items():
            if theirs[key] != value:
                raise InterchangeError(f"T5X's T5 has {key}={value!r}, the nearest to the model's {theirs[key]!r}")
        return {}

    def entries(self, c: T5Config) -> list[Entry]:
        assert isinstance(c.positions, RelativeBuckets)
        m = c.model_dim
        mapped = [table(_TABLE, "embedding.table", (c.vocab, m))]
        for side in ("encoder", "decoder"):
            buckets = (c.attention.heads, c.positions.buckets)
            mapped.append(matrix(f"{side}.{_BIAS}", (f"{side}_bias", buckets), transposed=False))
            mapped += encoder_decoder_layers(c, side, f"{side}.layers_{{layer}}.", _names(c, side))
            mapped.append(vector(f"{side}.{side}_norm.weight", (f"{side}_norm.scale", (m,))))
        return as_linen(mapped if c.tied else [*mapped, matrix(f"{_OUTPUT}.weight", ("softmax", (m, c.vocab)))], joined=True)


def _state(shapes: Mapping[str, Shape], name: str) -> str:
    return f"has shape {list(shapes[name])}"[:200] if name in shapes else "is missing"


INTERCHANGE = _T5x()
