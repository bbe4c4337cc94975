"""When glibc is told to keep memory; what that saves is measured in docs/LOG.md."""

import ctypes
import platform

import jax
import pytest

from trainers.runtime import host_memory

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int, int]]:
    """The options that are set meanwhile, instead of setting them: on CPUs, under glibc, without variables of its own."""
    options: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, option: int, value: int) -> int:
            options.append((option, value))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_ARENA_MAX"):
        monkeypatch.delenv(name, raising=False)
    return options


def test_memory_is_neither_mapped_afresh_nor_given_back(calls):
    """Nothing is mapped, however large, and nothing that is free is trimmed (-1 is mallopt's largest number of bytes)."""
    host_memory.keep()
    assert sorted(calls) == [(M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1)]


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(jax, "default_backend", lambda: "gpu"),
        lambda patch: patch.setattr(platform, "libc_ver", lambda: ("musl", "1.2")),
        lambda patch: patch.setenv("MALLOC_MMAP_MAX_", "1000"),
    ],
    ids=["a gpu", "another C library", "a variable of glibc's own"],
)
def test_elsewhere_nothing_changes(calls, monkeypatch, change):
    """Accelerators' hosts, other C libraries and whoever set glibc's variables keep what they have."""
    change(monkeypatch)
    host_memory.keep()
    assert calls == []
