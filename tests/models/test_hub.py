"""References, the hub's protocol on the loopback, and every way in which they fail."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Pair
from specgguf.presets import ModelFile
from support.hubserver import COMMIT, HubServer

from specgguf.errors import DownloadError, ModelNotFound, SpecggufError
from specgguf.models import cache, hf_client, hparams, hub, inventory, remote_header

REPO = "org/Tiny-GGUF"


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees or touches the user's caches, token or offline switch."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "cache" / "models")
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hf_client, "_unreachable", {})
    monkeypatch.setattr(inventory, "home", lambda: tmp_path / "home")
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.delenv("LLAMA_CACHE", raising=False)


@pytest.fixture
def gguf(tiny_pair: Pair) -> bytes:
    return tiny_pair.target.read_bytes()


@pytest.fixture
def server(gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.add(REPO, "tiny-q4_k_m.gguf", gguf)
        server.add(REPO, "tiny-q8_0.gguf", gguf + b"\0" * 32)
        server.add(REPO, "README.md", b"words")
        yield server


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint at which nobody listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")


class Recorder:
    """A progress callback that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, what: str, done: int, total: int) -> None:
        self.calls.append((what, done, total))

    def of(self, what: str) -> list[int]:
        return [done for name, done, _ in self.calls if name == what]


# --- paths --------------------------------------------------------------------------------------------------


def test_a_path_is_itself(tiny_pair: Pair) -> None:
    assert hub.resolve(tiny_pair.target) == tiny_pair.target
    assert hub.resolve(str(tiny_pair.target), offline=True) == tiny_pair.target


def test_a_missing_file_names_its_neighbour(tiny_pair: Pair) -> None:
    wrong = tiny_pair.target.with_name("lama-target.gguf")
    with pytest.raises(ModelNotFound, match=r"no such file: .*lama-target") as caught:
        hub.resolve(wrong)
    assert "llama-target.gguf" in caught.value.hint


def test_a_folder_is_no_file(gguf: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a folder") as caught:
        hub.resolve(tmp_path)
    assert "no .gguf" in caught.value.hint
    (tmp_path / "inside.gguf").write_bytes(gguf)
    with pytest.raises(ModelNotFound, match="is a folder") as caught:
        hub.resolve(tmp_path)
    assert "inside.gguf" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"not a model at all", "not a GGUF file"),
        (b"", "not a GGUF file"),
        (b"GGUF", "ends inside its GGUF header"),
        (b"GGUF\x63\0\0\0" + b"\0" * 40, "version 99"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 60, "header is damaged"),
    ],
)
def test_what_is_no_gguf_is_refused_by_name(tmp_path: Path, data: bytes, fault: str) -> None:
    path = tmp_path / "some.gguf"
    path.write_bytes(data)
    with pytest.raises(SpecggufError, match=fault) as caught:
        hub.resolve(path)
    assert "some.gguf" in str(caught.value)


@pytest.mark.parametrize("missing", [1, 1000])
def test_a_truncated_file_is_refused(tmp_path: Path, gguf: bytes, missing: int) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(gguf[:-missing])
    with pytest.raises(SpecggufError, match=r"short.gguf is truncated: [\d,]+ of at least [\d,]+ bytes"):
        hub.resolve(path)


def test_a_split_model_needs_all_its_shards(tmp_path: Path, gguf: bytes) -> None:
    first = tmp_path / "m-00001-of-00002.gguf"
    first.write_bytes(gguf)
    with pytest.raises(ModelNotFound, match=r"a shard is missing: .*m-00002-of-00002.gguf"):
        hub.resolve(first)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(gguf)
    assert hub.resolve(first) == first


# --- references ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("org/repo", ("org/repo", "")),
        ("org/repo:Q4_K_M", ("org/repo", "Q4_K_M")),
        ("org/repo:sub/a-q8_0.gguf", ("org/repo", "sub/a-q8_0.gguf")),
        ("hf.co/org/re.po-1:q8_0", ("org/re.po-1", "q8_0")),
        ("https://huggingface.co/org/repo/", ("org/repo", "")),
    ],
)
def test_references_fall_apart_into_repo_and_quant(ref: str, parts: tuple[str, str]) -> None:
    assert hub.split_reference(ref) == parts


@pytest.mark.parametrize("ref", ["just-a-word", "a/b/c", "", "org/repo:", "~/x", "org/:q"])
def test_what_is_no_reference_is_refused(ref: str) -> None:
    with pytest.raises(ModelNotFound):
        hub.split_reference(ref)


