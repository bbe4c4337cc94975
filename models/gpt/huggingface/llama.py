"""Tensors of decoders of LLaMA's shape in Hugging Face's files; dialects.py and mixtures.py have their classes. No JAX."""

from typing import Any

from models.gpt.config import GptConfig
from models.gpt.huggingface import experts
from models.interchange import Entry, Shape
from models.interchange.layers import Names, attention_names, layers
from models.interchange.tensors import matrix, table, vector
from models.parts.attention.config import GroupedQuery, Latent

PREFIX = "model."  # of all tensors but the output matrix, in files that have one
BODY = ("embed_tokens.", "layers.", "norm.")
TABLE = "model.embed_tokens.weight"
_BUFFERS = (".rotary_emb.inv_freq",)  # old releases saved these, which can be computed
_AT = "model.layers.{layer}."
# Their names of a layer's norms, by its order: "post_attention_layernorm" stands before the feed-forward network in some.
_NORMS = {
    "pre": {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"},
    "sandwich": {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "attention_out_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "ffn_out_norm",
    },
    "reordered": {"post_attention_layernorm": "attention_norm", "post_feedforward_layernorm": "ffn_norm"},
}
_OUT: Names = {"self_attn.o_proj": "attention.o"}
_ATTENTION: Names = attention_names("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj"))
_FUSED_ATTENTION: Names = {"self_attn.qkv_proj": ("attention.q", "attention.k", "attention.v")} | _OUT
_HIDDEN: Names = {"mlp.gate_proj": "ffn.wg", "mlp.up_proj": "ffn.wi", "mlp.down_proj": "ffn.wo"}
_FUSED_HIDDEN: Names = {"mlp.gate_up_proj": ("ffn.wg", "ffn.wi"), "mlp.down_proj": "ffn.wo"}


def entries(c: GptConfig, kind: str, *, fused: bool) -> list[Entry]:
    """Returns the entries of all tensors but the output matrix.

    Args:
      kind: the model_type.
      fused: queries, keys and values are one tensor, and so are a feed-forward network's gate and its other input.
    """
    mapped = [table(TABLE, "embedding.table", (c.vocab, c.model_dim))]
    if c.moe is None:
        mapped += _layers(c, kind, "decoder", fused=fused, layers=c.layers)
    if c.leading:
        mapped += _layers(c, kind, "leading", fused=fused, layers=c.leading)
    for i, name in enumerate(c.layer_group if c.moe else ()):
        places: dict[str, Any] = dict(layers=c.layer_groups, first=c.leading + i, every=len(c.layer_group))
        mapped += _layers(c, kind, f"decoder.{name}", fused=fused, sparse=name == "sparse", **places)
    return [*mapped, vector("model.norm.weight", ("final_norm.scale", (c.model_dim,)))]


def _layers(c: GptConfig, kind: str, ours: str, *, fused: bool, sparse: bool = False, **places: Any) -> list[Entry]:
    """Returns the entries of layers of one kind, which are called `ours` here."""
    mapped = layers(c, ours, _AT, _NORMS[c.norm.order], **places)
    if isinstance(c.attention, Latent):
        mapped += _latent_attention(c, ours, **places)
    else:
        mapped += layers(c, ours, _AT, _FUSED_ATTENTION if fused else _ATTENTION, **places)
        mapped += _beside_attention(c, ours, **places)
    if sparse:
        return [*mapped, *experts.entries(c, kind, _AT, ours, **places)]
    return [*mapped, *layers(c, ours, _AT, _FUSED_HIDDEN if fused else _HIDDEN, **places)]


def _beside_attention(c: GptConfig, ours: str, **places: Any) -> list[Entry]:
    """Returns the entries of norms of queries and keys, and of sinks."""
    a = c.attention
    assert isinstance(a, GroupedQuery)
    each = a.head_dim if a.qk_norm and a.qk_norm.over == "head" else 0
    sizes = {"q": each or a.heads * a.head_dim, "k": each or a.groups * a.head_dim} if a.qk_norm else {}
    named = {f"{x}_norm.weight": (f"{ours}.attention.{x}_norm.scale", (size,)) for x, size in sizes.items()}
    named |= {"sinks": (f"{ours}.attention.sinks", (a.heads,))} if a.sinks else {}
    return [vector(f"{_AT}self_attn.{theirs}", part, **places) for theirs, part in named.items()]


def _latent_attention(c: GptConfig, ours: str, **places: Any) -> list[Entry]:
    """Returns the entries of latent attention."""
    latent = c.attention
    assert isinstance(latent, Latent)
    m, n = c.model_dim, latent.heads
    head, rank = latent.head_dim + latent.rotary_dim, latent.query_rank

    def weight(theirs: str, name: str, shape: Shape, inputs: int = 1) -> Entry:
        return matrix(f"{_AT}self_attn.{theirs}.weight", (f"{ours}.attention.{name}", shape), inputs=inputs, **places)

    def scale(theirs: str, name: str, size: int) -> Entry:
        return vector(f"{_AT}self_attn.{theirs}.weight", (f"{ours}.attention.{name}.scale", (size,)), **places)

    queries = [weight("q_proj", "q", (m, n, head))]
    if rank:
        queries = [
            weight("q_a_proj", "q_down", (m, rank)),
            scale("q_a_layernorm", "q_norm", rank),
            weight("q_b_proj", "q", (rank, n, head)),
        ]
    return [
        *queries,
        weight("kv_a_proj_with_mqa", "kv_down", (m, latent.rank + latent.rotary_dim)),
        scale("kv_a_layernorm", "kv_norm", latent.rank),
        weight("kv_b_proj", "kv", (latent.rank, n, latent.head_dim + latent.value_dim)),
        weight("o_proj", "o", (n, latent.value_dim, m), inputs=2),
    ]


def canonical_name(c: GptConfig, kind: str, theirs: str) -> str | None:
    """Returns the name of a tensor in a file that has an output matrix; None for one that is not needed, as are layers behind
    the last, which predict a second token."""
    name = f"{PREFIX}{theirs}" if theirs.startswith(BODY) else theirs
    number = name.removeprefix("model.layers.").partition(".")[0]
    further = isinstance(c.attention, Latent) and number.isdigit() and int(number) >= c.layers
    return None if name.endswith(_BUFFERS) or further else experts.renamed(kind, name)
