"""A sound with speech, which is fetched inside a package: the example of a speaker diarizer (MIT licence)."""

from pathlib import Path

from data import paths
from data.packages import archives, fetch
from data.stages import Progress

CALL = fetch.pypi_package(
    "pyannote-audio", "3.4.0", "36e38f058059f46da3478dda581cda53d9d85a21173a3e70bbdbc3ba93b5e1b7", "py2.py3-none-any"
)


def fetch_call(data_dir: Path | None = None, progress: Progress = print) -> Path:
    """Fetches thirty seconds of a telephone call in English, 16 kHz, unless they are there.

    Args:
      data_dir: the data folder, `paths.data_dir()` by default.
      progress: called with a line for each step.

    Returns:
      The path of the WAV file.

    Raises:
      FetchError: the package could not be fetched as pinned.
    """
    root = data_dir or paths.data_dir()
    path = root / "sounds" / "call.wav"
    if not path.exists():
        (package,) = fetch.fetch([CALL], root / "packages", progress)
        ((_, content),) = archives.members(package, r"/sample/sample\.wav$")
        with paths.scratch(path) as folder:
            (folder / "new").write_bytes(content)
            (folder / "new").replace(path)
    return path
