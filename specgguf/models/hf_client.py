"""Talking to the Hugging Face hub, through huggingface_hub, with errors in plain words.

Lists a repository, downloads one file into the hub's own cache (resumable), and looks into that cache without
importing anything. An unreachable hub is noticed in seconds, not after the client's minutes of retrying.
Knows nothing of quantisations or presets.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import io
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from specgguf.errors import DownloadError, ModelNotFound, SpecggufError

from .cache import Progress

CONNECT_S = 6.0  # how long the first answer of the hub may take
_TRUE = {"1", "ON", "YES", "TRUE"}
FORGET_S = 60.0  # an endpoint that did not answer is not asked again for so long
_unreachable: dict[str, tuple[float, str]] = {}  # endpoint -> when it did not answer, and why


class HashError(DownloadError):
    """What arrived is not what was promised."""


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) forbids connections."""
    return any(os.environ.get(k, "").upper() in _TRUE for k in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def _origin(url: str) -> tuple[str, str]:
    """Scheme and host, compared whole: another host's name may begin with the hub's."""
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


def cache_folder() -> Path:
    """The hub's cache, by the same variables that huggingface_hub reads."""
    if folder := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(folder).expanduser()
    home = os.environ.get("HF_HOME")
    base = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return base.expanduser() / "hub"


def snapshots(repo: str) -> list[Path]:
    """The cached snapshots of a repository: the one that `main` names first, then the newest."""
    if not repo:
        return []
    folder = cache_folder() / f"models--{repo.replace('/', '--')}"
    main = ""
    with contextlib.suppress(OSError):
        main = (folder / "refs" / "main").read_text().strip()
    try:
        found = [p for p in (folder / "snapshots").iterdir() if p.is_dir()]
        return sorted(found, key=lambda p: (p.name != main, -p.stat().st_mtime))
    except OSError:
        return []


def list_files(repo: str, revision: str = "main") -> tuple[str, dict[str, str]]:
    """The commit that `revision` means now, and every file with its sha256 ("" where the hub tells none).

    Raises:
        ModelNotFound, DownloadError: see `_plain`.
    """
    _require_reachable()
    from huggingface_hub import HfApi

    try:
        with _quiet():
            info = HfApi(endpoint=endpoint()).model_info(repo, revision=revision, files_metadata=True, timeout=30)
    except Exception as error:
        raise _plain(error, repo) from error
    files = {s.rfilename: str(s.lfs.sha256) if s.lfs else "" for s in info.siblings or []}
    return info.sha or revision, files


def download(repo: str, file: str, revision: str, *, progress: Progress | None = None) -> Path:
    """`file` in the hub's cache; an interrupted download is resumed.

    Raises:
        ModelNotFound, DownloadError: see `_plain`.
    """
    _require_reachable()
    from huggingface_hub import hf_hub_download

    extra: dict[str, Any] = {}
    if "tqdm_class" in inspect.signature(hf_hub_download).parameters:
        extra["tqdm_class"] = _bar(file.rsplit("/", 1)[-1], progress)
    try:
        with _quiet():
            return Path(
                hf_hub_download(
                    repo, file, revision=revision, endpoint=endpoint(), cache_dir=str(cache_folder()), **extra
                )
            )
    except Exception as error:
        raise _plain(error, repo, file) from error


class RangeFile(io.RawIOBase):
    """A file on the hub, read by range requests: seekable, read-only, a few kilobytes per read at the least.

    Raises:
        ModelNotFound, DownloadError: see `_plain`.
    """

    def __init__(self, repo: str, file: str, revision: str) -> None:
        _require_reachable()
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        self._what = (repo, file)
        self._at = 0
        url = hf_hub_url(repo, file, revision=revision, endpoint=endpoint())
        try:
            with _quiet():
                facts = get_hf_file_metadata(url, timeout=30)
        except Exception as error:
            raise _plain(error, repo, file) from error
        self.size = int(facts.size or 0)
        self._url = facts.location
        self._is_hub = _origin(facts.location) == _origin(endpoint())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the current place; the number of bytes read."""
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

        n = min(len(buffer), self.size - self._at)
        if n <= 0:
            return 0
        headers = build_hf_headers() if self._is_hub else {}  # a signed address wants no token of ours
        headers["Range"] = f"bytes={self._at}-{self._at + n - 1}"
        try:
            with _streamed(self._url, headers) as response:
                hf_raise_for_status(response)
                if response.status_code != 206:  # the whole file follows: leave it unread
                    what = "/".join(self._what)
                    raise DownloadError(
                        f"the server gives no parts of files, so {what} cannot be looked into",
                        hint=f"download it first: specgguf models pull {':'.join(self._what)}",
                    )
                data = (response.read() if hasattr(response, "read") else response.content)[:n]
        except DownloadError:
            raise
        except Exception as error:
            raise _plain(error, *self._what) from error
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _streamed(url: str, headers: dict[str, str]) -> Any:
    """A request whose body waits to be read, as a context manager: huggingface_hub 1 has a client of httpx, and
    before that it had one of requests."""
    from huggingface_hub import get_session

    session: Any = get_session()
    if callable(getattr(session, "stream", None)):
        return session.stream("GET", url, headers=headers, timeout=30)
    return session.get(url, headers=headers, timeout=30, stream=True)


def _require_reachable() -> None:
    """One short request: huggingface_hub would retry a dead network for half a minute."""
    base = endpoint()
    since, reason = _unreachable.get(base, (0.0, ""))
    if not reason or time.monotonic() - since > FORGET_S:
        from huggingface_hub import get_session

        try:
            get_session().head(base, timeout=CONNECT_S)
            return
        except Exception as error:
            reason = _reason(error)
            _unreachable[base] = (time.monotonic(), reason)
    raise DownloadError(
        f"cannot reach {base}: {reason}",
        hint="check the network (HTTPS_PROXY), or name another hub with HF_ENDPOINT; a file that was brought here"
        " by other means is named with -m, and --offline takes only what is here",
    )


def _plain(error: Exception, repo: str, file: str = "") -> SpecggufError:
    """Any failure of huggingface_hub as one of ours, in one line."""
    from huggingface_hub import errors

    what = f"{repo}/{file}" if file else repo
    chain = list(_causes(error))
    status = next((s for e in chain if (s := _status(e))), 0)
    if any("Invalid credentials" in str(getattr(e, "server_message", "") or e) for e in chain):
        return DownloadError("the hub does not accept this HF_TOKEN", hint="make a new token, or unset HF_TOKEN")
    if any(isinstance(e, errors.GatedRepoError) for e in chain) or status == 403:
        return DownloadError(
            f"{repo} is gated: its makers want their terms accepted first",
            hint=f"accept them on {endpoint()}/{repo}, then set HF_TOKEN to a token of your account",
        )
    if any(isinstance(e, errors.RepositoryNotFoundError) for e in chain) or status == 401:
        return ModelNotFound(
            f"there is no repository {repo} on {endpoint()}, or it is private",
            hint="check the spelling; for a private one set HF_TOKEN",
        )
    if any(_is_missing(e) for e in chain):
        return ModelNotFound(f"{what} is not on the hub any more", hint="look at what the repository has now")
    if status == 429:
        return DownloadError(
            f"the hub asks for fewer requests (429) for {what}", hint="wait a few minutes, or set HF_TOKEN"
        )
    if any(isinstance(e, OSError) and e.errno == errno.ENOSPC for e in chain):
        return DownloadError(f"the disk is full: {what}", hint=f"make room in {cache_folder()}")
    reason = f"the server answered {status}" if status else _reason(error)
    return DownloadError(f"{what} could not be downloaded: {reason}", hint="try again: it resumes where it stopped")


def _is_missing(error: BaseException) -> bool:
    """Whether the hub said that a revision or file does not exist (and not: the cache has none either)."""
    from huggingface_hub import errors

    local = isinstance(error, errors.LocalEntryNotFoundError)
    return isinstance(error, errors.RevisionNotFoundError | errors.EntryNotFoundError) and not local


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen = 0
    while error is not None and seen < 10:
        yield error
        error, seen = error.__cause__ or error.__context__, seen + 1


def _status(error: BaseException) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _reason(error: BaseException) -> str:
    """The innermost cause's words, on one line."""
    last = list(_causes(error))[-1]
    text = " ".join(str(last).split()) or type(last).__name__
    return text if len(text) <= 160 else text[:157] + "..."


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep huggingface_hub's own remarks off the terminal for a while."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _bar(label: str, progress: Progress | None) -> type[Any]:
    """A tqdm class that draws nothing and reports to `progress`."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    best = 0  # a chunked transfer shows two bars for one file: report whichever is ahead

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **keywords: Any) -> None:
            self._done = int(keywords.get("initial") or 0)
            self._all = int(keywords.get("total") or 0)
            super().__init__(*args, **{**keywords, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal best
            self._done += int(n or 0)
            if progress and self._done > best:
                best = self._done
                progress(label, best, self._all)
            return None

    return Bar
