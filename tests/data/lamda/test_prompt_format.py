"""How a conversation is written."""

from data.lamda.prompt_format import ATTRIBUTES, context, prompt, rated, response


def test_speakers_take_turns():
    """A turn is a line whatever it contains; the response is B's, so that the last turn before it is A's."""
    assert context(["Hello?\nAre you  there?"]) == "A: Hello? Are you there?\n"
    assert context(["Hello?", "Yes"]) == "B: Hello?\nA: Yes\n"


def test_both_forms_are_the_papers():
    """Context, sentinel, response; and behind it an attribute and its rating."""
    whole = prompt(["What's up?"]) + response("not much.")
    assert whole == "A: What's up?\nRESPONSE not much.\n"
    assert whole + rated(ATTRIBUTES[2], True) == "A: What's up?\nRESPONSE not much.\nINTERESTING 1"
    assert rated("witty", False) == "WITTY 0"
