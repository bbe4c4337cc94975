"""Whether audit logs are as they were written, and the files that they speak of (trainers/audit/log.py)."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from data import untrusted
from models.errors import UserError, shortened, told
from trainers import runlog
from trainers.audit import log, saved
from trainers.checkpoints import bucket, checkpoint
from trainers.weights import release

_LONGEST = 300  # characters of a name in a line


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """A log that was read and compared.

    Attributes:
      place: the run, the release, or a file in $SHARDZOO_AUDIT.
      lines: its sound lines, in their order.
      problems: a line for each thing that somebody changed.
      notes: a line for each that may be as it should.
    """

    place: Path
    lines: tuple[dict[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """Returns the digest of the last line, by which a later reader knows that none was cut off."""
        return self.lines[-1]["digest"] if self.lines else ""


def chain(path: Path) -> Checked:
    """Returns a log with the places where its chain is broken.

    Raises:
      AuditError: it is no regular file.
    """
    lines, problems, notes = [], [], []
    before, odd = "", ""  # the digest of the line before, and what is wrong with that line, if nobody has said so yet
    for number, (raw, ended) in enumerate(log.raw_lines(path), 1):
        line = log.sound(raw) if ended else None
        if line is None:
            problems += [odd] * bool(odd)
            odd = f"line {number} was changed" if ended else f"line {number}, the last, has no end: it was cut off, or changed"
        else:
            follows = line["before"] == before
            if odd and follows and line.get("broken") == "cut":
                notes.append(f"line {number - 1} was cut off by a power cut, a full disk or a kill; line {number} says so")
            elif odd:
                problems.append(odd)
            elif not follows or "broken" in line:
                problems.append(f"line {number} does not follow {f'line {number - 1}' if before else 'the beginning'}")
            odd = ""
            lines.append(line)
        before = log.digest_of(raw)
    problems += [odd] * bool(odd)
    return Checked(place=path, lines=tuple(lines), problems=tuple(problems), notes=tuple(notes))


def logs_below(folder: Path) -> list[Path]:
    """Returns a run or a release, or those in a folder: what has a log, or should have one."""
    names = (log.FILE, "run.jsonl", release.SUMS)
    places = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())] if folder.is_dir() else []
    chosen = [path for path in places if any((path / name).exists() for name in names)]
    return chosen[:1] if chosen[:1] == [folder] else chosen


def common_logs(folder: Path | None) -> list[Checked]:
    """Returns the logs in $SHARDZOO_AUDIT; none where there is no such folder."""
    return [chain(path) for path in sorted(folder.glob("*.jsonl"))] if folder and folder.is_dir() else []


def check(folder: Path, common: Iterable[Checked] = (), arrays: bool = False) -> Checked:
    """Returns a run's or a release's log, compared with the files that are there and with the heads that other logs have.

    Args:
      common: the logs in $SHARDZOO_AUDIT.
      arrays: also reads all arrays of every checkpoint and compares them with the checksums in its `meta`.
    """
    elsewhere = [line for each in common for line in each.lines if line.get("folder") == str(folder.resolve())]
    heads = [line.get("head") for line in elsewhere], [line.get("audit") for line in runlog.events(folder)]
    file = folder / log.FILE
    if not file.exists():
        if any(map(any, heads)):
            return Checked(place=folder, problems=(f"{log.FILE} is missing, and other logs have its lines",))
        return Checked(place=folder, notes=(f"has no {log.FILE}: it is older than such logs, or somebody removed it",))
    checked = chain(file)
    problems, notes = list(checked.problems), list(checked.notes)
    for name, named in zip((f"${log.FOLDER}", "run.jsonl"), heads, strict=True):
        if lost := missing(named, [checked]):
            problems.append(f"{len(lost)} lines are missing of which {name} has the digests, the first {lost[0]}")
    for line in checked.lines:
        if isinstance(line.get("differs"), list) and line["differs"]:
            names = ", ".join(shortened(str(name), _LONGEST) for name in line["differs"])
            problems.append(f"at {shortened(str(line.get('time')))} a start met files that somebody had changed: {names}")
    try:
        there = _metas(folder)
    except (UserError, OSError) as error:
        there = set()
        problems.append(told(error))
    changed, unsure = _compared(folder, checked.lines, there)
    if (folder / release.SUMS).exists():
        changed += _release(folder)
    elif arrays:
        changed += _arrays(folder, there)
    return dataclasses.replace(checked, place=folder, problems=(*problems, *changed), notes=(*notes, *unsure))


def missing(heads: Iterable[Any], logs: Iterable[Checked]) -> list[str]:
    """Returns the digests that no line of these logs has."""
    there = {line["digest"] for each in logs for line in each.lines}
    return [shortened(str(head)) for head in heads if head and head not in there]


def _compared(folder: Path, lines: Collection[Mapping[str, Any]], metas: set[str]) -> tuple[list[str], list[str]]:
    """Returns (what was changed, what may be as it should) among the files of a folder.

    While a run is under way, and after a kill, checkpoints may have come and gone since its last line.

    Args:
      metas: the names of the `meta` of its checkpoints.
    """
    ends = [line["event"] for line in lines if line.get("event") in ("start", "stop")]
    under_way = ends[-1:] == ["start"]
    files = {name: want for line in lines for name, want in _files(line).items()}
    problems, moved = [], []
    for name, want in files.items():
        try:
            actual = log.digest(folder, name)
        except (UserError, OSError) as error:
            problems.append(told(error))
            continue
        if want and actual is None:
            (moved if name.endswith(saved.META) else problems).append(
                f"{shortened(name, _LONGEST)} is missing, and no line says why"
            )
        elif actual != want:
            why = "is not what was written" if want else "is there again, and the log says that it was deleted"
            problems.append(f"{shortened(name, _LONGEST)} {why}")
    for name in sorted(metas - files.keys()):
        moved.append(f"{shortened(name, _LONGEST)} is there, and no line says who wrote it")
    return (problems, moved) if under_way else (problems + moved, [])


def _files(line: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the digests of files that a line has."""
    files = line.get("files")
    return files if isinstance(files, dict) else {}


def _metas(folder: Path) -> set[str]:
    """Returns the names of the `meta` of a run's checkpoints; raises OSError and UserError where they cannot be listed."""
    if not (folder / "checkpoints").exists():
        return set()
    at = checkpoint.folder_of(folder)
    with bucket.as_files():
        return saved.metas(folder.absolute(), saved.place(folder.absolute(), at)) if bucket.is_folder(at) else set()


def _arrays(folder: Path, metas: set[str]) -> list[str]:
    """Returns a line for each checkpoint whose arrays have not the checksums in its `meta`, or cannot be read."""
    problems = []
    for name in sorted(metas):
        try:
            checkpoint.read_stored(folder, int(name.removesuffix(f"/{saved.META}").rpartition("/")[2]), whole=True)
        except UserError as error:
            problems.append(str(error))
    return problems


def _release(folder: Path) -> list[str]:
    try:
        with untrusted.damage(folder, release.ReleaseError):
            release.verify(folder, release.owner())
    except UserError as error:
        return [str(error)]
    return []
