"""From settings to a loaded engine: the one door between the terminal program and the library.

Tests put a scripted engine behind `open_engine`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from specgguf.cli import exits, keyboard, parallel
from specgguf.cli.pairing import ChosenPair, pick
from specgguf.cli.settings import Settings
from specgguf.cli.terminal import console
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import Cancelled, Unsupported

if TYPE_CHECKING:
    from specgguf import SpeculativeLlama

# Settings that are keywords of SpeculativeLlama, besides the pair itself.
HARDWARE = "n_ctx n_gpu_layers n_threads flash_attn type_k type_v rpc_servers tensor_split".split()
KEYWORDS = ("draft", "draft_max", *HARDWARE)
TICK_S = 0.1
LOUD = "WARNING: "  # how a notice begins that must not be missed


@dataclass
class Loaded:
    """An engine and how to speak of it.

    Attributes:
        model, draft_model: file names for people; the draft's is "" where nothing drafts.
        model_ref, draft_ref: what gets the same pair again; kept with a conversation.
        load_s: seconds that loading took.
        pair: what was loaded.
    """

    engine: SpeculativeLlama
    model: str
    draft_model: str = ""
    model_ref: str = ""
    draft_ref: str = ""
    load_s: float = 0.0
    pair: ChosenPair | None = None


def open_engine(
    settings: Settings, status: StatusOutput, *, yes: bool = False, brief: bool = False, n_parallel_max: int = 1
) -> Loaded:
    """Choose, download and load the pair, and say what happens meanwhile.

    Args:
        yes: download without asking.
        brief: do not say which pair was chosen, and why.
        n_parallel_max: the most texts at once that are provided for where the settings do not say; 1: one alone,
            whatever they say.

    Raises:
        SpecggufError: whatever stands in the way, in one line.
    """
    pair = pick(settings, status, yes=yes)
    settings.sampling()  # a preset's values are in: out of range is said before loading
    together = parallel.keywords(settings, pair, n_parallel_max) if n_parallel_max > 1 else {}
    pair = replace(pair, keywords={**pair.keywords, **together})
    loaded = load(pair, settings, status)
    if pair.why and not brief:
        status.say(pair.why)
    return loaded


def load(pair: ChosenPair, settings: Settings, status: StatusOutput, *, can_stop: bool = False) -> Loaded:
    """Load a pair; how far it is stands on stderr. Ctrl-C ends the program.

    Args:
        can_stop: Ctrl-C ends the loading instead.

    Raises:
        SpecggufError: as `open_engine`; Cancelled where it was stopped.
    """
    draft = pair.draft_model.name if isinstance(pair.draft_model, Path) else pair.draft_model or ""
    start = time.monotonic()
    engine = _Loading(pair, settings).wait(status, can_stop=can_stop)
    if pair.remark:
        status.say(pair.remark)
    for warning in getattr(engine, "warnings", ()):
        if warning.startswith(LOUD):
            status.warn(warning.removeprefix(LOUD))
        else:
            status.say(warning)
    seconds = time.monotonic() - start
    return Loaded(engine, pair.model.name, draft, pair.model_ref, pair.draft_ref, seconds, pair)


def switch(
    loaded: Loaded, ref: str, draft_ref: str, settings: Settings, status: StatusOutput, *, origin: str = "by /model"
) -> Loaded:
    """Load other models instead of `loaded`, which comes back when they cannot be loaded or hold no conversation.

    Args:
        origin: who chose them.

    Raises:
        SpecggufError: the new models cannot be had or used; `loaded` is as it was, or was loaded again.
    """
    wanted = settings.without_preset()
    wanted.put("model", ref, origin)
    wanted.put("draft_model", draft_ref or None, origin)
    wanted.put("preset", None, origin)
    pair = pick(wanted, status)
    loaded.engine.close()  # two pairs at once may not fit
    try:
        found = _load_for_conversation(pair, wanted, status)
    except Exception:
        if loaded.pair is not None:
            loaded.engine = load(loaded.pair, settings, status).engine
        raise
    settings.become(wanted)
    if pair.why:
        status.say(pair.why)
    return found


def _load_for_conversation(pair: ChosenPair, settings: Settings, status: StatusOutput) -> Loaded:
    """As `load`, stoppable; what cannot hold a conversation does not stay loaded."""
    found = load(pair, settings, status, can_stop=True)
    try:
        check_template(found)
    except BaseException:
        found.engine.close()
        raise
    return found


def check_template(loaded: Loaded) -> None:
    """Say at once that a model cannot hold a conversation. Raises Unsupported."""
    try:
        loaded.engine.render([{"role": "user", "content": "x"}])
    except Unsupported as error:
        raise Unsupported(
            f"{loaded.model}: {error}, so it cannot hold a conversation",
            hint="take an instruct model: -m REF, or /model REF in a conversation (specgguf models list)",
        ) from error


def keywords(settings: Settings, pair: ChosenPair) -> dict[str, Any]:
    """The keywords of SpeculativeLlama that settings and preset ask for; what nobody set is left out."""
    names = ["trace", "draft_vocab", *KEYWORDS, *(f"draft_{name}" for name in KEYWORDS[2:])]
    chosen = {name: settings[name] for name in names if settings[name] is not None}
    if chosen["n_ctx"] == 0:
        chosen["n_ctx"] = parallel.largest_n_ctx(settings, pair)
    follow = {f"{side}n_threads_batch": chosen.get(f"{side}n_threads") for side in ("", "draft_")}  # prompts, too
    return {**{name: n for name, n in follow.items() if n is not None}, **pair.keywords, **chosen}


def _load(pair: ChosenPair, settings: Settings) -> SpeculativeLlama:
    from specgguf import SpeculativeLlama

    draft = str(pair.draft_model) if pair.draft_model is not None else None
    engine: SpeculativeLlama = SpeculativeLlama(str(pair.model), draft, **keywords(settings, pair))
    return engine


class _Loading:
    """A pair that is loaded in a thread, so that its progress is shown and Ctrl-C is heard at once.

    What the native loader still brings after it was told to stop is closed.
    """

    def __init__(self, pair: ChosenPair, settings: Settings) -> None:
        files = [path for path in (pair.model, pair.draft_model) if isinstance(path, Path)]
        self._what = "loading " + " + ".join(
            path.name if isinstance(path, Path) else path for path in (pair.model, pair.draft_model) if path
        )
        self._sizes = {str(path): _size(path) for path in files}
        self._shares: dict[str, float] = {}
        self._stopped = threading.Event()
        self._engine: SpeculativeLlama | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, args=(pair, settings), name="load", daemon=True)

    def wait(self, status: StatusOutput, *, can_stop: bool) -> SpeculativeLlama:
        """The engine. See `load` for Ctrl-C and what is raised."""
        start = time.monotonic()
        self._thread.start()
        try:
            with console.quiet_keyboard():
                while self._thread.is_alive():
                    status.wait(f"{self._what} …", f" {self._percent()}{time.monotonic() - start:.1f} s")
                    self._thread.join(TICK_S)
        except (KeyboardInterrupt, SystemExit) as end:
            status.clear()
            self._stop(end, can_stop=can_stop)
        status.clear()
        if self._error is not None:
            raise self._error
        assert self._engine is not None
        return self._engine

    def _work(self, pair: ChosenPair, settings: Settings) -> None:
        from specgguf.native.weights import watched

        try:
            with watched(self._is_at):
                self._engine = _load(pair, settings)
            if self._stopped.is_set():
                self._engine.close()
        except BaseException as error:
            self._error = error

    def _is_at(self, path: str, share: float) -> bool:
        self._shares[path] = share
        return not self._stopped.is_set()

    def _percent(self) -> str:
        whole = sum(self._sizes.values())
        if not self._shares or not whole:
            return ""
        return f"{sum(size * self._shares.get(path, 0.0) for path, size in self._sizes.items()) / whole:.0%}, "

    def _stop(self, end: KeyboardInterrupt | SystemExit, *, can_stop: bool) -> NoReturn:
        """The native loader is told, and may take a moment; nobody waits for it."""
        self._stopped.set()
        if self._engine is not None:  # it came at that very moment
            self._engine.close()
        if can_stop and isinstance(end, KeyboardInterrupt):
            raise Cancelled(f"{self._what}: stopped") from None
        keyboard.leave()
        sys.stdout.flush()
        code = end.code if isinstance(end, SystemExit) else exits.INTERRUPTED
        os._exit(code if isinstance(code, int) else exits.FAILED)  # nothing is there to be saved


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def thinking(settings: Mapping[str, Any]) -> bool | None:
    """The template's `enable_thinking`: on, off, or left alone."""
    return {"on": True, "off": False}.get(settings["thinking"] or "")
