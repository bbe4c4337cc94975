"""Flags that a release of jaxlib needs, and what a user has set."""

import importlib.metadata
import os

import pytest

from trainers.runtime import xla_flags


@pytest.mark.parametrize(
    ("jaxlib", "before", "after"),
    [
        ("0.12.0.1", None, "--xla_enable_hlo_sharding_v3=false"),
        ("0.12.3", "--a=1", "--a=1 --xla_enable_hlo_sharding_v3=false"),
        ("0.12.3", "--xla_enable_hlo_sharding_v3=true", "--xla_enable_hlo_sharding_v3=true"),
        ("0.10.2", "--a=1", "--a=1"),
        ("0.13.0", None, None),  # which may not have it
    ],
)
def test_a_release_has_its_flags(jaxlib, before, after, monkeypatch):
    """They come behind those that are set, which stay as they are."""
    monkeypatch.delenv("XLA_FLAGS")
    if before is not None:
        monkeypatch.setenv("XLA_FLAGS", before)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: jaxlib)
    xla_flags.add()
    assert os.environ.get("XLA_FLAGS") == after
