"""Going on with a saved conversation, at the start or by /load: the same settings and models either way."""

from __future__ import annotations

from specgguf.cli.chat.saved import sessions
from specgguf.cli.chat.saved.sessions import Session
from specgguf.cli.settings import Settings
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import ConfigError, ModelNotFound


def take_settings(session: Session, settings: Settings) -> tuple[str, str] | None:
    """Let the conversation's settings enter `settings`, under what flags and variables say.

    Returns its target and draft, as references ("none" where nothing drafts), or None where another pair was chosen.
    """
    settings.resumed(session.settings, session.name)
    if not session.model or any(settings.given_here(name) for name in ("model", "preset", "draft_model")):
        return None
    return session.model, session.draft_model or "none"


def latest(status: StatusOutput) -> Session:
    """The conversation that --continue goes on with.

    Raises:
        ConfigError: there is none.
    """
    session, damaged = sessions.latest()
    for path in damaged:
        status.warn(f"a conversation's file is damaged and set aside, as {path}")
    if session is None:
        raise ConfigError("there is no conversation to go on with", hint="specgguf chat starts one")
    if session.name != sessions.ONE_SHOT and sessions.names()[0] == sessions.ONE_SHOT:
        status.say(
            f"going on with '{session.name}' (the question asked since: specgguf chat --resume {sessions.ONE_SHOT})"
        )
    return session


def own_name(session: Session) -> Session:
    """A single question that is gone on with becomes a conversation, which the next single one leaves alone."""
    return sessions.load(sessions.promote()) if session.name == sessions.ONE_SHOT else session


def without_its_model(session: Session | None, settings: Settings, error: ModelNotFound) -> ModelNotFound:
    """`error`, told as what it means to a conversation whose own model is gone."""
    if session is None or settings["model"] != session.model:
        return error
    from specgguf.models import inventory

    here = ", ".join(model.name for model in inventory.models()[:5])
    return ModelNotFound(
        f"'{session.name}' was held with {session.model}, which is not to be had: {error}",
        hint=f"specgguf chat --resume '{session.name}' -m REF goes on with another model"
        + (f"; here are {here}" if here else ""),
    )
