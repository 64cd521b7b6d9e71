"""What left the current thread of a conversation: answers that another one replaced, turns that were taken back.

An exchange (a question and its answer) is kept with a fingerprint of the messages that it followed, so that it can
only come back where it was. Nothing is ever removed here, and nothing is known of files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]
Branch = dict[str, Any]  # "after": a fingerprint, "messages": the exchange


def fingerprint(messages: Sequence[Message]) -> str:
    """What names a course of messages; the system prompt, which may change, is no part of it."""
    spoken = [message for message in messages if message.get("role") != "system"]
    return hashlib.sha256(json.dumps(spoken, sort_keys=True).encode()).hexdigest()[:16]


def keep(branches: list[Branch], before: Sequence[Message], exchange: Sequence[Message]) -> None:
    """Keep `exchange`, which follows `before`; one that is kept already is kept once."""
    branch = {"after": fingerprint(before), "messages": [dict(message) for message in exchange]}
    if exchange and branch not in branches:
        branches.append(branch)


def following(branches: Sequence[Branch], before: Sequence[Message]) -> list[list[Message]]:
    """The exchanges that were kept of those which followed `before`, the earliest first."""
    after = fingerprint(before)
    return [list(branch["messages"]) for branch in branches if branch["after"] == after]


def answers(branches: Sequence[Branch], before: Sequence[Message], question: str) -> list[list[Message]]:
    """The exchanges of `following` that ask `question`: its answers."""
    return [exchange for exchange in following(branches, before) if exchange[0]["content"] == question]
