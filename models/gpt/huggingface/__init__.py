"""Decoders in Hugging Face's files: which class of `transformers` a model is, and how its tensors are called there. No JAX.

GPT-2 (gpt2.py) and the classes of classics.py have names of their own; all others have LLaMA's, with differences that dialects.py
and, for classes with experts, mixtures.py list. llama.py and experts.py have the tensors.
"""

from collections.abc import Mapping

from models.gpt.config import GptConfig
from models.gpt.huggingface import classics, dialects, experts, gpt2, llama, mixtures
from models.gpt.huggingface.own_names import OwnNames
from models.interchange import Conversion, Entry, Interchange, InterchangeError, Shape
from models.interchange.settings import Settings
from models.interchange.tensors import dense
from models.parts.attention.config import Rotary

_DIALECTS = dialects.DIALECTS | mixtures.MIXTURES
_OWN_NAMES: dict[str, OwnNames] = {"gpt2": gpt2.GPT2} | classics.CLASSICS


class _HuggingFace(Interchange[GptConfig]):
    def model_type_of(self, c: GptConfig) -> str:
        """Returns that of the model's folder, or the first that it can be written as, or else the one it is nearest to."""
        if c.dialect:
            return c.dialect
        for kind, table in (_DIALECTS | _OWN_NAMES).items():
            try:
                table.write(c)
            except InterchangeError:
                continue
            return kind
        return "llama" if isinstance(c.positions, Rotary) else "gpt2"

    def entries(self, c: GptConfig) -> list[Entry]:
        kind = self.model_type_of(c)
        own = _OWN_NAMES.get(kind)
        body = own.entries(c) if own else llama.entries(c, kind, fused=_DIALECTS[kind].fused)
        matrix, *bias = dense(
            _output(kind), "softmax.weight", (c.model_dim, c.vocab), bias="softmax.bias" if c.output.bias else ""
        )
        return body + ([] if c.output.tied else [matrix]) + bias

    def tied_tensors(self, c: GptConfig) -> dict[str, str]:
        kind = self.model_type_of(c)
        own = _OWN_NAMES.get(kind)
        return {f"{_output(kind)}.weight": own.table if own else llama.TABLE} if c.output.tied else {}

    def canonical_name(self, c: GptConfig, theirs: str) -> str | None:
        kind = self.model_type_of(c)
        own = _OWN_NAMES.get(kind)
        if own is None:
            return llama.canonical_name(c, kind, theirs)
        return f"{own.output}.{side}" if (side := theirs.removeprefix("lm_head.")) != theirs else own.canonical_name(theirs)

    def conversions(self, c: GptConfig, shapes: Mapping[str, Shape]) -> dict[str, Conversion]:
        return experts.conversions(self.model_type_of(c), shapes) if c.moe else {}

    def check_quantization(self, theirs: Settings) -> None:
        if not experts.is_mxfp4(theirs):
            super().check_quantization(theirs)


def _output(kind: str) -> str:
    """Returns their name of the output matrix and its bias."""
    return _OWN_NAMES[kind].output if kind in _OWN_NAMES else "lm_head"


INTERCHANGE = _HuggingFace(_OWN_NAMES | _DIALECTS)
