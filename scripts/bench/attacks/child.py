"""`specgguf serve` as a child process, and what its system says of it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

STOP_S = 60.0
FLAGS = ("--port", "0", "--quiet", "-t", "1", "-c", "512", "--draft", "3")


@dataclass
class Child:
    """A running server.

    Attributes:
        url: where it answers.
    """

    process: subprocess.Popen[str]
    url: str

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return str(parts.hostname), int(parts.port or 80)

    def rss_mb(self) -> float | None:
        """Its resident memory; None where the system does not say."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return None
        return round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1)

    def health(self) -> str:
        """ "ok", or what is wrong with it."""
        if self.process.poll() is not None:
            return f"the server ended with {self.process.returncode}"
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=STOP_S) as answer:
                return "ok" if answer.status == 200 else f"health {answer.status}"
        except urllib.error.HTTPError as error:
            return f"health {error.code}: {error.read().decode(errors='replace')[:200]}"
        except OSError as error:
            return f"health: {error}"

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=STOP_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


@contextlib.contextmanager
def serving(model: str, draft_model: str | None, *flags: str) -> Iterator[Child]:
    """A server on a free port; it is told to stop at the end, and must."""
    pair = ["-m", model, "-d", draft_model or "ngram"]
    command = [sys.executable, "-P", "-m", "specgguf.cli.main", "serve", *pair, *FLAGS, *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            if not line.startswith("serving "):
                sys.exit(line + process.stderr.read())
            yield Child(process, line.split()[3].removesuffix("/v1"))
            process.terminate()
            process.communicate(timeout=STOP_S)
        finally:
            process.kill()
