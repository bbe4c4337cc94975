"""Readers of others' files: mutated ones are refused in one line or read, and the campaign sees what is neither."""

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.errors import UserError
from tests.fuzz import campaign, mutations, readers
from tests.fuzz.campaign import Limits, Reader
from tests.fuzz.readers import READERS

MUTATIONS = 12


@pytest.fixture(params=READERS)
def mutated(request, tmp_path, monkeypatch) -> Iterator[tuple[Reader, Path, dict[str, bytes]]]:
    """A reader, its sound folder, and the contents of that."""
    monkeypatch.setenv("SHARDZOO_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(readers, "_CONFIGS", ("gpt.gpt2_124m", "gpt.mixtral_8x7b"))
    reader, folder = READERS[request.param], tmp_path / "sample" / "sample"
    folder.mkdir(parents=True)
    reader.make(folder)
    yield reader, folder, campaign.contents(folder)


def test_a_mutated_file_is_refused_in_one_line_or_read(mutated):
    """The line is one of the project's own errors."""
    reader, folder, sound = mutated
    reader.read(folder)
    for number in range(MUTATIONS):
        files: mutations.Files = dict(sound)
        rng = random.Random(f"test {reader.name} {number}")
        reader.mutate(files, rng)
        changed = campaign.changed(sound, files)
        campaign.put(folder, changed, files)
        outcome, reason = campaign.outcome(reader, folder, seconds=20)
        assert outcome in ("refused", "accepted"), (number, reason)
        campaign.put(folder, changed, sound)


@pytest.mark.integration
def test_what_is_no_file_is_refused_in_one_line_or_not_read(mutated):
    """Each file of a folder in turn is a pipe, a folder, a link to a device, to nothing or to the folder: none is waited for."""
    reader, folder, sound = mutated
    for name, place in ((name, place) for name in sound for place in mutations.PLACES):
        files: mutations.Files = {name: place}
        campaign.put(folder, [name], files)
        outcome, reason = campaign.outcome(reader, folder, seconds=20)
        assert outcome in ("refused", "accepted"), (name, place, reason)
        campaign.put(folder, [name], sound)


def make_number(folder: Path) -> None:
    (folder / "number").write_text("0")


def count_up(files: mutations.Files, rng: random.Random) -> None:
    files["number"] = str(rng.randrange(8)).encode()


def misbehave(folder: Path) -> None:
    """Does something else for each number."""
    match int((folder / "number").read_text()):
        case 1:
            raise UserError("no")
        case 2:
            raise KeyError("no")
        case 3:
            bytearray(1 << 40)
        case 4:
            while True:
                pass
        case 5:
            os._exit(3)
        case 6:
            (folder.parent / "outside").write_text("touched")
        case 7:
            subprocess.run(["true"], check=True)


@pytest.mark.integration
def test_the_campaign_sees_every_outcome():
    """A reader that fails in every way is counted in every column, and its process is started anew where it is lost."""
    tally = campaign.run(Reader("number", make_number, misbehave, count_up), 0, 24, 1, Limits(seconds=0.5, mib=256))
    assert tally.outcomes.total() >= 24
    assert set(tally.outcomes) == set(campaign.OUTCOMES)
    assert any("touched" not in reason and "outside" in reason for _, reason in tally.failures)
