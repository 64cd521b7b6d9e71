"""Text files that go with the next message: read as a whole, counted, and listed. Knows no terminal."""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specgguf.cli.terminal.progress import human_bytes

from specgguf.errors import ConfigError, ContextFull

MAX_FILE = 2**26  # bytes


@dataclass(frozen=True)
class Attachment:
    """A file's text, and about how many tokens it takes."""

    path: Path
    text: str
    n_tokens: int

    @property
    def message(self) -> str:
        """What stands in the message: the name, and the text between fences that do not occur in it."""
        longest = max((len(run) for run in re.findall("`{3,}", self.text)), default=2)
        fence = "`" * (longest + 1)
        return f"{self.path.name}:\n{fence}\n{self.text.rstrip()}\n{fence}"


def paths(words: str) -> list[Path]:
    """The files that `words` name: one as it stands, or several as a shell would take them, with ~ and patterns.

    Raises:
        ConfigError: a name leads nowhere.
    """
    whole = Path(words).expanduser()
    if whole.exists():
        return [whole]
    try:
        names = shlex.split(words)
    except ValueError:  # a lone quote
        names = [words]
    found: list[Path] = []
    for name in names:
        path = Path(name).expanduser()
        matches = [path] if path.exists() else sorted(map(Path, glob.glob(str(path))))
        if not matches:
            raise ConfigError(f"{whole if len(names) > 1 and ' ' in words else path}: no such file or directory")
        found += matches
    return found


def read(path: Path, count: Callable[[str], int], n_free: int) -> Attachment:
    """Read the file at `path`.

    Args:
        count: tokens of a text.
        n_free: tokens that the context can still take.

    Raises:
        ConfigError: it cannot be read, or is no text.
        ContextFull: it would not fit.
    """
    text = read_text(path)
    n = count(text)
    if n > n_free:
        raise ContextFull(
            f"{path.name} takes about {n:,} tokens, and {n_free:,} are left in the context",
            hint="a longer --n-ctx, or a part of the file",
        )
    return Attachment(path, text, n)


_MENTION = re.compile(r"""(?<!\S)@("[^"]+"|'[^']+'|(?:\\.|[^\s\\])+)""")


def mentioned(text: str) -> list[Path]:
    """The files that `text` names as @path, each once; what is no file's name is ordinary text."""
    found: dict[Path, None] = {}
    for match in _MENTION.finditer(text):
        name = re.sub(r"\\(.)", r"\1", match[1]).strip("\"'")
        for candidate in (name, name.rstrip(".,;:!?)")):
            path = Path(candidate).expanduser()
            if candidate and path.is_file():
                found[path] = None
                break
    return list(found)


def given_text(text: str, where: str) -> str:
    """`text`, or the content of the file where it is @FILE. Raises ConfigError, which names `where`."""
    return named_text(text[1:], f"{where} @") if text.startswith("@") else text


def named_text(name: str, where: str) -> str:
    """The text of the file `name`. Raises ConfigError, which begins with `where`."""
    try:
        return read_text(Path(name).expanduser()).strip()
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from error


def read_text(path: Path) -> str:
    """The text of a file. Raises ConfigError where it cannot be read."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(f"{path} is not a file")  # a device or a pipe may never end
        if path.stat().st_size > MAX_FILE:
            raise ConfigError(f"{path} is larger than {human_bytes(MAX_FILE)}")
        return path.read_text(encoding="utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
