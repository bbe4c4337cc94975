"""Odd encoders of text."""

from typing import Any

import numpy as np

from tests.parity.odd.numbers import Draw, below, flag, one_of

_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_ACTIVATIONS = ("gelu", "relu", "gelu_new", "silu")


def _encoder(rng: np.random.Generator, stem: str, heads: tuple[str, ...] = _HEADS) -> tuple[str, dict[str, Any]]:
    """Returns a class, whose name begins with `stem`, and odd sizes of an encoder of BERT's kind."""
    head, number = str(rng.choice(heads)), below(rng, 8)
    return stem + head, dict(
        vocab_size=below(rng, 121, 20),
        hidden_size=number * below(rng, 10, -(-8 // number)),  # a norm of fewer numbers may multiply what float32 rounds
        num_hidden_layers=below(rng, 6),
        num_attention_heads=number,
        intermediate_size=below(rng, 41, 3),
        max_position_embeddings=below(rng, 41, 15),
        layer_norm_eps=float(rng.choice([1e-12, 1e-6, 1e-5, 1e-3])),
        hidden_act="gelu" if head == "ForMaskedLM" else str(rng.choice(_ACTIVATIONS)),
        **({"num_labels": below(rng, 10)} if "Classification" in head else {}),
    )


def _types(rng: np.random.Generator) -> dict[str, Any]:
    return dict(type_vocab_size=below(rng, 5))


def electra(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """ELECTRA, of narrow and wide tables."""
    architecture, settings = _encoder(rng, "Electra", (*_HEADS, "ForPreTraining"))
    size = settings["hidden_size"] if rng.random() < 0.3 else below(rng, 41, 2)
    return architecture, settings | _types(rng) | dict(embedding_size=size)


def albert(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """ALBERT, of groups of layers."""
    architecture, settings = _encoder(rng, "Albert")
    size, groups = below(rng, 41, 2), below(rng, 4)
    size += size == settings["hidden_size"]  # which is refused
    layers = groups * below(rng, 5)
    more = dict(embedding_size=size, num_hidden_groups=groups, num_hidden_layers=layers)
    return architecture, settings | _types(rng) | more


def mpnet(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """MPNet."""
    architecture, settings = _encoder(rng, "MPNet")
    return architecture, settings | dict(max_position_embeddings=settings["max_position_embeddings"] + 2)


def deberta(rng: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """DeBERTa, of few buckets to either side."""
    architecture, settings = _encoder(rng, "DebertaV2")
    buckets = below(rng, 20, 2)
    longest = buckets // 2 + below(rng, 20, 2)
    most = dict(max_relative_positions=longest) if flag(rng) else dict(max_position_embeddings=longest)
    return architecture, settings | most | dict(
        hidden_act=str(rng.choice(_ACTIVATIONS)),
        position_buckets=buckets,
        type_vocab_size=below(rng, 4, 0),
        relative_attention=True,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        pos_att_type=one_of(rng, "p2c|c2p", ["c2p", "p2c"]),
        legacy=flag(rng),
    )


DRAWS: dict[str, Draw] = {"electra": electra, "albert": albert, "mpnet": mpnet, "deberta": deberta}
