"""The lock of an open conversation: two programs never write the same one. It knows names, not what is in a file."""

from __future__ import annotations

import os
from pathlib import Path

from specgguf.errors import Busy


class Lock:
    """Held while a conversation is open. The kernel lets go of it when the program dies."""

    def __init__(self, path: Path, name: str) -> None:
        """`path`: the lock's own file. Raises Busy when another program has the conversation `name` open."""
        import fcntl

        self._path = path
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._fd)
                raise Busy(
                    f"the conversation '{name}' is open in another terminal",
                    hint="leave it there, or go on with another one: --resume NAME",
                ) from error
            if os.fstat(self._fd).st_nlink:
                return
            os.close(self._fd)  # its last holder removed it between our two calls

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give it up."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)
