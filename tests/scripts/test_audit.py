"""The look-up of known vulnerabilities: what pip-audit says counts, and its silence is told."""

import json
import sys
from pathlib import Path

import pytest

from scripts import audit


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
    lock.write_text(
        "jax==0.1 ; python_full_version < '3.12' \\\n    --hash=sha256:0\nflax==0.2 \\\n    --hash=sha256:1\n"
    )
    found, lines = audit.audited(program(tmp_path / "pip-audit", known), lock)
    assert found == count and lines.startswith(text)


@pytest.mark.integration
def test_a_program_that_fails_is_a_reason(tmp_path):
    """Its last line is told, and nothing counts as looked up."""
    (tmp_path / "pip-audit").write_text("#!/bin/sh\necho no connection >&2\nexit 1\n")
    (tmp_path / "pip-audit").chmod(0o755)
    (tmp_path / "lock").write_text(json.dumps(""))
    assert audit.audited(str(tmp_path / "pip-audit"), tmp_path / "lock") == (
        0,
        "skipped: pip-audit failed: no connection",
    )
