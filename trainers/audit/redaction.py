"""Keeps credentials out of logs: what looks like one becomes "[redacted]" before a line is written.

A text counts as a credential by its name (an option, a variable or a field called token, key, secret, password or the like), by
its form (keys of Hugging Face, AWS, Google, GitHub, Slack, W&B and others, JSON Web Tokens, private keys, user:password@ in an
address), or because a variable of the environment with such a name holds it. A credential that has neither a name nor a form nor
a variable is not noticed.
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from models.errors import UserError

REDACTED = "[redacted]"

_NAMES = frozenset(
    (
        *("apikey", "auth", "authorization", "bearer", "credential", "credentials", "key", "keys", "pat", "pwd", "sig"),
        *("passphrase", "passwd", "password", "secret", "secrets", "signature", "token"),
    )
)
"""Words of a name whose value is a credential; "tokens" are pieces of text here, and not among them."""

_ALWAYS = frozenset(["passphrase", "passwd", "password", "secret", "secrets"])  # also where the value is a number or a path

_WORDS = frozenset(["auth", "key", "keys", "pat", "sig", "signature"])  # of any prose, in which a colon may follow

_SHORTEST = 8  # characters of a variable's value that is looked for in texts: shorter ones are words of any text

_OWN = "SHARDZOO_"  # begins variables that name files and folders

_FORMS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:hf_|api_org_)[A-Za-z0-9]{30,}"  # Hugging Face
    r"|\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b"  # AWS
    r"|\bAIza[\w-]{30,}|\bya29\.[\w.-]{16,}|\bGOCSPX-[\w-]{16,}"  # Google
    r"|\bgh[opsur]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}"
    r"|\bxox[a-z]-[\w-]{10,}"  # Slack
    r"|\bwandb_v\d_\w{16,}|\blocal-[0-9a-f]{40}\b"  # W&B; its older keys have the form of a git revision
    r"|\b(?:sk|pk|rk)-(?=[\w-]*\d)[\w-]{20,}"  # OpenAI, Anthropic, Stripe
    r"|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*",  # a JSON Web Token
    re.DOTALL,
)

_ADDRESS = re.compile(r"(?<![\w+.-])([\w+.-]+://)(?:[^/\s:@'\"]*:[^\s'\"]*|[^/\s'\"?#]*)@")
"""The user and the password of an address; a password may hold any character but a blank."""

_PAIR = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]+)(?P<quote>[\"']?)(?P<equals>\s*[=:]\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s,;&'\"}\])]+)"
)
"""NAME=VALUE, NAME: VALUE, "NAME": "VALUE", ?NAME=VALUE&..."""

_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE)


def redacted(text: str) -> str:
    """Returns a text in which credentials are replaced."""
    for value in _values():
        text = text.replace(value, REDACTED)
    text = _ADDRESS.sub(rf"\1{REDACTED}@", text)
    text = _BEARER.sub(rf"\1 {REDACTED}", _FORMS.sub(REDACTED, text))
    at = 0
    while pair := _PAIR.search(text, at):
        start, end = pair.span("value")
        if secret := _is_pair(pair):
            text = f"{text[:start]}{REDACTED}{text[end:]}"
        at = start + len(REDACTED) if secret else start  # a value that is none may hold another pair
    return text


def redacted_values(value: Any) -> Any:
    """Returns a value of JSON in which credentials are replaced: in texts, in fields by their name, and in a command's arguments
    behind an option of such a name."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {k: REDACTED if isinstance(v, str) and _is_credential(k, v) else redacted_values(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return list(_arguments(value))
    return value


def refuse(what: str, fields: Mapping[str, str]) -> None:
    """Raises CredentialError for a field that holds a credential by its form: files that are read again cannot be redacted.

    Args:
      fields: values by the path of each.
    """
    for name, value in fields.items():
        if _ADDRESS.search(value) or _FORMS.search(value):
            raise CredentialError(
                f"{what}: {name} holds a credential, which experiment.json, checkpoints and releases would keep: leave it to the "
                "environment or to a file that its client reads"
            )


def crash(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Prints a traceback without credentials, as sys.excepthook."""
    print(redacted("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr, flush=True)


class CredentialError(UserError):
    """A credential stands where it would be kept; the message is one line and does not show it."""


def _arguments(values: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    """Yields a list's values; one that follows an option of a credential's name is one."""
    before = ""
    for value in values:
        option = isinstance(before, str) and before.startswith("-") and "=" not in before
        secret = option and isinstance(value, str) and not value.startswith("--") and _is_credential(before, value)
        yield REDACTED if secret else redacted_values(value)
        before = value


def _is_pair(match: re.Match[str]) -> bool:
    """Returns whether a match of _PAIR is a credential's name with a credential."""
    name, value = match["name"], match["value"].strip("\"'")
    prose = ":" in match["equals"] and not match["quote"] and (name.lower() in _WORDS or name.endswith("Error"))
    return not prose and REDACTED not in value and _is_credential(name, value)


def _is_credential(name: str, value: str) -> bool:
    """Returns whether a value with this name is a credential: no path of a file that is there, and no number."""
    words = _words(name)
    if not value or not words & _NAMES:
        return False
    plain = re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?|true|false|none|null|True|False|None|on|off|yes|no", value)
    return bool(words & _ALWAYS) or not (plain or _is_file(value))


def _words(name: str) -> set[str]:
    """Returns the words of a name in lower case: of HF_TOKEN, --api-key, accessKey and train.api.key."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def _is_file(value: str) -> bool:
    try:
        return os.path.exists(os.path.expanduser(value))
    except (OSError, ValueError):  # a name that no path can have
        return False


def _values() -> list[str]:
    """Returns the credentials of the environment, the longest first."""
    named = ((name, value) for name, value in os.environ.items() if not name.startswith(_OWN))
    return sorted((v for n, v in named if len(v) >= _SHORTEST and _is_credential(n, v)), key=len, reverse=True)
