import sys

import pytest

from configs.registry import ConfigError
from scripts.lab import text_baseline


def test_scikit_learn_is_asked_for(monkeypatch):
    """Without scikit-learn, which the project doesn't require, the bench says in a line how to get it."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match=r"needs scikit-learn: pip install scikit-learn$"):
        text_baseline.main(["debian_sections"])


def test_sizes_are_numbers():
    """A size that is no number is refused in a line that gives an example."""
    with pytest.raises(ConfigError, match=r"^argument --sizes: '1k,0' is not whole numbers"):
        text_baseline.main(["debian_sections", "--sizes", "1k,0"])
