"""The look-up of known vulnerabilities: what pip-audit says counts, and its silence is told."""

import json
import re
import sys
from pathlib import Path

import pytest

from data import paths
from scripts.lab import audit


def program(path: Path, known: dict[str, str]) -> str:
    """A pip-audit whose database knows these vulnerabilities; without any it has no database."""
    path.write_text(
        f"#!{sys.executable}\nimport json, sys\nknown = {known!r}\nanswer = []\n"
        "for line in sys.stdin:\n"
        "    name, version = line.split()[0].split('==')\n"
        "    vulns = [{'id': known[name]}] if name in known else []\n"
        "    found = {'version': version, 'vulns': vulns} if known else {'skip_reason': 'not found'}\n"
        "    answer.append({'name': name} | found)\n"
        "print(json.dumps({'dependencies': answer}))\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("known", "count", "text"),
    [
        ({"pip": "PYSEC-1", "jax": "PYSEC-2"}, 1, "jax 0.1: PYSEC-2\n2 of 2 packages looked up"),
        ({"pip": "PYSEC-1"}, 0, "2 of 2 packages looked up, 0 with known vulnerabilities"),
        ({}, 0, "skipped: no database of vulnerabilities is reachable"),
    ],
)
def test_vulnerable_packages_are_named(tmp_path, known, count, text):
    """A database that finds nothing in a version that is known to be vulnerable is none, and that is said."""
    lock = tmp_path / "lock"
    lock.write_text("jax==0.1 ; python_full_version < '3.12' \\\n    --hash=sha256:0\nflax==0.2 \\\n    --hash=sha256:1\n")
    result, lines = audit.audited(program(tmp_path / "pip-audit", known), lock)
    assert result == count and lines.startswith(text)


@pytest.mark.integration
def test_a_program_that_fails_is_a_reason(tmp_path):
    """Its last line is told, and nothing counts as looked up."""
    (tmp_path / "pip-audit").write_text("#!/bin/sh\necho no connection >&2\nexit 1\n")
    (tmp_path / "pip-audit").chmod(0o755)
    (tmp_path / "lock").write_text(json.dumps(""))
    assert audit.audited(str(tmp_path / "pip-audit"), tmp_path / "lock") == (0, "skipped: pip-audit failed: no connection")


def test_whatever_make_installs_from_a_file_has_hashes():
    """Each line of such a file pins a version and is followed by its hashes, and pip is told to insist on them."""
    makefile = (paths.ROOT / "Makefile").read_text()
    installs = [line for line in makefile.splitlines() if "pip install" in line and " -r " in line]
    assert len(installs) == 10 and all("--require-hashes" in line for line in installs)
    files = {name for name in re.findall(r"[\w./-]+\.(?:lock|txt)\b", makefile) if (paths.ROOT / name).is_file()}
    assert {"requirements.lock", "tests/parity/requirements.txt", "scripts/lab/peers/maxtext.txt"} < files
    for name in files:
        lines = [line for line in (paths.ROOT / name).read_text().splitlines() if line and not line.startswith("#")]
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            pinned = re.match(r"[A-Za-z0-9._-]+(\[.*\])?==\S+", line) and following.startswith("    --hash=sha256:")
            assert pinned or line.startswith("    --hash=sha256:"), (name, line)