FILES = [
    "README.md",
    "mmproj-q8_0.gguf",
    "m-Q8_0.gguf",
    "m-Q4_K_M.gguf",
    "m-Q4_K.gguf",
    "m-UD-Q4_K_XL.gguf",
    "big/m-BF16-00001-of-00002.gguf",
    "big/m-BF16-00002-of-00002.gguf",
]


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("", "m-Q4_K_M.gguf"),
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("Q4_K", "m-Q4_K.gguf"),
        ("Q8_0", "m-Q8_0.gguf"),
        ("UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("bf16", "big/m-BF16-00001-of-00002.gguf"),
        ("m-Q8_0.gguf", "m-Q8_0.gguf"),
        ("m-BF16-00001-of-00002.gguf", "big/m-BF16-00001-of-00002.gguf"),
        ("Q5_K_M", None),
        ("m-Q9.gguf", None),
    ],
)
def test_a_quant_means_one_file(wanted: str, file: str | None) -> None:
    assert hub.choose_file(FILES, wanted) == file


# --- the hub ------------------------------------------------------------------------------------------------


def test_a_quant_is_downloaded_once(server: HubServer, gguf: bytes) -> None:
    progress = Recorder()
    path = hub.resolve(f"{REPO}:q4_k_m", progress=progress)
    assert path.read_bytes() == gguf
    done = progress.of("tiny-q4_k_m.gguf")
    assert done == sorted(done)
    assert done[-1] == len(gguf)
    n = len(server.log)
    assert hub.resolve(f"{REPO}:q4_k_m") == path
    assert hub.resolve(REPO) == path
    assert len(server.log) == n, "what is cached needs no network"
    assert hub.resolve(f"{REPO}:tiny-q8_0.gguf").name == "tiny-q8_0.gguf"


