"""A saved conversation as Markdown, for people and other programs."""

from __future__ import annotations

from specgguf.cli.chat.saved.sessions import Session


def markdown(session: Session) -> str:
    """The conversation as Markdown."""
    lines = [f"# {session.name}", "", f"{session.model or 'unknown model'}, {session.updated[:10]}"]
    for message in session.messages:
        heading = {"user": "You", "assistant": "Model", "system": "System"}.get(message["role"], "Other")
        lines += ["", f"## {heading}", ""]
        if message.get("reasoning_content"):
            quoted = str(message["reasoning_content"]).splitlines()
            lines += [*(f"> {row}".rstrip() for row in quoted), ""]
        lines.append(message["content"])
    for question in [*session.unanswered, session.pending]:
        if question:
            lines += ["", "## You, without an answer", "", question]
    return "\n".join(lines) + "\n"
