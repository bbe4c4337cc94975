"""Files of conversations that are none."""

import pytest

from data.chat import sources
from data.task import DataError


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"messages": ' + b"[" * 500 + b"]" * 500 + b"}", "line 1 is damaged: it is nested more than 100 deep$"),
        (b'{"messages": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "line 1 is damaged: it is nested more than 100 deep$"),
        (b'{"messages": "\xff"}', "line 1 is damaged: byte 14 is no UTF-8$"),
        (b'{"messages": 1' + b"0" * 5000 + b"}", "line 1 is damaged: Exceeds the limit"),
        (b'["messages"]', "line 1 is damaged: expected an object$"),
    ],
)
def test_a_hostile_line_is_refused(line, said, tmp_path):
    """One that is nested without end, of other bytes than UTF-8, or of numbers that are none."""
    (tmp_path / "a.jsonl").write_bytes(line)
    assert sources.is_conversations(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match=said):
        list(sources.read(tmp_path / "a.jsonl"))
