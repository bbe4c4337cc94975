"""The package chitchat-dataset (MIT): conversations of volunteers, with ratings."""

import json
from pathlib import Path
from typing import Any

from data.packages import archives
from data.packages.fetch import pypi_package

PACKAGE = pypi_package("chitchat-dataset", "0.9.0", "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e")


def read(package: Path) -> dict[str, dict[str, Any]]:
    """Returns the conversations as the package holds them, by name."""
    ((_, content),) = archives.members(package, r"^chitchat_dataset/dataset\.json$")
    return json.loads(content)
