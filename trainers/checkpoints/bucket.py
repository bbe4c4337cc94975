"""Checkpoints at an address, gs://BUCKET/FOLDER: whether a bucket can be used, and its clients' errors as those of files.

Three libraries ask Google Cloud Storage for a checkpoint: TensorStore for arrays, TensorFlow's files for everything else, and the
client google-cloud-storage, with which Orbax looks the bucket up. The last one is not in requirements.lock.
"""

import contextlib
import functools
import importlib.util
import re
from collections.abc import Iterator
from typing import Any

import jax

from data import stages
from data.paths import is_address
from models.errors import UserError, told
from trainers import runlog

COMMITTED = "commit_success.txt"
"""Orbax's last file of a checkpoint at an address, where nothing can be renamed: without it the checkpoint is not whole."""

_PROBE = ".writable"  # begins the names of the objects by which `check` tries to write
_NOT_FOUND, _FORBIDDEN, _UNKNOWN = 404, 403, 401  # codes of HTTP
_PASSING = (408, 429)  # of those below 500: too late, too often
_TF_NOT_FOUND = 5  # of TensorFlow's errors


class BucketError(UserError):
    """A bucket cannot be used as it is; the message names it and says what is missing."""


class StoreReadError(UserError):
    """The place of a checkpoint cannot be read for now, which says nothing of the checkpoint."""

    exit_code = runlog.PREEMPTED  # the same command goes on


def check(place: object, *, writes: bool = False) -> None:
    """Compares what an address needs with what there is, before anything else asks for it. A path needs nothing.

    TensorFlow's files ask for a bucket that is not there without an end.

    Args:
      place: the folder of checkpoints.
      writes: whether a run is to write there. An object of this process is then written and deleted.

    Raises:
      BucketError: a package, credentials, the bucket or a permission is missing.
      StoreReadError: the store does not answer.
    """
    if not is_address(text := str(place)):
        return
    if not _installed("google.cloud.storage"):
        raise BucketError(f"{text}: needs the package google-cloud-storage, which `make setup DEVICE=gs` installs")
    name, _, folder = text.removeprefix("gs://").partition("/")
    stages.quiet_tensorflow()
    with _explained(text, "look the bucket up, which needs storage.buckets.get, as roles/storage.legacyBucketReader has it"):
        bucket = _bucket(name)
    # Orbax deletes the folders of such a bucket with another client; this was not tried.
    if bucket.hierarchical_namespace_enabled and not _installed("google.cloud.storage_control_v2"):
        raise BucketError(
            f"{text}: a bucket with a hierarchical namespace needs the package google-cloud-storage-control; choose one without"
        )
    if writes:
        with _explained(text, "write and delete objects, which a run needs, as roles/storage.objectUser allows"):
            probe = bucket.blob(f"{folder.rstrip('/')}/{_PROBE}.{jax.process_index()}")
            probe.upload_from_string("")
            _delete(probe)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even a package above it is there
        return False


@functools.cache
def _bucket(name: str) -> Any:
    """Returns the client's object of a bucket, once it was there."""
    from google.cloud import storage  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    return storage.Client().get_bucket(name)


def _delete(blob: Any) -> None:
    """Deletes an object, unless another start or a request whose answer was lost has done so."""
    from google.api_core.exceptions import GoogleAPIError  # pyright: ignore[reportMissingImports]

    try:
        blob.delete()
    except GoogleAPIError as error:
        if getattr(error, "code", None) != _NOT_FOUND:
            raise


@contextlib.contextmanager
def _explained(place: str, what: str) -> Iterator[None]:
    """Raises the errors of the client google-cloud-storage inside the block as one line: what passes, and what does not.

    Args:
      what: the block does, and which role allows it; for the line.
    """
    from google.api_core.exceptions import GoogleAPIError  # pyright: ignore[reportMissingImports]
    from google.auth.exceptions import GoogleAuthError, TransportError  # pyright: ignore[reportMissingImports]

    try:
        yield
    except GoogleAuthError as error:
        # A server of credentials that does not answer is the cause of an error that is not to be tried again.
        if error.retryable or any(isinstance(e, TransportError) for e in (error, error.__cause__)):
            raise StoreReadError(f"{place}: no credentials for now ({told(error)}); run the same command again") from error
        raise BucketError(
            f"{place}: no credentials ({told(error)}); `gcloud auth application-default login` makes some for a person, "
            "a service account has its own on Google's machines"
        ) from error
    except (GoogleAPIError, OSError, ValueError) as error:  # the second is of a network, or says that no project is set
        code = getattr(error, "code", None)
        if code in (_FORBIDDEN, _UNKNOWN):
            raise BucketError(f"{place}: may not {what} (docs/GOVERNANCE.md, Buckets): {told(error)}") from error
        if code == _NOT_FOUND:
            raise BucketError(f"{place}: there is no such bucket ({told(error)})") from error
        is_refused = code is not None and code < 500 and code not in _PASSING
        if is_refused or isinstance(error, ValueError) or (type(error) is OSError and error.errno is None):
            raise BucketError(f"{place} cannot be used ({told(error)})") from error
        raise StoreReadError(f"{place} does not answer ({told(error)}); run the same command again") from error


@contextlib.contextmanager
def as_files() -> Iterator[None]:
    """Raises the errors of the clients of stores inside the block as OSErrors, like those of files; any other as it is."""
    try:
        yield
    except Exception as error:
        if (same := as_file_error(error)) is error:
            raise
        raise same from error


def is_folder(folder: Any) -> bool:
    """Returns whether there is such a folder, an epath.Path; of a store that does not answer, TensorFlow's files say no.

    Raises:
      StoreReadError: the store does not answer.
    """
    if not is_address(str(folder)):
        return folder.is_dir()
    with answers(folder):
        try:
            with as_files():
                folder.stat()
        except FileNotFoundError:
            return False
    return True


@contextlib.contextmanager
def answers(folder: Any) -> Iterator[None]:
    """Raises StoreReadError for the errors of a store inside the block, where the folder is at an address."""
    try:
        with as_files():
            yield
    except OSError as error:
        if not is_address(str(folder)):
            raise
        raise StoreReadError(f"{folder} cannot be read for now ({told(error)}); run the same command again") from error


def as_file_error(error: Exception) -> Exception:
    """Returns a store's error as an OSError: FileNotFoundError for what is not there; any other exception itself."""
    if isinstance(error, OSError) or not re.match(r"tensorflow\.|google\.(api_core|auth)\.", type(error).__module__):
        return error
    # TensorFlow's error_code, or a code of HTTP
    missing = getattr(error, "error_code", None) == _TF_NOT_FOUND or getattr(error, "code", None) == _NOT_FOUND
    return (FileNotFoundError if missing else OSError)(told(error))


def whole(folder: Any) -> bool:
    """Returns whether the folder of a checkpoint, an epath.Path with a number for a name, is complete.

    A folder on a disk gets its number when it is.
    """
    return not is_address(str(folder)) or (folder / COMMITTED).exists()
