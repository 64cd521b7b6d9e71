"""Captures of real conversations for docs/captures: typed into tmux, and the screen is saved.

  scripts/bench/run captures                         the demo pair
  scripts/bench/run captures -m FILE -d FILE         another one; flags of specgguf chat

An SVG for what has colour, a text file for what has none. Nothing is edited afterwards.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "captures"
PROGRAM = Path(sys.executable).with_name("specgguf")
SESSION = "specgguf-captures"
PATIENCE_S = 900
MIDWAY_ROWS = 11  # so much of the screen is filled when an answer is caught in the middle
DARK = {"dark": SVG_EXPORT_THEME}
BOTH: dict[str, TerminalTheme] = {**DARK, "light": DEFAULT_TERMINAL_THEME}
QUESTION = "What is a linked list, and when is it better than an array? Be brief."


@dataclass(frozen=True)
class Scene:
    """A screen: its size, what is typed (and what must then appear), and how it is saved.

    Attributes:
        midway: what is typed while the answer to the last step runs, once that shows how drafting goes; the screen is
            saved then.
    """

    name: str
    columns: int
    rows: int
    steps: Sequence[tuple[str, str]]
    flags: str = "--draft 4 --highlight"
    variables: str = ""
    themes: Mapping[str, TerminalTheme] = field(default_factory=dict)
    midway: str = ""


SCENES = (
    Scene("chat-80", 80, 24, [(QUESTION, "tok/s"), ("/draft auto", "automatic")], themes=BOTH),
    Scene("chat-160", 160, 20, [(QUESTION, "tok/s"), ("/context", "sent with")], themes=BOTH),
    Scene("live-80", 80, 16, [(QUESTION, "accepted |")], themes=BOTH, midway="And a deque"),
    Scene("stats-80", 80, 30, [(QUESTION, "tok/s"), ("/stats", "since the start")], themes=DARK),
    Scene("help-80", 80, 60, [("/help", "is never a")], themes=DARK),
    Scene("race-80", 80, 24, [(QUESTION, "tok/s"), ("/race", "each, specgguf bench")], themes=DARK),
    Scene("no-color", 80, 20, [(QUESTION, "tok/s")], variables="NO_COLOR=1", themes=DARK),
    Scene("plain", 80, 20, [(QUESTION, "tok/s")], flags="--draft 4 --plain"),
    Scene("dumb", 80, 20, [(QUESTION, "tok/s")], variables="TERM=dumb"),
)


def tmux(*arguments: str) -> str:
    return subprocess.run(["tmux", *arguments], check=True, capture_output=True, text=True).stdout


def wait_for(text: str, *, prompt: bool = True) -> None:
    """Until the screen shows `text`, and a prompt after it."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        screen = tmux("capture-pane", "-p", "-t", SESSION)
        rest = screen.rpartition(text)[2] if text in screen else ""
        if (text in screen and not prompt) or any(line.rstrip() in (">", "You:") for line in rest.splitlines()):
            return
        time.sleep(0.5)
    sys.exit(f"'{text}' did not appear:\n{screen}")


def screen_rows() -> int:
    """How many lines of the screen are filled."""
    return len(tmux("capture-pane", "-p", "-t", SESSION).rstrip().splitlines())


def play(scene: Scene, flags: Sequence[str], home: str) -> str:
    """Run a scene; the screen at its end, with its escape sequences."""
    chat = shlex.join([str(PROGRAM), "chat", *flags, *scene.flags.split(), "--seed", "1", "--no-history", "--no-save"])
    command = f"env XDG_DATA_HOME={home} {scene.variables} {chat}"
    subprocess.run(["tmux", "kill-session", "-t", SESSION], capture_output=True, check=False)  # of a run cut short
    tmux("new-session", "-d", "-s", SESSION, "-x", str(scene.columns), "-y", str(scene.rows), command)
    try:
        wait_for("leave")
        for typed, seen in scene.steps:
            tmux("send-keys", "-t", SESSION, "-l", typed)
            tmux("send-keys", "-t", SESSION, "Enter")
            wait_for(seen, prompt=not scene.midway)
        if scene.midway:
            while screen_rows() < MIDWAY_ROWS:
                time.sleep(0.1)
            tmux("send-keys", "-t", SESSION, "-l", scene.midway)
            wait_for(f"> {scene.midway}", prompt=False)
        return tmux("capture-pane", "-p", "-e", "-t", SESSION)
    finally:
        tmux("kill-session", "-t", SESSION)


def save(scene: Scene, screen: str) -> None:
    """Write the screen as text, and as an SVG for each theme."""
    text = Text.from_ansi(screen.rstrip())
    if not scene.themes:
        (FOLDER / f"{scene.name}.txt").write_text(text.plain + "\n", encoding="utf-8")
    for label, theme in scene.themes.items():
        console = Console(record=True, width=scene.columns, file=io.StringIO(), force_terminal=True)
        console.print(text, soft_wrap=True)
        svg = console.export_svg(title=f"specgguf chat, {scene.columns} columns", theme=theme, unique_id="s")
        svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # nothing is loaded from elsewhere
        path = FOLDER / f"{scene.name}-{label}.svg"
        path.write_text(re.sub(r"[ \t]+\n", "\n", svg), encoding="utf-8")
        print(path.relative_to(FOLDER.parent.parent))


def main() -> int:
    """All scenes, or those named by the variable SCENES."""
    if shutil.which("tmux") is None:
        sys.exit("error: tmux is missing\n  install it: the captures come from a real terminal")
    flags = sys.argv[1:] or ["-p", "demo", "--yes"]
    wanted = os.environ.get("SCENES", "").split()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        for scene in SCENES:
            if not wanted or scene.name in wanted:
                save(scene, play(scene, flags, home))
    return 0
