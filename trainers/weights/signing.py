"""Signatures of releases: Ed25519 (RFC 8032) over SHA256SUMS, which has a checksum of every other file, as SHA256SUMS.sig.

Keys are OpenSSL's PEM files, and OpenSSL can check a signature without this code:

    openssl genpkey -algorithm ed25519 -out key.pem
    openssl pkey -in key.pem -pubout -out public.pem
    openssl pkeyutl -verify -pubin -inkey public.pem -rawin -in SHA256SUMS -sigfile SHA256SUMS.sig
"""

from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from data import untrusted
from models.errors import UserError

SUFFIX = ".sig"
_MOST = 1 << 16  # bytes of a key


class SignatureError(UserError):
    """A file has no valid signature, or a key cannot be used; the message is one line."""


def sign(file: Path, key: Path) -> None:
    """Writes the signature of a file beside it.

    Args:
      key: a private key without a passphrase.
    """
    with untrusted.damage(f"private key {key}", SignatureError):
        private = load_pem_private_key(untrusted.read_bytes(key, SignatureError, _MOST), password=None)
    if not isinstance(private, Ed25519PrivateKey):
        raise SignatureError(f"private key {key} is not of Ed25519: openssl genpkey -algorithm ed25519 makes one")
    signature_of(file).write_bytes(private.sign(untrusted.read_bytes(file, SignatureError)))


def check(file: Path, key: Path) -> None:
    """Raises SignatureError unless the signature beside a file is that of this public key's owner."""
    with untrusted.damage(f"public key {key}", SignatureError):
        public = load_pem_public_key(untrusted.read_bytes(key, SignatureError, _MOST))
    if not isinstance(public, Ed25519PublicKey):
        raise SignatureError(f"public key {key} is not of Ed25519")
    signature = untrusted.read_bytes(signature_of(file), SignatureError, _MOST)
    try:
        public.verify(signature, untrusted.read_bytes(file, SignatureError))
    except InvalidSignature:
        raise SignatureError(f"{file} is not what the owner of {key} signed") from None


def signature_of(file: Path) -> Path:
    """Returns the place of a file's signature."""
    return file.with_name(file.name + SUFFIX)
