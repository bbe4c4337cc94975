"""Tensors of Transformer layers, from a table of their names."""

from collections.abc import Mapping
from typing import Any

from models.interchange.tensors import Entry, Shape, fused, norm

# Their names of a layer's projections and norms: the part of ours that each is, or the parts that one tensor holds side by side.
Names = Mapping[str, str | tuple[str, ...]]


def attention_names(theirs: str, names: tuple[str, str, str, str], ours: str = "attention") -> dict[str, str]:
    """Returns the names of queries', keys', values' and outputs' projections of an attention."""
    return {f"{theirs}.{name}": f"{ours}.{part}" for name, part in zip(names, "qkvo", strict=True)}


def layers(c: Any, ours: str, at: str, names: Names, *, cross: bool = False, groups: int = 1, **places: Any) -> list[Entry]:
    """Returns the entries of Transformer layers, in the order of their names.

    Args:
      c: the configuration (models.parts.transformer_config.BlockConfig), which decides sizes and biases.
      ours: our name of the layers.
      at: theirs, up to the names of parts, with `{layer}` in it.
      names: theirs of parts; with `{expert}` where there is one for each expert.
      cross: whether they attend to another stack's output too; otherwise the names for it are passed over.
      groups: of tensors that hold several parts, as of Entry.
      places: as of Entry.
    """
    m, n, d, h = c.model_dim, c.attention.heads, c.attention.head_dim, c.feed_forward.hidden_dim
    keys: Shape = (m, c.attention.groups, d)
    shapes = {"q": (m, n, d), "k": keys, "v": keys, "o": (n, d, m), "wi": (m, h), "wg": (m, h), "wo": (h, m)}
    source = (getattr(c, "source_dim", m), *keys[1:])
    biased = getattr(c.attention, "biases", "")
    biases: dict[str, bool] = {projection: projection in biased for projection in "qkvo"}
    biases |= dict.fromkeys(("wi", "wg", "wo"), bool(c.feed_forward.bias))
    moe = getattr(c, "moe", None)
    if moe is not None:
        shapes["router"], biases["router"] = (m, moe.experts.count), False
    mapped: list[Entry] = []
    for theirs, parts in names.items():
        parts = (parts,) if isinstance(parts, str) else parts
        if parts[0].startswith("cross") and not cross:
            continue
        if parts[0].endswith("norm"):
            mapped += norm(f"{at}{theirs}", f"{ours}.{parts[0]}", m, bias=c.norm.bias, **places)
            continue
        kinds = [part.rpartition(".")[2] for part in parts]
        of_source = dict.fromkeys(("k", "v"), source) if parts[0].startswith("cross") else {}
        projections = [(f"{ours}.{part}", (shapes | of_source)[kind]) for part, kind in zip(parts, kinds, strict=True)]
        more = {"experts": moe.experts.count} if moe is not None and "{expert}" in theirs else {}
        inputs = 2 if kinds == ["o"] else 1
        if len(parts) > 1:
            more["groups"] = groups
        mapped += fused(f"{at}{theirs}", *projections, inputs=inputs, bias=biases[kinds[0]], **places, **more)
    return mapped


def encoder_decoder_layers(c: Any, side: str, at: str, names: Names, sparse: Names | None = None) -> list[Entry]:
    """Returns the entries of one stack's layers.

    Args:
      c: the configuration (models.parts.transformer_config.EncoderDecoderConfig).
      side: "encoder" or "decoder".
      at: their name of a layer, up to the names of parts, with `{layer}` in it.
      names: theirs of the parts of a layer.
      sparse: the same of a layer with a mixture of experts.
    """
    units = c.encoder_groups if side == "encoder" else c.decoder_groups
    mapped: list[Entry] = []
    for i, name in enumerate(c.layer_group):
        places: dict[str, Any] = dict(layers=units, first=i, every=len(c.layer_group))
        parts = sparse if name == "sparse" and sparse else names
        mapped += layers(c, f"{side}.{name}", at, parts, cross=side == "decoder", **places)
    return mapped
