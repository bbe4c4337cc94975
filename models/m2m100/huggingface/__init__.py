"""M2M-100, NLLB, NLLB-MoE, BART, mBART, Marian and Pegasus in Hugging Face's files: their tensors. No JAX.

A module has the settings of each kind: m2m100.py, bart.py.
"""

from collections.abc import Mapping

import numpy as np

from models.interchange import Conversion, Entry, Interchange, Shape
from models.interchange.layers import Names, attention_names, encoder_decoder_layers
from models.interchange.tensors import norm, table, vector
from models.m2m100.config import M2M100Config
from models.m2m100.huggingface import bart, m2m100
from models.parts.attention.config import Learned

_TABLE, _OUTPUT, _BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
_SIDES = {"encoder": "source_inputs", "decoder": "target_inputs"}
_VERSIONS = ("encoder.version", "decoder.version")  # of fairseq, in old releases of BART


def layer_names(mixed: bool) -> dict[bool, Names]:
    """Returns the names of a layer's parts, by whether it has experts; NLLB-MoE's dense layers have other names too."""
    cross, ffn_norm, ffn = ("cross_attention", "ff_layer_norm", "ffn.") if mixed else ("encoder_attn", "final_layer_norm", "")
    projections = ("q_proj", "k_proj", "v_proj", "out_proj")
    shared = {
        "self_attn_layer_norm": "attention_norm",
        **attention_names("self_attn", projections),
        f"{cross}_layer_norm": "cross_norm",
        **attention_names(cross, projections, "cross_attention"),
        ffn_norm: "ffn_norm",
    }
    expert = "ffn.experts.expert_{expert}."
    return {
        False: shared | {f"{ffn}fc1": "ffn.wi", f"{ffn}fc2": "ffn.wo"},
        True: shared | {"ffn.router.classifier": "ffn.router", f"{expert}fc1": "ffn.wi", f"{expert}fc2": "ffn.wo"},
    }


class _HuggingFace(Interchange[M2M100Config]):
    def model_type_of(self, c: M2M100Config) -> str:
        if c.moe:
            return "nllb-moe"
        if not c.logits_bias:
            return "m2m_100"
        post, pre = ("bart", "mbart") if isinstance(c.positions, Learned) else ("marian", "pegasus")
        return post if c.norm.order == "post" else pre

    def entries(self, c: M2M100Config) -> list[Entry]:
        names, m = layer_names(c.moe is not None), c.model_dim
        mapped = [table(_TABLE, "embedding.table", (c.vocab, m))]
        for side, inputs in _SIDES.items():
            if isinstance(c.positions, Learned):
                mapped.append(table(f"model.{side}.embed_positions.weight", f"{inputs}.positions", (c.positions.rows, m)))
            if c.inputs.norm:
                mapped += norm(f"model.{side}.layernorm_embedding", f"{inputs}.norm", m)
            mapped += encoder_decoder_layers(c, side, f"model.{side}.layers.{{layer}}.", names[False], names[True])
            if c.norm.order == "pre":
                mapped += norm(f"model.{side}.layer_norm", f"{side}_norm", m)
        return [*mapped, vector(_BIAS, ("logits_bias", (c.vocab,)), file=(1, c.vocab))] if c.logits_bias else mapped

    def tied_tensors(self, c: M2M100Config) -> dict[str, str]:
        return {name: _TABLE for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", _OUTPUT)}

    def canonical_name(self, c: M2M100Config, theirs: str) -> str | None:
        if c.logits_bias and not theirs.startswith("model.") and theirs not in (_OUTPUT, _BIAS):
            theirs = f"model.{theirs}"  # as in a bare BartModel
        computed = not isinstance(c.positions, Learned) and ".embed_positions." in theirs  # sinusoids
        return None if computed or theirs.endswith(_VERSIONS) else theirs

    def conversions(self, c: M2M100Config, shapes: Mapping[str, Shape]) -> dict[str, Conversion]:
        """Returns the bias of logits where a folder has none, as of a bare BartModel: zeros, as in `transformers`."""
        if not c.logits_bias or _BIAS in shapes:
            return {}
        shape = (1, c.vocab)
        return {_BIAS: Conversion((), shape, lambda: np.zeros(shape, np.float32))}


INTERCHANGE = _HuggingFace({**m2m100.MODEL_TYPES, **bart.MODEL_TYPES})
