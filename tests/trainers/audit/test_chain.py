"""The chain of an audit log: every change of the file shows, but for what only a digest from elsewhere can show."""

import json
import multiprocessing
import random

import hypothesis
import pytest
from hypothesis import strategies

from data import paths
from trainers.audit import checks, log


@pytest.fixture
def path(tmp_path):
    """A log of five events."""
    for step in range(5):
        log.append(tmp_path / log.FILE, {"event": "saved", "step": step})
    return tmp_path / log.FILE


def lines(path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def problems(path, content: bytes) -> tuple[str, ...]:
    path.write_bytes(content)
    return checks.chain(path).problems


def remade(line: bytes, **changes) -> bytes:
    """A line with other values and the digest that belongs to them, as somebody writes it who knows how."""
    values = {k: v for k, v in json.loads(line).items() if k != "digest"} | changes
    return json.dumps(values | {"digest": paths.digest(values)}, sort_keys=True).encode() + b"\n"


def test_a_log_that_nobody_changed_is_sound(path):
    checked = checks.chain(path)
    assert [line["step"] for line in checked.lines] == [*range(5)] and not checked.problems and not checked.notes
    assert checked.lines[0]["before"] == ""
    head = log.append(path, {"event": "stop"})
    again = checks.chain(path)
    assert again.lines[-1]["before"] == checked.head and again.head == head and not again.problems


def test_what_was_done_to_lines_is_named(path):
    """A line changed, with and without a new digest; removed, added, copied, and two exchanged."""
    a, b, c, d, e = lines(path)
    changed = c.replace(b'"step": 2', b'"step": 7')
    for content, problem in (
        ([a, b, changed, d, e], "line 3 was changed"),
        ([a, b, remade(c, step=7), d, e], "line 4 does not follow line 3"),
        ([a, b, d, e], "line 3 does not follow line 2"),
        ([b, c, d, e], "line 1 does not follow the beginning"),
        ([a, b, d, c, e], "line 3 does not follow line 2"),
        ([a, b, remade(b, step=9), c, d, e], "line 3 does not follow line 2"),
        ([a, b, b, c, d, e], "line 3 does not follow line 2"),
        ([a, b, b"\n", c, d, e], "line 3 was changed"),
        ([a, b, c, d, changed], "line 5 was changed"),
        ([a, b, c, d, e[:-1]], "line 5, the last, has no end: it was cut off, or changed"),
    ):
        assert problems(path, b"".join(content))[0] == problem


def test_every_change_of_one_byte_shows(path):
    """Each byte in turn is replaced, taken out, and doubled."""
    content = path.read_bytes()
    number = random.Random(0)
    for at in range(len(content)):
        other = (content[at] + number.randrange(1, 256)) % 256
        for new in (bytes([other]), b"", content[at : at + 1] * 2):
            changed = content[:at] + new + content[at + 1 :]
            assert changed == content or problems(path, changed), (at, new)


@hypothesis.settings(max_examples=150, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    strategies.lists(strategies.tuples(strategies.integers(0, 5000), strategies.integers(0, 40), strategies.binary(max_size=40)))
)
def test_no_random_change_goes_unseen(path, edits):
    """Pieces are replaced by other bytes. Only a log that is a beginning of the old one, to the end of a line, passes."""
    content = changed = path.read_bytes()
    for at, length, new in edits:
        changed = changed[:at] + new + changed[at + length :]
    try:
        cut = content.startswith(changed) and changed[-1:] in (b"", b"\n")
        assert bool(problems(path, changed)) == (not cut)
    finally:
        path.write_bytes(content)


def test_a_cut_shows_by_a_digest_from_elsewhere_alone(path):
    """The chain of the lines that are left is sound, and the head that was noted is not among them."""
    head = checks.chain(path).head
    assert not problems(path, b"".join(lines(path)[:3]))
    assert checks.missing([head], [checks.chain(path)]) == [head]
    log.append(path, {"event": "saved", "step": 3})
    assert not checks.chain(path).problems and checks.missing([head], [checks.chain(path)])


@pytest.mark.parametrize("left", ["half", "zeros"])
def test_a_power_cut_does_not_break_the_log_for_ever(path, left):
    """The next line says that the one before it has no end; that stays a note, and lines behind it are checked as before."""
    whole = path.read_bytes()
    last = lines(path)[-1]
    tail = {"half": last[: len(last) // 2], "zeros": bytes(100)}[left]
    path.write_bytes(whole[: -len(last)] + tail)
    assert "has no end" in checks.chain(path).problems[0]
    log.append(path, {"event": "start"})
    log.append(path, {"event": "stop"})
    checked = checks.chain(path)
    assert not checked.problems and checked.notes == ("line 5 was cut off by a power cut, a full disk or a kill; line 6 says so",)
    assert [line["event"] for line in checked.lines] == ["saved"] * 4 + ["start", "stop"]
    content = path.read_bytes()
    at = content.index(tail)
    assert problems(path, content[:at] + b"x" + content[at + 1 :])  # what was cut off may not change either


def test_a_line_that_lacks_its_end_alone_is_completed(path):
    path.write_bytes(path.read_bytes()[:-1])
    log.append(path, {"event": "start"})
    checked = checks.chain(path)
    assert len(checked.lines) == 6 and not checked.problems and not checked.notes


def test_a_line_that_was_changed_stays_so(path):
    """A later start does not make it good: its line follows what is there, and says that it is not sound."""
    content = path.read_bytes().replace(b'"step": 4', b'"step": 5')
    path.write_bytes(content)
    log.append(path, {"event": "start"})
    assert checks.chain(path).problems == ("line 5 was changed",)
    assert lines(path)[-1].count(b'"broken": "changed"') == 1


def test_long_lines_are_continued(tmp_path):
    """The last line is looked for from the end of the file, however long it is."""
    for length in (1, 5_000, 200_000, 70_000, 3):
        log.append(tmp_path / "a.jsonl", {"event": "x" * length})
    assert len(checks.chain(tmp_path / "a.jsonl").lines) == 5 and not checks.chain(tmp_path / "a.jsonl").problems


def _write(path, name) -> None:
    for step in range(20):
        log.append(path, {"event": name, "step": step})


@pytest.mark.integration
def test_processes_that_write_at_once_make_one_chain(tmp_path):
    """All lines of all of them are there, each process's in order."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path / "a.jsonl", name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    checked = checks.chain(tmp_path / "a.jsonl")
    assert not checked.problems and len(checked.lines) == 60
    for name in "abc":
        assert [line["step"] for line in checked.lines if line["event"] == name] == [*range(20)]


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / log.FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=log.FILE):
        log.append(tmp_path / log.FILE, {"event": "x"})
    assert not (tmp_path / "elsewhere").exists()
