"""Reads conversations and preference pairs from JSON lines, in the forms that people have, and from a package. No TensorFlow.

    OpenAI        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}], "tools": ...}
    ShareGPT      {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "system": ...}
    preference    {"prompt": "Hi", "chosen": "Hello", "rejected": "Go away"}

Each of a preference's fields is a text or a list of messages; "chosen" and "rejected" may repeat the prompt's messages, and then
need no "prompt". A message of the assistant with "weight": 0 is not learned.

The same columns are read from Parquet, Arrow and `datasets` folders (data.reading.tables), where the fields that a message lacks
are null. The splits that rows or files are named for are obeyed; one that is not named is drawn.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data import untrusted
from data.lamda import conversations
from data.own_cache import TableCache
from data.packages import chitchat
from data.packages.locations import Location, PackageSource
from data.reading import media, own, tables
from data.task import DataError
from models.errors import nearest, shortened

Message = dict[str, Any]  # "role" and "content", and whatever else a template reads
Record = dict[str, Any]  # "messages", or "prompt", "chosen" and "rejected", messages too; "tools" where there are any

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
_SYSTEM = ("system", "developer")
_JSON = (".jsonl", ".json")
_FIRST = 1 << 16  # characters in which a file's first line shows what it is


def is_conversations(path: Path, columns: str = "") -> bool | None:
    """Returns whether a file, a folder or a pattern holds conversations (True) or preference pairs (False); None where neither.

    A file of JSON is asked by its first line as it is, so that one that is damaged is named as what it was to be.
    """
    if tables.form_of(path) in _JSON and path.is_file() and not columns:
        with untrusted.decompressed(path, DataError) as file:
            first = file.readline(_FIRST).decode(errors="replace")
        names = {name for name in ("chosen", "rejected", "messages", "conversations") if f'"{name}"' in first}
        if names:
            return False if {"chosen", "rejected"} <= names else True if names & {"messages", "conversations"} else None
    if path.is_dir() and not media.tables_of(path):  # what lies beside pictures and sounds is something else
        return None
    names = {*(tables.first(path, tables.columns_of(columns)) or ())}
    if {"chosen", "rejected"} <= names:
        return False
    return True if names & {"messages", "conversations"} else None


def read(path: Path, columns: str = "") -> Iterator[Record]:
    """Yields the conversations or preference pairs of a file, a folder or a pattern.

    Raises:
      DataError: a row is neither, or its split is unknown; the message names it.
    """
    renamed = tables.columns_of(columns)
    for table in tables.files(path):
        nullable = tables.form_of(table.path) not in _JSON
        for row in tables.rows_of(table, renamed):
            try:
                split, why = own.given_split(row)
                if why:
                    raise DataError(why)
                yield _record(_without_nulls(row) if nullable else row) | ({"split": split} if split else {})
            except ValueError as error:
                raise DataError(f"{row.place}: {shortened(str(error), 200)}") from None


def _without_nulls(value: Any) -> Any:
    """Returns a value of a table without the fields that are null, which every message of a column has."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list) else value


def _record(value: Mapping[str, Any]) -> Record:
    more = {"tools": value["tools"]} if value.get("tools") else {}
    if "chosen" in value and "rejected" in value:
        prompt = _turns(value.get("prompt") or [], "user")
        pair = {side: _turns(value[side], "assistant") for side in ("chosen", "rejected")}
        if not prompt:  # both repeat it
            shared = next((i for i, (a, b) in enumerate(zip(*pair.values(), strict=False)) if a != b), 0)
            prompt = pair["chosen"][:shared]
            pair = {side: turns[shared:] for side, turns in pair.items()}
        else:
            prompt, pair = _without_prompt(prompt, pair)
        if not prompt or not all(turns and turns[-1]["role"] == "assistant" for turns in pair.values()):
            raise DataError("a preference needs a prompt, and a chosen and a rejected answer that differ")
        return {"prompt": prompt, **pair, **more}
    if "messages" in value:
        return {"messages": _messages(value["messages"]), **more}
    if "conversations" in value:
        system = [{"role": "system", "content": value["system"]}] if value.get("system") else []
        return {"messages": [*system, *_messages(value["conversations"])], **more}
    raise DataError("neither 'messages' (OpenAI), nor 'conversations' (ShareGPT), nor 'chosen' and 'rejected'")