def test_offline_takes_only_what_is_here(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hub.resolve(f"{REPO}:q8_0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    n = len(server.log)
    assert hub.resolve(f"{REPO}:q8_0") == path
    with pytest.raises(ModelNotFound, match="nothing is fetched now") as caught:
        hub.resolve(f"{REPO}:q4_k_m")
    assert "tiny-q8_0.gguf" in caught.value.hint
    assert len(server.log) == n


def test_the_token_goes_to_the_hub_and_nowhere_else(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.resolve(f"{REPO}:q4_k_m")
    remote_header.read(f"{REPO}:q8_0")
    sent = {r.path.split("/")[1] for r in server.log if "hf_secret" in r.token}
    assert "api" in sent
    assert "content" not in sent
    assert server.count("GET /content") >= 2


def test_all_shards_come(server: HubServer, gguf: bytes) -> None:
    for i in (1, 2):
        server.add(REPO, f"f16/big-f16-0000{i}-of-00002.gguf", gguf)
    path = hub.resolve(f"{REPO}:f16")
    assert path.name == "big-f16-00001-of-00002.gguf"
    assert path.with_name("big-f16-00002-of-00002.gguf").is_file()


def test_unknown_names_are_told_apart(server: HubServer) -> None:
    with pytest.raises(ModelNotFound, match="no repository org/None"):
        hub.resolve("org/None")
    with pytest.raises(ModelNotFound, match="has no 'Q5_K_M'") as caught:
        hub.resolve(f"{REPO}:Q5_K_M")
    assert "tiny-q4_k_m.gguf, tiny-q8_0.gguf" in caught.value.hint
    server.add("org/Safetensors", "model.safetensors", b"x")
    with pytest.raises(ModelNotFound, match="holds no GGUF"):
        hub.resolve("org/Safetensors")


def test_a_gated_repository_says_what_to_do(server: HubServer) -> None:
    server.gated.add(REPO)
    with pytest.raises(DownloadError, match="is gated") as caught:
        hub.resolve(f"{REPO}:q8_0")
    assert "HF_TOKEN" in caught.value.hint


def test_too_many_requests(server: HubServer) -> None:
    server.too_many = 1
    with pytest.raises(DownloadError, match="429"):
        hub.resolve(f"{REPO}:q8_0")


def test_a_cut_connection_is_resumed(server: HubServer, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _s: None)
    long = gguf + b"\1" * (12 << 20)  # the client writes chunks of 10 MiB
    server.add(REPO, "tiny-q6_k.gguf", long)
    server.cut_after = [11 << 20]
    assert hub.resolve(f"{REPO}:q6_k").read_bytes() == long
    assert f"bytes={10 << 20}-" in [r.range for r in server.log if r.method == "GET"]


def test_a_wrong_hash_is_not_kept(server: HubServer) -> None:
    server.forged.add("tiny-q8_0.gguf")
    with pytest.raises(DownloadError, match="wrong sha256"):
        hub.resolve(f"{REPO}:q8_0")
    assert hub.cached(f"{REPO}:q8_0") is None
    server.forged.clear()
    assert hub.resolve(f"{REPO}:q8_0").is_file()


@pytest.mark.usefixtures("nowhere")
def test_an_unreachable_hub_is_noticed_at_once() -> None:
    with pytest.raises(DownloadError, match=r"cannot reach http://127.0.0.1") as caught:
        hub.resolve(f"{REPO}:q8_0")
    assert "network" in caught.value.hint


def test_a_head_is_read_by_ranges(server: HubServer, tiny_chat: Pair) -> None:
    data = tiny_chat.target.read_bytes() + b"\0" * (8 << 20)
    server.add(REPO, "long-q6_k.gguf", data)
    found = remote_header.read(f"{REPO}:q6_k")
    assert found.path is None
    assert found.download_bytes == len(data)
    assert found.hparams.layer_bytes == hparams.of_file(tiny_chat.target).layer_bytes
    ranges = [r.range for r in server.log if r.range]
    assert ranges
    assert sum(int(r.split("-")[1]) + 1 - int(r[6:].split("-")[0]) for r in ranges) < len(data) / 2
    assert hub.cached(f"{REPO}:q6_k") is None


def test_a_server_that_gives_no_parts_is_not_read(server: HubServer, tiny_chat: Pair) -> None:
    """The status says so; a body of gigabytes is left unread (but for what the sockets take)."""
    server.add(REPO, "long-q6_k.gguf", tiny_chat.target.read_bytes() + bytes(64 << 20))
    server.whole = True
    with pytest.raises(
        DownloadError, match=r"gives no parts of files, so .*long-q6_k\.gguf cannot be looked"
    ) as caught:
        remote_header.read(f"{REPO}:q6_k")
    assert caught.value.hint.endswith(f"specgguf models pull {REPO}:long-q6_k.gguf")
    assert server.sent < 32 << 20


# --- a preset's model ---------------------------------------------------------------------------------------


def model(data: bytes, **changes: object) -> ModelFile:
    facts: dict[str, object] = {
        "file": "tiny-q4_k_m.gguf",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "repo": REPO,
        "revision": COMMIT,
    }
    return ModelFile(**{**facts, **changes})  # type: ignore[arg-type]


def test_a_model_comes_from_the_hub(server: HubServer, gguf: bytes) -> None:
    path = hub.resolve(model(gguf))
    n = len(server.log)
    assert hub.resolve(model(gguf)) == path
    assert hub.resolve(f"{REPO}:q4_k_m") == path
    assert len(server.log) == n


def test_a_model_is_held_to_its_hash(server: HubServer, gguf: bytes) -> None:
    wanted = model(gguf, sha256="0" * 64)
    with pytest.raises(DownloadError, match="wrong sha256"):
        hub.resolve(wanted)
    assert hub.cached(wanted) is None
    assert hub.cached(model(gguf)) is None


def test_a_plan_needs_no_full_read(server: HubServer, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another program left in the hub's cache is read in full once, when it is used, not when it is listed."""
    path = hub.resolve(f"{REPO}:q4_k_m")
    cache.note_of(hashlib.sha256(gguf).hexdigest()).unlink()
    read: list[Path] = []
    sha256_of = cache.sha256_of

    def counted(path: Path, *rest: object) -> str:
        read.append(path)
        return sha256_of(path)

    monkeypatch.setattr(cache, "sha256_of", counted)
    assert hub.cached(model(gguf), verify=False) == path
    assert read == []
    assert hub.resolve(model(gguf)) == hub.resolve(model(gguf)) == path
    assert len(read) == 1


@pytest.mark.usefixtures("nowhere")
def test_a_model_whose_hub_cannot_be_reached_says_what_else_serves(gguf: bytes) -> None:
    with pytest.raises(DownloadError, match=r"^cannot reach http://127.0.0.1") as caught:
        hub.resolve(model(gguf))
    assert "\n" not in str(caught.value)
    for way_out in ("HTTPS_PROXY", "HF_ENDPOINT", "-m", "--offline"):
        assert way_out in caught.value.hint


def test_offline_fetches_nothing(gguf: bytes) -> None:
    with pytest.raises(ModelNotFound, match="nothing is fetched now"):
        hub.resolve(model(gguf), offline=True)


@pytest.mark.parametrize(
    ("location", "is_hub"),
    [
        ("https://hub.example/a/b", True),
        ("https://HUB.example/a", True),
        ("https://hub.example.evil.org/a", False),
        ("https://hub.example@evil.org/a", False),
        ("http://hub.example/a", False),
        ("https://hub.example:444/a", False),
    ],
)
def test_hosts_are_compared_whole(location: str, is_hub: bool) -> None:
    """The token goes to the hub alone, not to a host whose name begins with the hub's."""
    assert (hf_client._origin(location) == hf_client._origin("https://hub.example")) is is_hub
