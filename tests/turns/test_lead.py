"""Who leads: one thread at a time, as often as it likes, and nobody for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from specgguf.errors import Busy
from specgguf.turns.lead import Lead


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def lead(told: list[str]) -> Lead:
    return Lead(lambda: told.append("tidied"))


def elsewhere(call: Callable[[], Any]) -> Any:
    """What `call` returns, or raises, in another thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def leads(lead: Lead) -> bool:
    """Whether this thread could lead now."""
    with lead.led(timeout=0.0) as does:
        return does


def test_a_thread_leads_as_often_as_it_likes_and_the_others_wait(lead: Lead, told: list[str]) -> None:
    with lead.lock():
        with lead.lock():
            assert lead.is_mine
        assert lead.is_mine
        assert told == [], "somebody leads still"
        assert elsewhere(lambda: leads(lead)) is False
        assert isinstance(elsewhere(lambda: lead.lock(0.0).__enter__()), Busy)
    assert told == ["tidied"]
    assert elsewhere(lambda: leads(lead)) is True


def test_what_comes_instead_of_the_lead_is_no_lead(lead: Lead) -> None:
    with lead.led(lambda: True) as does:
        assert does is False
        assert not lead.is_mine


@pytest.mark.parametrize("n_before", [0, 1])
def test_an_interrupt_while_the_lead_is_taken_leaves_it_to_others(
    lead: Lead, monkeypatch: pytest.MonkeyPatch, n_before: int
) -> None:
    take = Lead._take

    def interrupted(self: Lead, *arguments: Any) -> bool:
        take(self, *arguments)
        raise KeyboardInterrupt

    def ask() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Lead, "_take", interrupted)
            with pytest.raises(KeyboardInterrupt), lead.lock():
                pass

    if n_before:
        with lead.lock():
            ask()
            assert lead.is_mine, "what it had before, it has still"
    else:
        ask()
    assert not lead.is_mine
    assert elsewhere(lambda: leads(lead)) is True


def test_a_tidying_that_fails_keeps_nobody_from_leading() -> None:
    failures = [ZeroDivisionError()]

    def tidy() -> None:
        if failures:
            raise failures.pop()

    lead = Lead(tidy)
    with pytest.raises(ZeroDivisionError), lead.lock():
        pass
    assert elsewhere(lambda: leads(lead)) is True
