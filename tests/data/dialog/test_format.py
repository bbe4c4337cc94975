"""How a conversation is written."""

from data.dialog.format import context, prompt


def test_speakers_take_turns():
    """A begins, a turn is a line whatever it contains, and the prompt ends where the next speaker begins."""
    assert context(["Hello?\nAre you  there?", "Yes"]) == "A: Hello? Are you there?\nB: Yes\n"
    assert prompt(["Hello?"]) == "A: Hello?\nB:"
    assert prompt(["Hello?", "Yes"]) == "A: Hello?\nB: Yes\nA:"
