"""scripts.audit on a real run, and a real run's files and output without the credentials that it was given."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from configs.registry import ConfigError
from models.errors import UserError
from scripts import audit, cli
from tests.helpers.compiling import CHEAP
from tests.helpers.runs import damage
from trainers.audit import log
from trainers.audit.redaction import REDACTED, CredentialError

PASSWORD = "Zq8x2vLw0pT4"
VARIABLES = {
    "HF_TOKEN": "hf_" + "aB3" * 12,
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzzzzzzzzzz",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "STORE_PASSWORD": "correct-horse",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path, str]:
    """The folder of a run, that of all logs, and what the run printed; its command line has a password and a variable's value."""
    room = tmp_path_factory.mktemp("audited")
    run, common = room / "run", room / "common"
    settings = ["--train.steps", "3", "--train.checkpoint.every", "1", "--train.checkpoint.keep", "2"]
    secrets = ["--mlperf-org", f"https://ana:{PASSWORD}@example.org/{VARIABLES['STORE_PASSWORD']}"]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.train", "gpt.quickstart", "--tiny", "--workdir", str(run), *settings, *secrets],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | VARIABLES | {log.FOLDER: str(common), "XLA_FLAGS": CHEAP},
    )
    return run, common, done.stdout + done.stderr


def audited(monkeypatch, capsys, *arguments: Any) -> tuple[int, str]:
    """The exit code of scripts.audit and what it prints."""
    monkeypatch.setattr(sys, "argv", ["audit", *map(str, arguments)])
    monkeypatch.setattr("scripts.cli.use_devices", lambda devices: None)
    code = audit.main()
    return code, capsys.readouterr().out


@pytest.mark.integration
def test_no_credential_is_in_any_file_or_output(made):
    """Neither in the run's folder nor in the log of all; commands are redacted, and the environment is not written down."""
    run, common, output = made
    files = [path for folder in (run, common) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10 and {"run.jsonl", log.FILE, "metrics.jsonl", "experiment.json"} <= {path.name for path in files}
    for secret in (PASSWORD, *VARIABLES.values()):
        assert secret not in output
        assert [str(path) for path in files if secret.encode() in path.read_bytes()] == []
    command = json.loads((run / "run.jsonl").read_text().splitlines()[0])["command"]
    assert command[-1] == f"https://{REDACTED}@example.org/{REDACTED}" and "--train.steps" in command


@pytest.mark.integration
def test_a_run_is_verified_and_shown(made, monkeypatch, capsys):
    """Who, when and what, each event in a line; also that of all users, and as JSON. A digest that was noted is found again."""
    run, common, _ = made
    code, text = audited(monkeypatch, capsys, "--runs", run, "--log", common, "--arrays")
    assert code == 0 and "nothing was changed" in text and "note:" not in text
    rows = [line.split()[2] for line in text.splitlines() if f"{log.owner()}@" in line and not line.startswith(str(common))]
    events = ["start", *["checkpoints"] * 3, "stop"]
    assert [row for row in rows if row != "goodput"] == [*events, *events]  # how often that is written depends on the time
    code, text = audited(monkeypatch, capsys, "--runs", run.parent, "--json")
    (only,) = json.loads(text)["logs"]
    logged = [line["event"] for line in only["lines"] if line["event"] != "goodput"]
    assert code == 0 and only["place"] == str(run) and logged == events
    assert audited(monkeypatch, capsys, "--runs", run, "--head", only["head"])[0] == 0


@pytest.mark.integration
def test_what_was_changed_ends_with_code_1(made, tmp_path, monkeypatch, capsys):
    """An array of a checkpoint, of which only reading it tells; a line of the log; its last line, by a digest that was noted."""
    run = tmp_path / "run"
    shutil.copytree(made[0], run)
    damage(run / "checkpoints" / "3" / "state")
    assert audited(monkeypatch, capsys, "--runs", run)[0] == 0
    code, text = audited(monkeypatch, capsys, "--runs", run, "--arrays")
    assert code == 1 and f"CHANGED: {run}: checkpoint {run}/checkpoints/3 is damaged" in text
    file = run / log.FILE
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines).replace(b'"--train.steps", "3"', b'"--train.steps", "4"', 1))
    code, text = audited(monkeypatch, capsys, "--runs", run)
    assert code == 1 and f"CHANGED: {run}: line 1 was changed" in text
    head = json.loads(lines[-1])["digest"]
    file.write_bytes(b"".join(lines[:-1]))
    code, text = audited(monkeypatch, capsys, "--runs", run, "--head", head)
    assert code == 1 and f"no log has the line {head}" in text
    code, text = audited(monkeypatch, capsys, "--runs", run, "--head", head, "--json")
    assert code == 1 and json.loads(text)["lost"] == [head]


def test_a_folder_without_runs_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"^--runs .*empty: no run and no release is there$"):
        audited(monkeypatch, capsys, "--runs", tmp_path / "empty")


def test_errors_and_tracebacks_have_no_credentials(monkeypatch, capsys):
    """The line of a user's error, and the traceback of a bug, with what caused it."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def refused() -> int:
        raise UserError(f"cannot read https://ana:{PASSWORD}@example.org")

    def failed() -> int:
        try:
            refused()
        except UserError as error:
            raise RuntimeError("a bug") from error
        return 0

    with pytest.raises(SystemExit, match="2"):
        cli.run(refused)
    assert capsys.readouterr().err == f"error: cannot read https://{REDACTED}@example.org\n"
    with pytest.raises(RuntimeError) as caught:
        cli.run(failed)
    sys.excepthook(caught.type, caught.value, caught.tb)
    text = capsys.readouterr().err
    assert PASSWORD not in text and text.startswith("Traceback") and text.endswith("RuntimeError: a bug\n") and REDACTED in text


def test_an_experiment_does_not_keep_a_credential(monkeypatch, tmp_path, capsys):
    """scripts.train refuses the field by its name, before anything is made."""
    from scripts import train

    start = f"https://ana:{PASSWORD}@example.org/weights"
    arguments = ["--tiny", "--workdir", str(tmp_path / "run"), "--train.finetune.init-from", start]
    monkeypatch.setattr(sys, "argv", ["train", "gpt.quickstart", *arguments])
    with pytest.raises(CredentialError, match=r"train\.finetune\.init_from holds a credential"):
        train.main()
    assert PASSWORD not in capsys.readouterr().err and not list(tmp_path.iterdir())
