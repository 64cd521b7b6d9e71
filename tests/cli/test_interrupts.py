"""Ctrl-C while an answer is made."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from specgguf.cli.interrupts import Interrupts, LeaveNow


def test_the_first_cancels_from_another_thread_and_the_second_leaves() -> None:
    cancelled = threading.Event()
    by: list[str] = []

    def cancel() -> None:
        by.append(threading.current_thread().name)
        cancelled.set()

    before = signal.getsignal(signal.SIGINT)
    with Interrupts(cancel) as interrupts:
        assert not interrupts.seen
        os.kill(os.getpid(), signal.SIGINT)
        assert cancelled.wait(10)
        assert interrupts.seen
        with pytest.raises(LeaveNow):
            os.kill(os.getpid(), signal.SIGINT)
    assert set(by) == {"ctrl-c"}
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_what_begins_after_ctrl_c_is_cancelled_at_once() -> None:
    first, second = threading.Event(), threading.Event()
    with Interrupts(first.set) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert first.wait(10)
        interrupts.cancel_by(second.set)
        assert second.is_set()


def test_nothing_is_left_behind() -> None:
    for _ in range(3):
        n_threads, n_files = threading.active_count(), len(os.listdir("/dev/fd"))
        with Interrupts(lambda: None):
            pass
        assert (threading.active_count(), len(os.listdir("/dev/fd"))) == (n_threads, n_files)


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with Interrupts(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
