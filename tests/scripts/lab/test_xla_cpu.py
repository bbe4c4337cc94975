"""The cases of scripts.lab.xla_cpu: other forms of the same numbers, and a row for each."""

import json

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from configs.registry import ConfigError
from scripts.lab import xla_cpu


def test_forms_of_a_filters_gradient_are_equal():
    """A convolution, a product for each tap, one of all taps, and one for each column of taps."""
    values = []
    for name in ("filter", "taps", "side_by_side", "columns"):
        flops, function, arguments = xla_cpu.CASES[name](4)
        assert flops == 2 * (2 * 4 * 4) * 9 * 96 * 96
        values.append(np.asarray(jax.jit(function)(*arguments)).reshape(3, 3, 96, 96))
    for value in values[1:]:
        assert_allclose(value, values[0], rtol=1e-4, atol=1e-4)


def test_a_row_for_each_case(capsys):
    """Rates are positive, and shares are of the fastest product; cases are in their own order."""
    assert xla_cpu.main(["--size", "2", "--cases", "heads,transposed", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["case"] for row in result["cases"]] == ["transposed", "heads"]
    for row in result["cases"]:
        assert row["share"] == pytest.approx(row["GFLOP/s"] / result["fastest product, GFLOP/s"]) and row["share"] > 0


def test_an_unknown_case_is_refused():
    """The line names it and the nearest one; nothing is measured."""
    with pytest.raises(ConfigError, match=r"--cases 'filters' is not known; did you mean 'filter'\?"):
        xla_cpu.main(["--cases", "filters"])