def _without_prompt(prompt: list[Message], pair: Mapping[str, list[Message]]) -> tuple[list[Message], dict[str, list[Message]]]:
    """Returns a prompt and the answers without it, where they repeat it; its system turns may be on either side alone."""
    head, body = _split_system(prompt)
    answers = {}
    for side, turns in pair.items():
        before, behind = _split_system(turns)
        if behind[: len(body)] == body:
            if before and head and before != head:
                raise DataError(f"the {side!r} answer repeats the prompt behind another system turn")
            head, turns = head or before, behind[len(body) :]
        answers[side] = turns
    return head + body, answers


def _split_system(turns: list[Message]) -> tuple[list[Message], list[Message]]:
    """Returns the system turns with which a conversation begins, and those behind."""
    n = next((i for i, turn in enumerate(turns) if turn["role"] not in _SYSTEM), len(turns))
    return turns[:n], turns[n:]


def _turns(value: Any, role: str) -> list[Message]:
    """Returns messages, of a text the only one."""
    return [{"role": role, "content": value}] if isinstance(value, str) else _messages(value)


def _messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not all(isinstance(turn, Mapping) for turn in value):
        raise DataError("expected a list of messages")
    return [_message(dict(turn)) for turn in value]


def _message(turn: dict[str, Any]) -> Message:
    """Returns a message in OpenAI's form; of content in parts, the texts."""
    if "from" in turn:
        turn = {"role": turn.pop("from"), "content": turn.pop("value", None), **turn}
    name = turn.get("role")
    if not isinstance(name, str) or (name not in _ROLES and name != "developer"):
        raise DataError(f"no role {name!r}{nearest(str(name), _ROLES)}")
    content = turn.get("content")
    if isinstance(content, list) and all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) and not (content is None and turn.get("tool_calls")):
        raise DataError(f"a message of {name!r} has no text: only texts are read")
    weight = turn.get("weight", 1)
    if type(weight) is not int or weight not in (0, 1):
        raise DataError(f"a message of {name!r} has weight {shortened(json.dumps(weight))}, which must be 0 or 1")
    return turn | {"role": _ROLES.get(name, name), "content": content or ""}


def read_package(package: Path) -> Iterator[Record]:
    """Yields the conversations of volunteers (data/lamda), of whom the one who begins is the user."""
    for conversation in conversations.read(package):
        turns = [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(conversation["turns"])]
        yield {"id": conversation["id"], "messages": turns}


def read_pairs(package: Path) -> Iterator[Record]:
    """Yields a preference of every second conversation of that package: the last answer to what was said in the three turns
    before it, over that of the conversation before.

    No answer is in two pairs: one that is learned to be better here and worse there would lower other pairs' margins.
    """
    other = ""
    for record in read_package(package):
        turns = record["messages"][: len(record["messages"]) // 2 * 2]
        answer = turns[-1]["content"]
        if other and other != answer:
            pair = {side: [{"role": "assistant", "content": x}] for side, x in (("chosen", answer), ("rejected", other))}
            yield {"id": record["id"], "prompt": turns[-4:-1], **pair}
            answer = ""
        other = answer


CONVERSATIONS = {"chitchat": PackageSource(packages=(chitchat.PACKAGE,), reader=read_package)}
PAIRS = {"chitchat": PackageSource(packages=(chitchat.PACKAGE,), reader=read_pairs)}


def records(source: TableCache, packaged: Mapping[str, PackageSource], root: Path) -> Iterator[Record]:
    """Yields the records of the source of a cache's settings: of a user's files, or of a package in the data folder `root`."""
    location = Location.of(source.source)
    return read(location.path, source.columns) if location.is_own else location.packaged(packaged).read(root)


def identity(record: Record) -> str:
    """Returns the text that identifies a record: all messages of a conversation, the prompt of a preference pair."""
    return json.dumps(record.get("prompt") or record["messages"], sort_keys=True)


def split_of(record: Record, shares: Mapping[str, float]) -> str:
    """Returns the split that a record is given, or else one by its content alone, "train" where it is in none of the held-out
    ones: equal records are in the same. Preference pairs of one prompt are."""
    if (given := record.get("split", "train")) != "train":
        return given
    key = record.get("id") or identity(record)
    place = int(hashlib.sha256(key.encode()).hexdigest(), 16) % 10**9 / 10**9
    for split, share in shares.items():
        if place < share:
            return split
        place -= share
    return "train"
