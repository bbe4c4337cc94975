"""A plan is what runs: on a TPU a step is compiled with the options that its plan is priced with."""

import types

import jax
import pytest

from configs import registry
from trainers.hlo import tables
from trainers.runtime.chips import CHIPS, compile_with, options_for, parse_slice, set_for


def device(kind: str, platform: str = "tpu") -> types.SimpleNamespace:
    return types.SimpleNamespace(platform=platform, device_kind=kind)


class Lowered:
    """A lowered program whose compiler refuses some options as the real one does, one at a time."""

    def __init__(self, refused: tuple[str, ...] = (), why: str = "No such compile option: '{}'"):
        self.refused, self.why, self.asked = refused, why, []

    def compile(self, options):
        self.asked.append(options)
        for name in self.refused:
            if name in (options or {}):
                raise jax.errors.JaxRuntimeError(f"INVALID_ARGUMENT: {self.why.format(name)}\nmore")
        return "compiled"


def test_a_tpus_options_are_those_of_its_plan():
    """The pod table names the set of bert.mlperf_480b on a v4; a v5e has no such set, so the usual one is taken."""
    e = registry.load("bert.mlperf_480b")
    assert options_for(e, [device("TPU v4")]) == CHIPS["v4"].options["scatter_windowed"]
    assert options_for(e, [device("TPU v5 lite")]) == CHIPS["v5e"].options["overlapped"]
    assert set_for(registry.load("gpt.quickstart"), CHIPS["v4"]) == "overlapped"


@pytest.mark.parametrize(
    ("slice", "rings"),
    [
        ("v5p:4x4x8", "yyy"),
        ("v5p:2x2x4", "nnn"),
        ("v4:2x4x4", "nnn"),
        ("v4:4x4x12", "yyy"),
        ("v6e:16x16", "yy"),
        ("v5e:8x16", "ny"),
    ],
)
def test_rings_are_those_of_whole_cubes_and_sides(slice, rings):
    """In three dimensions all of cubes of 4 x 4 x 4 and none of less; in two a whole side of 16."""
    assert parse_slice(slice).wrap == tuple(letter == "y" for letter in rings)


@pytest.mark.parametrize("kind", [device("NVIDIA H200", "gpu"), device("TPU v9")])
def test_other_devices_have_no_options(kind):
    """GPUs and generations that nothing is known of are left to their compilers' defaults."""
    assert options_for(registry.load("bert.mlperf_480b"), [kind]) == {}


def test_a_host_compiles_with_fewer_passes_unless_the_user_says_how_many(monkeypatch):
    e = registry.load("gpt.quickstart")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    assert options_for(e, [device("cpu", "cpu")]) == {"xla_backend_optimization_level": "2"}
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")
    assert options_for(e, [device("cpu", "cpu")]) == {}


def test_a_refused_option_is_named_and_left_out():
    """Each refusal costs one option and one line; the others stay."""
    lowered, lines = Lowered(("xla_b", "xla_c_more")), []
    options = {"xla_a": True, "xla_b": False, "xla_c": "1", "xla_c_more": True}
    assert compile_with(lowered, options, lines.append) == "compiled"  # pyright: ignore[reportArgumentType]
    assert lowered.asked[-1] == {"xla_a": True, "xla_c": "1"} and len(lowered.asked) == 3
    assert lines[0].startswith("compiler option xla_b=False is left out") and "No such compile option" in lines[0]
    assert len(lines) == 2 and not any("\n" in line for line in lines)


def test_another_error_is_no_refusal():
    """A program that does not fit is not tried again without options."""
    lowered = Lowered(("xla_a",), why="Ran out of memory in memory space hbm")
    with pytest.raises(jax.errors.JaxRuntimeError, match="Ran out of memory"):
        compile_with(lowered, {"xla_a": True}, print)  # pyright: ignore[reportArgumentType]
    assert len(lowered.asked) == 1


def test_show_prints_the_options():
    """They are in the description of an experiment, and in its text."""
    e = registry.load("bert.mlperf_480b")
    description = tables.describe(e)
    assert description["compiler"]["set"] == "scatter_windowed" and description["compiler"]["chip"] == "v4"
    text = tables.as_text(e, description)
    assert "Compiler options on TPU v4, set 'scatter_windowed'" in text
    assert "xla_tpu_enable_windowed_einsum_for_all_gather: False" in text
