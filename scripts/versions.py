"""The versions of Python and JAX that the zoo is tested with, and the Pythons that a machine has for them.

    python3 scripts/versions.py            # refuses, in one line, a Python that requirements.lock has no packages for
    python3 scripts/versions.py --newer    # prints the newest Python at hand that it has packages for, if newer than this one

`make` runs it with the Python that it is about to install into: it needs no package, and an older Python must be able to read it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
# The Pythons that all packages of the lock can be installed into: TensorFlow 2.21 has none for 3.14. `make lock` may change this.
OLDEST, NEWEST = (3, 11), (3, 13)


def python_refusal(version: "tuple[int, int]") -> str:
    """Returns why the lock cannot be installed into this Python, and what to do; "" if it can."""
    if OLDEST <= version <= NEWEST:
        return ""
    relation = "older" if version < OLDEST else "newer"
    nearest = OLDEST if version < OLDEST else NEWEST
    return (
        f"error: Python {_dotted(version)} is {relation} than requirements.lock has packages for "
        f"({_dotted(OLDEST)} to {_dotted(NEWEST)}): name one of these, as PYTHON=python{_dotted(nearest)}"
    )


def jax_warning(installed: str, lock: str) -> str:
    """Returns a line about a version of JAX whose first two numbers are of none in this lock; "" if they are."""
    tested = re.findall(r"^jax==([\w.]+)", lock, re.M)
    if _release(installed) in map(_release, tested):
        return ""
    return (
        f"warning: jax {installed} is installed, and this was tested with {' and '.join(tested)}: "
        "`make setup` installs one of these into an environment of its own"
    )


def warn_of_jax() -> None:
    """Prints `jax_warning` for the JAX that is installed."""
    import importlib.metadata  # older Pythons have none

    line = jax_warning(importlib.metadata.version("jax"), LOCK.read_text())
    if line:
        print(line, file=sys.stderr, flush=True)


def newer_python(than: int, path: str, pyenv: Path) -> str:
    """Returns the newest Python that is newer than 3.`than`, that the lock has packages for and that runs: python3.x in a folder
    of `path`, else one of pyenv's, whose commands on the path run only where it was told which; "" if there is none."""
    for minor in range(NEWEST[1], than, -1):
        name = f"python3.{minor}"
        folders = [Path(folder) for folder in path.split(os.pathsep) if folder]
        candidates = [folder / name for folder in folders] + sorted(pyenv.glob(f"versions/3.{minor}.*/bin/{name}"))
        for candidate in candidates:
            if os.access(candidate, os.X_OK) and _runs(candidate, minor):
                return str(candidate)
    return ""


def _runs(candidate: Path, minor: int) -> bool:
    """Returns whether this is Python 3.minor and can make environments; a command of pyenv's may be neither."""
    program = "import sys, venv, ensurepip; print(sys.version_info[1])"
    try:
        done = subprocess.run([str(candidate), "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return False
    return done.stdout.split() == [str(minor).encode()]


def _release(version: str) -> "list[str]":
    return version.split(".")[:2]


def _dotted(version: "tuple[int, int]") -> str:
    return ".".join(map(str, version))


def main() -> int:
    if sys.argv[1:] == ["--newer"]:
        pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
        print(newer_python(sys.version_info[1], os.environ.get("PATH", ""), pyenv))
        return 0
    line = python_refusal(sys.version_info[:2])
    if line:
        print(line, file=sys.stderr)
    return 2 if line else 0


if __name__ == "__main__":
    sys.exit(main())
