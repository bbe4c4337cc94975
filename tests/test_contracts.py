"""Contracts of communication cover what the equality tests compile; those tests hold them (tests.helpers.layouts)."""

import jax
import pytest

from tests.helpers import contracts


def test_every_case_has_a_line_and_every_line_a_case():
    """A case that is added to a TABLE needs a line, and no line is left of one that is gone."""
    keys = [contracts.key(e) for e in contracts.cases()]
    assert len(set(keys)) == len(keys)
    assert set(keys) == contracts.stored()["cases"].keys()


def test_a_layout_of_eight_devices_sends_something():
    """Every line has rows, whose bytes are known."""
    for name, line in contracts.stored()["cases"].items():
        assert line["sent"] > 0 and line["rows"] and None not in line["rows"].values(), name


def test_a_change_names_its_rows():
    """The former bytes stand beside the present ones; equal rows are left out."""
    before = {"sent": 10, "least": 8, "rows": {"encoder all-gather data in loops": 5, "- all-reduce data once": 5}}
    after = {"sent": 12, "least": 8, "rows": {"encoder all-gather data in loops": 7, "- all-reduce model once": 5}}
    assert contracts.difference(before, after, by_component=True) == {
        "- all-reduce data once": (5, None),
        "- all-reduce model once": (None, 5),
        "encoder all-gather data in loops": (5, 7),
        "sent": (10, 12),
    }
    assert contracts.difference(after, after, by_component=True) == {}


def test_another_jax_may_send_something_else(monkeypatch):
    """Where the release that is installed has a line of its own, it is held to that."""
    e = next(contracts.cases())
    lines = [{contracts.key(e): {"sent": sent, "least": contracts.least(e), "rows": {}}} for sent in (1, 0)]
    stored = {"jax": "", "differs": {jax.__version__: lines[1]}, "cases": lines[0]}
    monkeypatch.setattr(contracts, "stored", lambda: stored)
    contracts.assert_kept(e, [])


def test_another_jax_may_name_another_component():
    """Bytes of a kind over the same axes stay, whichever component they are noted for."""
    before = {"sent": 10, "least": 8, "rows": {"encoder all-gather data once": 5, "- all-gather data once": 5}}
    after = before | {"rows": {"encoder all-gather data once": 2, "decoder all-gather data once": 8}}
    assert contracts.difference(before, after, by_component=True)
    assert contracts.difference(before, after, by_component=False) == {}
    less = before | {"rows": {"- all-gather data once": 9}}
    assert contracts.difference(before, less, by_component=False) == {"all-gather data once": (10, 9)}


def test_a_step_that_sends_something_else_is_noticed(monkeypatch):
    """The failure says what changed, and how the line is written anew if that is meant."""
    e = next(contracts.cases())
    line = {"sent": 1, "least": 0, "rows": {}}
    monkeypatch.setattr(contracts, "stored", lambda: {"jax": "", "differs": {}, "cases": {contracts.key(e): line}})
    with pytest.raises(AssertionError, match=rf"'sent': \(1, 0\).*contracts {e.name}"):
        contracts.assert_kept(e, [])
