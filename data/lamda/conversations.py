"""Conversations of two people, with ratings, from the package chitchat-dataset (MIT): read, cleaned and split. No TensorFlow."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.lamda.prompt_format import ATTRIBUTES
from data.packages import chitchat

Conversation = dict[str, Any]  # "id", "turns": texts of the speakers by turns, "ratings": {attribute: bool}, {} for none

LEAST_TURNS = 4  # of a conversation: what is shorter broke off
MIDDLE = 5  # where the form's slider stands until it is moved: a third of all ratings
_HELD_OUT = {"test": 10, "validation": 5}  # hundredths of all conversations


def read(package: Path) -> Iterator[Conversation]:
    """Yields the conversations that have turns enough; messages of one speaker in sequence are one turn.

    A rating is whether the conversation got more than the middle of the scale from 1 to 10.
    """
    for name, conversation in chitchat.read(package).items():
        turns: list[tuple[str, str]] = []
        for messages in conversation["messages"]:
            text = " ".join(" ".join(message["text"] for message in messages).split())
            speaker = messages[0]["sender"]
            if turns and turns[-1][0] == speaker:
                turns[-1] = speaker, f"{turns[-1][1]} {text}"
            elif text:
                turns.append((speaker, text))
        if len(turns) >= LEAST_TURNS:
            given = conversation.get("ratings")
            ratings = {attribute: given[attribute] > MIDDLE for attribute in ATTRIBUTES} if given else {}
            yield {"id": name, "turns": [text for _, text in turns], "ratings": ratings}


def split_of(conversation: Conversation) -> str:
    """Returns the split of a conversation: by its name alone, all turns of one in the same."""
    place = int(hashlib.sha256(conversation["id"].encode()).hexdigest(), 16) % 100
    for split, share in _HELD_OUT.items():
        if place < share:
            return split
        place -= share
    return "train"
