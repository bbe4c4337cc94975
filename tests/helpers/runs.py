"""Training runs in folders, and damage to what they leave there."""

from pathlib import Path

import jax
import pytest

from trainers import state, trainer


def run(e, workdir: Path, log=None) -> int:
    """The trainer on as many of the simulated devices as the layout needs."""
    devices = jax.devices()[: e.layout.devices]
    original = state.make_mesh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "make_mesh", lambda layout, _=None: original(layout, devices))
        return trainer.train(e, workdir, log)


def damage(arrays: Path) -> None:
    """Flips bits in the largest file of a folder with a checkpoint's arrays."""
    files = [p for p in arrays.rglob("*") if p.is_file() and "_METADATA" not in p.name]
    victim = max(files, key=lambda p: p.stat().st_size)
    content = bytearray(victim.read_bytes())
    for i in range(len(content) // 4, len(content) // 2):
        content[i] ^= 0x5A
    victim.write_bytes(content)
