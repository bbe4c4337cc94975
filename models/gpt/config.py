"""GPT's sizes. No JAX here: configs are read by tools that never touch an array."""

import dataclasses
from typing import ClassVar, Literal

from models.parts.transformer_config import LmConfig, StackConfig

Dialect = Literal[
    "",
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "phi3",
    "olmo2",
    "smollm3",
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
    and 3, GSPMD's, Megatron's, PaLM and MaxText's; configs/gpt_released.py has LLaMA and its followers, and
    configs/gpt_experts.py those with experts. All of them are settings of the inherited fields.

    Attributes:
      leading_layers: of `layers`, the first, which are dense before a stack of units with mixtures (DeepSeek-V3: 3). They run
        where the embedding does, so that pipeline stages are equal.
      prefix: what a text begins with and is not predicted (a batch's `loss_weights` is 0; in generation the prompt) sees all of
        itself, not only what stands before: a prefix LM (T5, arXiv 1910.10683, section 3.2.1). Rows without `loss_weights` are
        causal throughout.
      dialect: the model type under which a folder of Hugging Face's is read and written, which decides about the names of its
        tensors; "" is the first that fits.
    """

    family: ClassVar[str] = "gpt"

    leading_layers: int = 0
    prefix: bool = False
    dialect: Dialect = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.leading_layers and self.moe is None:
            raise ValueError(f"leading_layers={self.leading_layers}: a dense model's layers are all alike; nearest is 0")
        if self.prefix and self.positions == "relative":
            raise ValueError("prefix=True: with positions='relative' there is no such model here; nearest is 'rotary'")
        if self.prefix and any(kind.window for kind in self.kinds):
            raise ValueError("prefix=True: a window would hide the prefix; nearest is prefix=False, or kinds without windows")

    @property
    def repeated(self) -> int:
        """Layers of the stack of equal units."""
        return self.layers - self.leading_layers

    def tiny(self) -> "GptConfig":
        """The same model, small enough for a test and divisible by every mesh of eight devices."""
        leading = min(self.leading_layers, 1)
        fields = self.shrunk() | dict(leading_layers=leading, moe=self.moe and self.moe.shrunk(32))
        return dataclasses.replace(self, **fields | dict(layers=leading + 4))


CONFIG = GptConfig
