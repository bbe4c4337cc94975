"""Looks the locked packages up in a database of known vulnerabilities, with pip-audit, where both are there.

    python -m scripts.lab.audit                # requirements.lock

pip-audit is no requirement of the project: install it in an environment of its own, so that it is found on the path. Where it or
its database is missing, a line says so, and nothing fails.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from data.paths import ROOT
from scripts import cli

_PROBE = "pip==23.0"  # has known vulnerabilities: a database that finds none in it is none
_SECONDS = 300  # for all packages
LOCK = ROOT / "requirements.lock"


def audited(program: str, lock: Path) -> tuple[int, str]:
    """Returns (packages with known vulnerabilities, a line for each or the reason why nothing was looked up)."""
    probe, reason = _run(program, [_PROBE], seconds=30)
    if reason or not any(package.get("vulns") for package in probe):
        return 0, f"skipped: {reason or 'no database of vulnerabilities is reachable'}"
    pins = [line.rstrip("\\ ") for line in lock.read_text().splitlines() if "==" in line and not line.startswith(" ")]
    packages, reason = _run(program, pins, seconds=_SECONDS)
    if reason:
        return 0, f"skipped: {reason}"
    lines = [
        f"{package['name']} {package['version']}: {', '.join(each['id'] for each in package['vulns'])}"
        for package in packages
        if package.get("vulns")
    ]
    unknown = sum("skip_reason" in package for package in packages)
    total = f"{len(packages) - unknown} of {len(packages)} packages looked up, {len(lines)} with known vulnerabilities"
    return len(lines), "\n".join([*lines, total])


def _run(program: str, pins: list[str], seconds: float) -> tuple[list[dict], str]:
    """Returns pip-audit's answer on these pins, and why there is none."""
    command = [program, "--disable-pip", "--no-deps", "--format", "json", "--progress-spinner", "off", "--timeout", "5"]
    try:
        result = subprocess.run(
            [*command, "-r", "/dev/stdin"], input="\n".join(pins), capture_output=True, text=True, timeout=seconds, check=False
        )
        return json.loads(result.stdout)["dependencies"], ""
    except subprocess.TimeoutExpired:
        return [], f"pip-audit has not answered within {seconds:.0f} s"
    except (ValueError, KeyError):
        return [], f"pip-audit failed: {(result.stderr.strip().splitlines() or ['no message'])[-1]}"


def main() -> int:
    cli.parser(__doc__).parse_args()
    program = shutil.which("pip-audit")
    if not program:
        print("audit skipped: pip-audit is not installed")
        return 0
    count, text = audited(program, LOCK)
    print(f"audit {text}" if text.startswith("skipped") else text, file=sys.stderr if count else sys.stdout)
    return int(bool(count))


if __name__ == "__main__":
    cli.run(main)
