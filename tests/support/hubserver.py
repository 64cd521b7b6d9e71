"""A model hub on the loopback, speaking as much of the Hugging Face hub's protocol as a download needs.

Repositories are plain bytes in memory. A file answers with a redirect to another host name, as the real hub
sends large files to its content network; ranges, ETags and the error codes are the real ones'. Knobs make it
misbehave: gate a repository, cut a connection, count requests down to 429, send other bytes than promised, or the
whole file where a part was asked for.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

CHUNK = 1 << 16
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Request:
    """What a client asked: method, path, the Range and whether it sent a token."""

    method: str
    path: str
    range: str
    token: str


@dataclass
class HubServer:
    """The server; a context manager.

    Attributes:
        files: (repo, file) -> bytes.
        gated: repositories whose terms were not accepted.
        cut_after: the next whole transfers break off after so many bytes, one entry each.
        too_many: how many requests to answer with 429.
        forged: files whose sha256 is announced wrongly.
        whole: whether ranges are ignored.
        sent: bytes of bodies that went out.
        log: every request, in order.
    """

    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    cut_after: list[int] = field(default_factory=list)
    too_many: int = 0
    forged: set[str] = field(default_factory=set)
    whole: bool = False
    sent: int = 0
    log: list[Request] = field(default_factory=list)

    def add(self, repo: str, file: str, data: bytes) -> None:
        self.files[repo, file] = data

    def sha256(self, repo: str, file: str) -> str:
        """What the server says; the truth unless the file is forged."""
        data = self.files[repo, file] + (b"!" if file in self.forged else b"")
        return hashlib.sha256(data).hexdigest()

    def count(self, pattern: str) -> int:
        """Requests whose "METHOD path" matches."""
        return sum(bool(re.search(pattern, f"{r.method} {r.path}")) for r in self.log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def content_url(self) -> str:
        return f"http://localhost:{self._http.server_port}"

    def __enter__(self) -> HubServer:
        hub = self

        class Handler(_Handler):
            server_of = hub

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.server_of
        token = self.headers.get("Authorization", "")
        hub.log.append(Request(self.command, self.path, self.headers.get("Range", ""), token))
        path = self.path.split("?")[0]
        if path == "/":
            return self._send(200, b"a hub")
        if hub.too_many > 0:
            hub.too_many -= 1
            return self._send(429, b"", {"Retry-After": "0"})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            return self._info(match[1], match[2] or "main")
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(match[1], match[2], match[3])
        if match := re.fullmatch(r"/content/([^/]+/[^/]+)/(.+)", path):
            return self._content(hub.files[match[1], match[2]])
        return self._send(404, b"")

    def _refused(self, repo: str, revision: str) -> bool:
        hub = self.server_of
        if repo not in {name for name, _ in hub.files}:
            self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif repo in hub.gated:
            self._send(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {repo} is restricted"})
        elif revision not in ("main", COMMIT):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return False
        return True

    def _info(self, repo: str, revision: str) -> None:
        hub = self.server_of
        if self._refused(repo, revision):
            return
        siblings = [
            {
                "rfilename": file,
                "size": len(data),
                "lfs": {"sha256": hub.sha256(repo, file), "size": len(data), "pointerSize": 134},
            }
            for (name, file), data in hub.files.items()
            if name == repo
        ]
        answer = {"id": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False, "downloads": 1}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _resolve(self, repo: str, revision: str, file: str) -> None:
        hub = self.server_of
        if self._refused(repo, revision):
            return
        if (repo, file) not in hub.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        facts = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Etag": f'"{hub.sha256(repo, file)}"',
            "X-Linked-Size": str(len(hub.files[repo, file])),
            "Location": f"{hub.content_url}/content/{repo}/{file}",
        }
        self._send(302, b"", facts)

    def _content(self, data: bytes) -> None:
        hub = self.server_of
        start, end = 0, len(data)
        match = None if hub.whole else re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match:
            start, end = int(match[1]), int(match[2]) + 1 if match[2] else len(data)
        part = data[start:end]
        extra = {"Accept-Ranges": "bytes"}
        if match:
            extra["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
        cut = hub.cut_after.pop(0) if hub.cut_after and self.command == "GET" else None
        self._send(206 if match else 200, part, extra, cut=cut)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self._write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)

    def _write(self, body: bytes) -> None:
        try:
            for at in range(0, len(body), CHUNK):
                self.wfile.write(body[at : at + CHUNK])
                self.server_of.sent += len(body[at : at + CHUNK])
        except ConnectionError:  # the client has enough
            self.close_connection = True
