"""Marks of what a chat template generates, and its refusal; apart from Jinja, which not every machine has."""

from data.task import DataError

# Characters of no text (Unicode's noncharacters), which stand around what is generated until their places are known.
BEGIN, END = "\ufdd0", "\ufdd1"


class TemplateRefusal(DataError):
    """A conversation that the template does not render, such as two turns of a user in sequence."""
