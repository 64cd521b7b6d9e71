"""Every decision of the adaptive controller, as JSON lines in a file: what it expected, chose and saw.

This module knows nothing of what the records mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specgguf.errors import ConfigError

Trace = Callable[[dict[str, Any]], None]


def to_file(path: str | Path) -> Trace:
    """A trace that appends a line per record to `path`; a reader can follow it.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - lives as long as the trace
    except OSError as error:
        raise ConfigError(f"the trace cannot be written: {error.strerror or error}: {path}") from error

    def write(record: dict[str, Any]) -> None:
        file.write(json.dumps(record) + "\n")

    return write
