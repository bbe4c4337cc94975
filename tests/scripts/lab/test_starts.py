"""Starts of commands: their CPU seconds to the first output, and the parts of these."""

from pathlib import Path

import pytest

from configs import registry
from scripts.lab import starts


def test_a_part_is_without_those_inside_it():
    """Ten seconds at half a core: tracing has four but for an import of one, and XLA two; a program has its own."""
    points = [(100.0, 0.0), (110.0, 5.0)]
    spans = [(101.0, 105.0, "tracing", "step"), (102.0, 103.0, "imports", "numpy"), (106.0, 108.0, "XLA", "step")]
    both = starts.split(points, spans)
    assert both["parts"] == {"in all": 5.0, "tracing": 1.5, "imports": 0.5, "XLA": 1.0, "all else": 2.0}
    assert both["programs"] == [("tracing step", 2.0), ("XLA step", 1.0), ("imports numpy", 0.5)]


def test_runs_that_commands_read_are_those_of_experiments():
    """A run is called as the experiment that makes it."""
    read = {part for command in starts.COMMANDS.values() for part in command if part.startswith("{runs}/")}
    assert len(read) >= 3
    assert all(registry.load(part.removeprefix("{runs}/")).name == part.removeprefix("{runs}/") for part in read)


@pytest.mark.integration
def test_a_command_is_measured_to_its_end(tmp_path: Path):
    """A process has CPU seconds, wall time and memory; what fails is an error with its output."""
    figures = starts.run(["show", "--help"], tmp_path / "cache", tmp_path)
    assert figures["cpu"] > 0 and figures["wall"] > 0 and figures["mib"] > 5
    with pytest.raises(RuntimeError, match="no experiment"):
        starts.run(["show", "gpt.none"], tmp_path / "cache", tmp_path)
