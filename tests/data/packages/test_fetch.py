import contextlib
import dataclasses
import hashlib
import io
import os
import re
import sys

import pytest

from data import progress
from data.packages import fetch
from data.packages.fetch import FetchError, Package

CONTENT = b"a wheel, as far as this test goes"
GOOD = Package(registry="pypi", name="some", version="1.0", file="some-1.0.whl", sha256=hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def client_calls(monkeypatch):
    """Replaces the registry's client by one that writes CONTENT; returns the list of packages it was asked for."""
    calls = []

    def download(package, folder, lists):
        calls.append(package.name)
        (folder / "downloaded").write_bytes(CONTENT)

    monkeypatch.setattr(fetch, "_download", download)
    return calls


def quiet(line: str) -> None:
    """Progress that goes nowhere."""


def test_a_package_is_fetched_once(tmp_path, client_calls):
    """A package that is there with the right content is not fetched again."""
    assert fetch.fetch([GOOD], tmp_path, quiet) == [tmp_path / "some-1.0.whl"]
    fetch.fetch([GOOD], tmp_path, quiet)
    assert client_calls == ["some"]
    assert (tmp_path / "some-1.0.whl").read_bytes() == CONTENT


def test_a_damaged_package_is_fetched_again(tmp_path, client_calls):
    """A file whose content is not the pinned one is replaced, not used."""
    (tmp_path / "some-1.0.whl").write_bytes(b"half")
    fetch.fetch([GOOD], tmp_path, quiet)
    assert (tmp_path / "some-1.0.whl").read_bytes() == CONTENT


def test_a_wrong_hash_is_refused(tmp_path, client_calls):
    """A package with another SHA-256 than pinned gives one line with both, and leaves no file behind."""
    wrong = dataclasses.replace(GOOD, sha256="0" * 64)
    (tmp_path / "some-1.0.whl").write_bytes(CONTENT)
    with pytest.raises(FetchError) as caught:
        fetch.fetch([wrong], tmp_path, quiet)
    message = str(caught.value)
    assert "some-1.0.whl" in message and f"is {GOOD.sha256}, expected {wrong.sha256}" in message and "\n" not in message
    assert not list(tmp_path.iterdir())


def test_an_unpinned_package_is_kept(tmp_path, client_calls):
    """A package that has no hash to pin is fetched once, and then taken as it is."""
    unpinned = dataclasses.replace(GOOD, sha256=None)
    fetch.fetch([unpinned], tmp_path, quiet)
    fetch.fetch([unpinned], tmp_path, quiet)
    assert client_calls == ["some"]


@pytest.mark.integration
def test_a_failing_client_gives_one_line(tmp_path):
    """A client that fails is reported in one line that names the package and the client's own complaint."""
    complain = [sys.executable, "-c", "import sys; sys.exit('warning: hm\\nERROR: no such version')"]
    with pytest.raises(FetchError, match=r"^some 1.0: .* failed: ERROR: no such version$"):
        fetch.run_client(complain, cwd=tmp_path, what="some 1.0")


@pytest.mark.integration
def test_a_missing_client_gives_one_line(tmp_path):
    """A client that isn't installed is named."""
    with pytest.raises(FetchError, match=r"^some 1\.0: the command 'no-such-client' is not installed$"):
        fetch.run_client(["no-such-client"], cwd=tmp_path, what="some 1.0")


def test_a_client_announces_what_it_fetches():
    """A wheel's size, not that of its metadata; one that is in pip's own cache is there at once."""
    lines = ["Collecting some==1.0", "  Downloading some-1.0-py3-none-any.whl.metadata (1.6 kB)"]
    assert fetch.announced("\n".join(lines)) is None
    assert fetch.announced("\n".join([*lines, "Downloading some-1.0-py3-none-any.whl (12.5 MB)", ""])) == 12.5e6
    assert fetch.announced("  Using cached some-1.0-py3-none-any.whl (12.5 MB)") is None


@pytest.mark.integration
@pytest.mark.parametrize(("line", "last"), [("Downloading some.whl (4 kB)", "100 %  4.00k/4.00kB"), ("", " 4.00kB  00:0")])
def test_what_has_arrived_is_shown(tmp_path, monkeypatch, line, last):
    """Bytes in the folder of those that pip announces, or alone; the client's own lines are not shown."""
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(progress, "LINES", 0)
    monkeypatch.setitem(progress._state, "shown", True)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    client = [sys.executable, "-c", f"print({line!r}); open('some.whl', 'wb').write(bytes(4000))", "pip"]
    fetch.run_client(client, cwd=tmp_path, what="some 1.0")
    written = err.getvalue().splitlines()
    assert written[-1].startswith("fetching some 1.0 ") and last in written[-1] and not any("Downloading" in w for w in written)


@pytest.mark.integration
def test_a_client_that_announces_nothing_is_shown_at_once(tmp_path, monkeypatch):
    """No size of apt or npm is waited for: the client here ends when the bar is there, or complains after a minute."""

    @contextlib.contextmanager
    def bar(what, total, unit):
        (tmp_path / "bar").write_text(what)
        yield lambda amount: None

    monkeypatch.setattr(fetch, "bar", bar)
    monkeypatch.setattr(fetch, "_ASKED", sys.maxsize)
    wait = "for _ in range(600):\n  if os.path.exists('bar'): sys.exit()\n  time.sleep(0.1)\n"
    fetch.run_client([sys.executable, "-c", f"import os, sys, time\n{wait}sys.exit('no bar')"], cwd=tmp_path, what="some 1.0")
    assert (tmp_path / "bar").read_text() == "fetching some 1.0"


def test_a_folder_that_goes_while_it_is_counted_is_passed_over(tmp_path, monkeypatch):
    """pip unpacks into folders that it deletes while the bytes that have arrived are counted."""
    for name in ("kept", "gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_bytes(bytes(7))
    scandir = os.scandir

    def deleted_meanwhile(folder):
        if str(folder).endswith("gone"):
            raise FileNotFoundError(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", deleted_meanwhile)
    assert fetch._bytes_in([tmp_path]) == 7


@pytest.mark.parametrize(
    "registry, command",
    [
        ("pypi", "-m pip download .* --no-deps --only-binary=:all: .*--dest=. some==1.0$"),
        ("npm", "^npm pack --silent some@1.0$"),
        ("debian", "^apt-get .*-oDir::State::Lists=.*/lists .* download some=1.0$"),
    ],
)
def test_each_registry_has_its_client(tmp_path, monkeypatch, registry, command):
    """A package is fetched by its registry's ordinary client, at the pinned version; apt with lists of its own."""
    commands = []
    monkeypatch.setattr(fetch, "run_client", lambda command, **_: commands.append(" ".join(command)))
    with pytest.raises(FetchError, match="expected one file, got 0"):
        fetch.fetch([dataclasses.replace(GOOD, registry=registry)], tmp_path, quiet)
    assert re.search(command, commands[-1])
