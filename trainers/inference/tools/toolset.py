"""The toolset of a dialog (LaMDA, arXiv 2201.08239, section 6.2): one string in, a list of strings out.

The paper's toolset has a translator too; it is left out here, where no model translates both ways.
"""

from trainers.inference.tools.calculator import calculate
from trainers.inference.tools.retrieval import Index

SNIPPETS = 8  # of retrieval, at most


class Toolset:
    """A calculator and, given an index, retrieval.

    Args:
      index: the prepared snippets (trainers/inference/tools/reference.py); None leaves retrieval out.
    """

    def __init__(self, index: Index | None = None):
        self.index = index

    def __call__(self, query: str) -> list[str]:
        """Returns the outputs of all tools, the calculator's first; a tool that cannot read the query adds nothing."""
        value = calculate(query)
        return [*([] if value is None else [value]), *(self.index(query, SNIPPETS) if self.index else [])]
