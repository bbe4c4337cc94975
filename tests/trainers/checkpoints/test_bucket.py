"""Whether a bucket can be used, by stand-ins for Google's client; test_store.py has the client and a server."""

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.experiment import Checkpointing
from models.errors import UserError
from trainers import runlog
from trainers.audit import checks, log, saved
from trainers.checkpoints import bucket, checkpoint
from trainers.checkpoints.bucket import BucketError, StoreReadError


class GoogleAPIError(Exception):
    """As google.api_core.exceptions has it."""


class GoogleAPICallError(GoogleAPIError):
    def __init__(self, code: int):
        super().__init__(f"{code} of the store")
        self.code = code


class GoogleAuthError(Exception):
    """As google.auth.exceptions has it."""

    def __init__(self, text: str, *, retryable: bool = False):
        super().__init__(text)
        self.retryable = retryable


class TransportError(GoogleAuthError):
    """As google.auth.exceptions has it: of a server of credentials."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class Client:
    """Google's client for one bucket, which has one object.

    Attributes:
      fails: the error of a call by its name.
      calls: what was asked, in its order.
    """

    hierarchical_namespace_enabled = False

    def __init__(self) -> None:
        self.fails: dict[str, Exception] = {}
        self.calls: list[tuple[str, ...]] = []

    def _call(self, *call: str) -> "Client":
        self.calls.append(call)
        if call[0] in self.fails:
            raise self.fails[call[0]]
        return self

    def get_bucket(self, name: str) -> "Client":
        return self._call("get_bucket", name)

    def blob(self, name: str) -> "Client":
        return self._call("blob", name)

    def upload_from_string(self, text: str) -> None:
        self._call("upload_from_string", text)

    def delete(self) -> None:
        self._call("delete")


@pytest.fixture
def client(monkeypatch) -> Iterator[Client]:
    """A client that is installed, instead of TensorFlow's files and Google's own."""
    client = Client()
    for name, parts in {
        "google.cloud": {"storage": types.SimpleNamespace(Client=lambda: client)},
        "google.api_core": {},
        "google.api_core.exceptions": {"GoogleAPIError": GoogleAPIError},
        "google.auth": {},
        "google.auth.exceptions": {"GoogleAuthError": GoogleAuthError, "TransportError": TransportError},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(bucket, "_installed", lambda module: module == "google.cloud.storage")
    monkeypatch.setattr(bucket.stages, "quiet_tensorflow", lambda: None)
    bucket._bucket.cache_clear()
    yield client
    bucket._bucket.cache_clear()


def test_a_bucket_is_looked_up_and_written_to_before_a_run(client):
    """The object that is written is deleted again; a reader writes nothing, and a path needs no client."""
    bucket.check("gs://mine/runs/a/", writes=True)
    assert client.calls == [("get_bucket", "mine"), ("blob", "runs/a/.writable.0"), ("upload_from_string", ""), ("delete",)]
    bucket.check("gs://mine/runs/b")
    bucket.check(Path("/runs/b"), writes=True)
    bucket.check("", writes=True)
    assert len(client.calls) == 4  # and the bucket is looked up once


@pytest.mark.parametrize(
    ("call", "error", "kind", "words"),
    [
        ("get_bucket", GoogleAPICallError(404), BucketError, ["there is no such bucket", "404 of the store"]),
        ("get_bucket", GoogleAPICallError(403), BucketError, ["storage.buckets.get", "GOVERNANCE"]),
        ("get_bucket", GoogleAuthError("none here"), BucketError, ["no credentials (none here)", "gcloud auth"]),
        ("get_bucket", GoogleAuthError("no server", retryable=True), StoreReadError, ["no credentials for now (no server)"]),
        ("get_bucket", caused(GoogleAuthError("x"), TransportError("y")), StoreReadError, ["no credentials for now (x)"]),
        ("get_bucket", TransportError("late"), StoreReadError, ["no credentials for now (late)"]),
        ("get_bucket", OSError("Project was not passed"), BucketError, ["cannot be used (Project was not passed)"]),
        ("get_bucket", OSError(101, "no network"), StoreReadError, ["does not answer"]),
        ("get_bucket", ValueError("must end with a letter"), BucketError, ["cannot be used (must end with a letter)"]),
        ("get_bucket", GoogleAPICallError(400), BucketError, ["cannot be used (400 of the store)"]),
        ("get_bucket", GoogleAPICallError(429), StoreReadError, ["does not answer (429 of the store)"]),
        ("get_bucket", GoogleAPICallError(503), StoreReadError, ["does not answer", "run the same command again"]),
        ("get_bucket", GoogleAPIError("no end"), StoreReadError, ["does not answer (no end)"]),
        ("get_bucket", ConnectionError("refused"), StoreReadError, ["does not answer (refused)"]),
        ("upload_from_string", GoogleAPICallError(403), BucketError, ["may not write and delete", "roles/storage.objectUser"]),
        ("delete", GoogleAPICallError(403), BucketError, ["may not write and delete", "roles/storage.objectUser"]),
    ],
    ids=lambda value: str(value) if isinstance(value, Exception) else None,
)
def test_a_bucket_that_cannot_be_used_is_refused_in_one_line(client, call, error, kind, words):
    """A refusal that a user can mend ends with 2; a store that does not answer, with 75, after which it is run again."""
    client.fails[call] = error
    with pytest.raises(kind) as refused:
        bucket.check("gs://mine/runs", writes=True)
    assert str(refused.value).startswith("gs://mine/runs") and all(word in str(refused.value) for word in words)
    assert refused.value.exit_code == (2 if kind is BucketError else runlog.PREEMPTED)


def test_an_object_that_another_start_has_deleted_is_no_error(client):
    client.fails["delete"] = GoogleAPICallError(404)
    bucket.check("gs://mine/runs", writes=True)
    assert client.calls[-1] == ("delete",)


def test_a_missing_package_is_named_before_anything_is_asked(client, monkeypatch, tmp_path):
    """For a run, and for the commands that read the address in its folder."""
    monkeypatch.setattr(bucket, "_installed", lambda module: False)
    (tmp_path / "checkpoints").write_text("gs://mine/runs\n")
    reads: list[Callable[[], Any]] = [
        lambda: bucket.check("gs://mine/runs", writes=True),
        lambda: checkpoint.newest_step(tmp_path),
        lambda: checkpoint.read_params(tmp_path),
    ]
    for read in reads:
        with pytest.raises(BucketError, match="needs the package google-cloud-storage, which `make setup DEVICE=gs` installs"):
            read()
    log.record("start", tmp_path)
    (problem,) = checks.check(tmp_path, arrays=True).problems
    assert "needs the package google-cloud-storage" in problem and not client.calls


def test_a_package_below_none_is_not_installed():
    assert bucket._installed("json.decoder")
    assert not bucket._installed("json.storage") and not bucket._installed("no_such_package.cloud.storage")


def test_a_hierarchical_namespace_is_refused(client):
    client.hierarchical_namespace_enabled = True
    with pytest.raises(BucketError, match="hierarchical namespace needs the package google-cloud-storage-control"):
        bucket.check("gs://mine/runs")


def tensorflows(code: int) -> Exception:
    """An error as TensorFlow's files raise it, which is none of the system's."""
    kind = type("OpError", (Exception,), {"__module__": "tensorflow.python.framework.errors_impl", "error_code": code})
    return kind("of a store")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (tensorflows(5), FileNotFoundError),
        (tensorflows(7), OSError),
        (type("NotFound", (GoogleAPICallError,), {"__module__": "google.api_core.exceptions"})(404), FileNotFoundError),
        (type("Forbidden", (GoogleAPICallError,), {"__module__": "google.api_core.exceptions"})(403), OSError),
    ],
)
def test_errors_of_clients_are_errors_of_files(error, kind):
    with pytest.raises(kind) as raised, bucket.as_files():
        raise error
    assert type(raised.value) is kind and "of a store" in str(raised.value).replace("of the", "of a")
    with pytest.raises(StoreReadError, match=r"gs://mine/runs cannot be read for now"), bucket.answers("gs://mine/runs"):
        raise error


class Refusing:
    """A folder at an address of which a store says nothing but an error."""

    def __init__(self, error: Exception):
        self.error = error

    def __str__(self) -> str:
        return "gs://mine/runs"

    def is_dir(self) -> bool:
        return False  # as TensorFlow's files have it, whatever the error

    def stat(self) -> None:
        raise self.error


def test_a_store_that_does_not_answer_has_no_missing_folder(tmp_path):
    """A folder that is not there is none; any other error of the store says nothing of the folder."""
    assert bucket.is_folder(tmp_path) and not bucket.is_folder(tmp_path / "a")
    assert not bucket.is_folder(Refusing(tensorflows(5)))
    with pytest.raises(StoreReadError, match=r"gs://mine/runs cannot be read for now \(of a store\)"):
        bucket.is_folder(Refusing(tensorflows(7)))


@pytest.mark.parametrize("error", [ValueError("a bug"), PermissionError("a file"), KeyError("tensorflow")])
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(type(error)) as raised, bucket.answers("/runs"):
        raise error
    assert raised.value is error


def test_an_error_of_a_client_is_no_damage():
    """A store that refuses a file says nothing of the checkpoint; one that has it no more says that it is damaged."""
    with pytest.raises(StoreReadError, match="of a store"), checkpoint._finds_damage():
        raise tensorflows(14)
    with pytest.raises(checkpoint.DamageError, match="of a store"), checkpoint._finds_damage():
        raise tensorflows(5)


class Address:
    """A folder at an address, which lies on a disk."""

    def __init__(self, path: Path):
        self.path = path

    def __str__(self) -> str:
        return f"gs://mine{self.path}"

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def name(self) -> str:
        return self.path.name

    def iterdir(self) -> list["Address"]:
        return [Address(path) for path in self.path.iterdir()]


def test_a_checkpoint_at_an_address_is_whole_with_its_last_file(tmp_path, monkeypatch):
    """Its folder has its number before; on a disk it gets the number at last. The audit log has it then, too."""
    monkeypatch.setattr(saved.epath, "Path", lambda place: Address(tmp_path))
    (tmp_path / "7").mkdir()
    at: Any = Address(tmp_path)
    assert bucket.whole(tmp_path / "7") and not bucket.whole(Address(tmp_path / "7"))
    assert "the save of step 7 is under way, or was cut off" in checkpoint._none_yet(tmp_path, at)
    assert saved.metas(tmp_path, "gs://mine/") == set()
    (tmp_path / "7" / bucket.COMMITTED).touch()
    assert bucket.whole(Address(tmp_path / "7")) and "has no checkpoint yet" in checkpoint._none_yet(tmp_path, at)
    assert saved.metas(tmp_path, "gs://mine/") == {"gs://mine/7/meta/metadata"}


@pytest.mark.parametrize("address", ["gs://", "gs://mine", "gs://mine/", "gs:///runs", "gs://mine-/runs", "s3://mine/runs"])
def test_an_address_has_a_bucket_and_a_folder(address):
    Checkpointing(folder="gs://mine/runs")
    with pytest.raises(UserError, match="gs://BUCKET/FOLDER"):
        Checkpointing(folder=address)
