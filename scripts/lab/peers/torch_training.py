"""The training loop of the systems on PyTorch, with the fused AdamW; eager, or with --compiled by torch.compile.

Depends on the fields of an experiment only."""

import platform
import sys
from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]

from scripts.lab.peers.serve import Run

COMPILED = "--compiled" in sys.argv  # forward and backward alike; the first window, which does not count, has the compiler's time


def training(model: Any, o: dict[str, Any], loss: Callable[[], Any]) -> Run:
    """Returns what takes steps on losses, each of a new batch; `o` has the fields of the experiment's optimizer."""
    if COMPILED:
        model.compile()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=o["schedule"]["value"],
        betas=(o["b1"], o["b2"]),
        eps=o["eps"],
        weight_decay=o["weight_decay"],
        fused=True,
    )

    def run(steps: int) -> float:
        value = torch.zeros(())
        for _ in range(steps):
            value = loss()
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
        return value.item()

    return run


def description(model: Any, settings: str, **versions: str) -> dict[str, Any]:
    instructions = torch.backends.cpu.get_cpu_capability()
    mode = "compiled" if COMPILED else "eager"
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {"python": platform.python_version(), "torch": torch.__version__} | versions,
        "settings": f"{type(model).__name__}, {mode}, {settings}, {torch.get_num_threads()} threads, {instructions}",
    }
