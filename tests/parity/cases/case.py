"""A case."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Case:
    """A model: its class, the settings of its config, and the version of `transformers` that computes it; `left` adds a row of an
    encoder, or a decoder, with its padding in front; `continued`: a decoder also writes eight tokens after each row.

    Version 5 (5.23) gives NLLB-MoE's tokens to experts 0 and 1 alone, whichever the router chose: it passes a mask where numbers
    of experts are read. Version 4 (4.57.6) has it right.
    """

    architecture: str
    settings: dict[str, Any]
    version: int = 5
    left: bool = False
    continued: bool = False
