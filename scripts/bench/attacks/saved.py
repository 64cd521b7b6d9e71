"""What earlier runs have saved, looked at before a run that adds to it begins."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def load(file: Path | None, is_ours: Callable[[Json], bool]) -> Json:
    """The saved result; {} where there is none. One that this script could not add to ends the program.

    Args:
        is_ours: whether a result has the form that is needed; what is missing may raise.
    """
    if file is None or not file.exists():
        return {}
    try:
        found: Json = json.loads(file.read_text(encoding="utf-8"))
        if is_ours(found):
            return found
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    sys.exit(
        f"error: {file} holds no result that this run could be added to\n  give --save another file, or move it away"
    )
