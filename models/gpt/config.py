"""GPT's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar, Literal

from models.parts.attention.config import Alibi, Disentangled, RelativeBuckets, Rotary
from models.parts.transformer_config import LmConfig, StackConfig

Dialect = Literal[
    "",
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "smollm3",
    "granite",
    "gpt_neox",
    "opt",
    "gptj",
    "falcon",
    "bloom",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "gpt_oss",
    "deepseek_v3",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GptConfig(StackConfig, LmConfig):
    """A decoder that predicts the next token, dense or with mixtures of experts. configs/gpt.py has the published rows: GPT-2
    and 3, GSPMD's, Megatron's, PaLM and MaxText's; configs/gpt_released.py has LLaMA and its followers, configs/gpt_classics.py
    Pythia, OPT, GPT-J, Falcon, BLOOM and Granite, and configs/gpt_experts.py those with experts. All of them are settings of the
    inherited fields.

    Attributes:
      prefix: what a text begins with and is not predicted (a batch's `loss_weights` is 0; in generation the prompt) sees all of
        itself, not only what stands before: a prefix LM (T5, arXiv 1910.10683, section 3.2.1). Rows without `loss_weights` are
        causal throughout.
      dialect: the model type under which a folder of Hugging Face's is read and written, which decides about the names of its
        tensors; "" is the first that fits.
    """

    family: ClassVar[str] = "gpt"
    norms_embeddings: ClassVar[bool] = True

    prefix: bool = False
    dialect: Dialect = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.positions, Disentangled):
            raise ValueError("positions=Disentangled: a decoder has none such; nearest is RelativeBuckets")
        if self.prefix and isinstance(self.positions, RelativeBuckets | Alibi):
            kind = type(self.positions).__name__
            raise ValueError(f"prefix=True: with positions={kind} there is no such model here; nearest is Rotary")
        if (mtp := self.output.mtp) < 0:
            raise ValueError(f"output.mtp={mtp}: must be 0 or more; DeepSeek-V3's are 0.3 and 0.1")
        if mtp and (self.prefix or not isinstance(self.positions, Rotary) or len(self.layer_group) > 1):
            raise ValueError(
                f"output.mtp={mtp}: a second prediction head needs rotary positions, no prefix, and layers that are alike but "
                "for leading ones; the nearest is 0"
            )
        if self.prefix and any(layer.window for layer in self.attention.pattern):
            raise ValueError("prefix=True: a window would hide the prefix; nearest is prefix=False, or a pattern without windows")

    def tiny(self) -> "GptConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        moe = self.moe and dataclasses.replace(self.moe.shrunk(32), leading=min(self.moe.leading, 1))
        return dataclasses.replace(self, **self.shrunk() | dict(layers=4 + (moe.leading if moe else 0), moe=moe))


CONFIG = GptConfig
