"""The TPU compiler, which not every machine has."""

import pytest

from trainers.pods import libtpu

NEEDED = pytest.mark.skipif(not libtpu.installed(), reason="libtpu is not installed: make setup DEVICE=plan")
