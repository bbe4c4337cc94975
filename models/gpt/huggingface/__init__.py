"""Decoders in Hugging Face's files: which class of `transformers` a model is, and how its tensors are called there. No JAX.

GPT-2 (gpt2.py) has names of its own; all others have LLaMA's, with differences that dialects.py and, for
classes with experts, mixtures.py list. llama.py and experts.py have the tensors.
"""

from collections.abc import Mapping

from models.gpt.config import GptConfig
from models.gpt.huggingface import dialects, experts, gpt2, llama, mixtures
from models.interchange import Conversion, Entry, Interchange, InterchangeError, Shape
from models.interchange.settings import Settings
from models.interchange.tensors import matrix
from models.parts.attention.config import Rotary

_OUTPUT = "lm_head.weight"
_DIALECTS = dialects.DIALECTS | mixtures.MIXTURES


class _HuggingFace(Interchange[GptConfig]):
    def model_type_of(self, c: GptConfig) -> str:
        """Returns that of the model's folder, or the first that it can be written as, or else the one it is nearest to."""
        if c.dialect or not isinstance(c.positions, Rotary):
            return c.dialect or "gpt2"
        for kind, dialect in _DIALECTS.items():
            try:
                dialect.write(c)
            except InterchangeError:
                continue
            return kind
        return "llama"

    def entries(self, c: GptConfig) -> list[Entry]:
        kind = self.model_type_of(c)
        body = gpt2.entries(c) if kind == "gpt2" else llama.entries(c, kind, fused=_DIALECTS[kind].fused)
        return body if c.output.tied else [*body, matrix(_OUTPUT, ("softmax.weight", (c.model_dim, c.vocab)))]

    def tied_tensors(self, c: GptConfig) -> dict[str, str]:
        table = gpt2.TABLE if self.model_type_of(c) == "gpt2" else llama.TABLE
        return {_OUTPUT: table} if c.output.tied else {}

    def canonical_name(self, c: GptConfig, theirs: str) -> str | None:
        kind = self.model_type_of(c)
        return gpt2.canonical_name(theirs) if kind == "gpt2" else llama.canonical_name(c, kind, theirs)

    def conversions(self, c: GptConfig, shapes: Mapping[str, Shape]) -> dict[str, Conversion]:
        return experts.conversions(self.model_type_of(c), shapes) if c.moe else {}

    def check_quantization(self, theirs: Settings) -> None:
        if not experts.is_mxfp4(theirs):
            super().check_quantization(theirs)


INTERCHANGE = _HuggingFace({"gpt2": gpt2.GPT2} | _DIALECTS)
