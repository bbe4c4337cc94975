"""Packages as data: fetched by their registry's own client, checked by SHA-256, never imported or installed."""

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from data import paths
from data.packages import debian
from data.progress import bar

_MOMENT, _ASKED = 0.2, 25
"""Seconds between two looks at a client, and looks at pip until it is taken to announce no size."""

_SIZE = re.compile(r"^ *Downloading \S+(?<!\.metadata) \(([\d.]+) (bytes|kB|MB|GB)\)", re.MULTILINE)
_UNITS = {"bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    """One file of a registry, pinned: `name` at `version` arrives as `file` with this SHA-256.

    The registry "debian-index" has the archive's indexes of its packages (`debian.INDEXES`). They have no SHA-256 to
    pin: the archive replaces an index with every point release and keeps no older version. A fetched index is kept,
    and data made from it records its hash.
    """

    registry: Literal["pypi", "npm", "debian", "debian-index"]
    name: str
    version: str
    file: str
    sha256: str | None


def pypi_package(name: str, version: str, sha256: str, tags: str = "py3-none-any") -> Package:
    """Returns a wheel on PyPI."""
    file = f"{name.replace('-', '_')}-{version}-{tags}.whl"
    return Package(registry="pypi", name=name, version=version, file=file, sha256=sha256)


def npm_package(name: str, version: str, sha256: str) -> Package:
    """Returns an npm tarball."""
    file = f"{name.replace('@', '').replace('/', '-')}-{version}.tgz"
    return Package(registry="npm", name=name, version=version, file=file, sha256=sha256)


def debian_package(name: str, version: str, sha256: str) -> Package:
    """Returns a Debian 12 package for all architectures. The archive keeps a version until the next one replaces it."""
    file = f"{name}_{version.rpartition(':')[2]}_all.deb"
    return Package(registry="debian", name=name, version=version, file=file, sha256=sha256)


DESCRIPTIONS = Package(
    registry="debian-index",
    name="package descriptions",
    version="of the machine's Debian release",
    file="debian-descriptions.zip",
    sha256=None,
)

PACKAGE_INDEX = dataclasses.replace(DESCRIPTIONS, name="package index", file="debian-index.zip")


class FetchError(RuntimeError):
    """A package could not be fetched as pinned; the message is one line."""


def fetch(packages: Iterable[Package], folder: Path, progress: Callable[[str], Any] = print) -> list[Path]:
    """Downloads the packages that are not in `folder` yet; files that are there are only checked by their hash.

    Returns:
      The path of each package, in order.

    Raises:
      FetchError: the client failed, or the content is not what was pinned (the file is then removed).
    """
    with paths.scratch(folder / "apt") as lists:  # apt's package lists: fetched at most once, never stale
        return [_fetch_one(package, folder, lists, progress) for package in packages]


def _fetch_one(package: Package, folder: Path, lists: Path, progress: Callable[[str], Any]) -> Path:
    path = folder / package.file
    if path.exists() and package.sha256 in (None, paths.sha256(path)):
        return path
    progress(f"fetching {package.name} {package.version} ({package.registry})")
    with paths.scratch(path) as temporary:
        _download(package, temporary, lists)
        files = [file for file in temporary.iterdir() if file.is_file()]
        if len(files) != 1:
            raise FetchError(f"{package.name} {package.version}: expected one file, got {len(files)}")
        actual = paths.sha256(files[0])
        if package.sha256 not in (None, actual):
            path.unlink(missing_ok=True)
            raise FetchError(f"{package.file}: SHA-256 is {actual}, expected {package.sha256}; the file was removed")
        # Renamed to our name: npm flattens scopes, apt escapes the colon of an epoch.
        os.replace(files[0], path)
    return path


def _download(package: Package, folder: Path, lists: Path) -> None:
    """Downloads the package's file, and nothing else, to `folder`; apt keeps its state in `lists`."""

    def run(command: list[str]) -> None:
        run_client(command, cwd=folder, what=f"{package.name} {package.version}", beside=lists)

    match package.registry:
        case "pypi":
            pip = [sys.executable, "-m", "pip", "download", "--progress-bar=off", "--disable-pip-version-check"]
            # Wheels only: pip runs the set-up code of a source distribution, even to download it. For any Python: it's data.
            only = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
            run([*pip, *only, "--dest=.", f"{package.name}=={package.version}"])
        case "npm":
            run(["npm", "pack", "--silent", f"{package.name}@{package.version}"])
        case "debian":
            debian.download(package.name, package.version, lists, run)
        case "debian-index":
            debian.INDEXES[package.name](folder / package.file, lists, run)


def run_client(command: list[str], *, cwd: Path, what: str, beside: Path | None = None) -> None:
    """Runs a registry's client, and shows what has arrived of how much it announces, if it does.

    Args:
      cwd: its working directory, where pip keeps what has arrived so far too.
      what: names the package.
      beside: another folder that it may write to.

    Raises:
      FetchError: it failed; one line names the package and the client's own error.
    """
    is_pip = "pip" in command  # which alone announces a size
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | ({"TMPDIR": str(cwd)} if is_pip else {})
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=err, env=environment)
        except FileNotFoundError:
            raise FetchError(f"{what}: the command {command[0]!r} is not installed") from None
        try:
            looks = _ASKED if is_pip else 0
            _watch(process, lambda: announced(_text(out)), looks, [cwd, *([beside] if beside else [])], what)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            complaints = [line.strip() for line in (_text(err) + _text(out)).splitlines() if line.strip()]
            errors = [line for line in complaints if line.lower().startswith(("error", "e:", "npm err"))]
            raise FetchError(f"{what}: {Path(command[0]).name} failed: {([*errors, *complaints] or ['no message'])[0]}")


def _watch(process: subprocess.Popen, size: Callable[[], float | None], looks: int, folders: Sequence[Path], what: str) -> None:
    """Waits for a client, and shows how much its folders grow until it ends; first looks so often for the size it announces."""
    before, total, waited = _bytes_in(folders), None, 0
    while total is None and waited < looks and _runs(process):
        total, waited = size(), waited + 1
    with bar(f"fetching {what}", total or size(), "B") as advance:
        runs, seen = True, before
        while runs:
            runs = _runs(process)
            now = _bytes_in(folders)
            advance(max(0, now - seen))
            seen = max(seen, now)


def _runs(process: subprocess.Popen) -> bool:
    """Waits a moment for a process; returns whether it still runs."""
    try:
        process.wait(_MOMENT)
    except subprocess.TimeoutExpired:
        return True
    return False


def announced(text: str) -> float | None:
    """Returns the bytes that a client says it fetches, as pip does: "Downloading some-1.0-py3-none-any.whl (1.2 MB)"."""
    sizes = _SIZE.findall(text)
    return float(sizes[-1][0]) * _UNITS[sizes[-1][1]] if sizes else None


def _bytes_in(folders: Sequence[Path]) -> int:
    """Returns the bytes of all files below some folders; files come and go meanwhile."""
    total = 0
    for place, _, names in (entry for folder in folders for entry in os.walk(folder)):  # passes over folders that have gone
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode("utf-8", "replace")
