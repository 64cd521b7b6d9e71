"""`models`, `presets`, `fit` and `doctor`, as a person types them; and a pair from the hub to an answer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Pair
from specgguf.cli.options import SETTINGS
from specgguf.cli.terminal.progress import human_bytes
from support import tiny
from support.cli_support import Run, in_process, private_home
from support.hubserver import HubServer

from specgguf import presets
from specgguf.errors import WorkerLost
from specgguf.fit import hardware, instructions
from specgguf.fit.hardware import Machine, described
from specgguf.models import cache, hf_client, inventory
from specgguf.native import devices
from specgguf.native.rpc import wire

REPO = "org/Tiny-GGUF"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in private_home(tmp_path).items():
        monkeypatch.setenv(name, value)
    names = ("HF_HOME", "HF_HUB_OFFLINE", "HF_TOKEN", "OLLAMA_MODELS", "LLAMA_CACHE", *(s.env for s in SETTINGS))
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(inventory, "home", lambda: tmp_path)
    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "cache" / "specgguf" / "models")
    monkeypatch.setattr(presets, "user_folder", lambda: tmp_path / "config" / "specgguf" / "presets")
    monkeypatch.setattr(hf_client, "_unreachable", {})
    return tmp_path


@pytest.fixture
def run(home: Path) -> Run:
    return in_process


@pytest.fixture
def server(tiny_chat: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.add(REPO, "tiny-f32.gguf", tiny_chat.target.read_bytes())
        server.add(REPO, "tiny-draft-f16.gguf", tiny_chat.draft.read_bytes())
        yield server


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """This machine, for once, has a graphics card."""
    machine = described(device="RTX 4090")
    monkeypatch.setattr(hardware, "this_machine", lambda: machine)
    return machine


# --- models -------------------------------------------------------------------------------------------------


def test_pull_prints_the_path_and_nothing_else_on_stdout(run: Run, server: HubServer) -> None:
    first = run("models", "pull", f"{REPO}:f32")
    assert first.code == 0
    path = Path(first.out.strip())
    assert path.read_bytes() == server.files[REPO, "tiny-f32.gguf"]
    assert "tiny-f32.gguf" in first.err
    n = len(server.log)
    again = run("models", "pull", f"{REPO}:f32", "--offline")
    assert (again.code, again.out, again.err) == (0, first.out, "")
    assert len(server.log) == n


def test_what_was_pulled_is_listed_verified_and_removed(run: Run, server: HubServer) -> None:
    name = f"{REPO}:tiny-f32.gguf"
    path = Path(run("models", "pull", f"{REPO}:f32").out.strip())
    assert run("models", "list").out.startswith(f"{name}  ")
    about = json.loads(run("models", "list", "--json").out)
    assert (about["name"], about["path"]) == (name, str(path))
    assert run("models", "verify").out == f"{name}: ok\n"
    blob = path.resolve()
    blob.write_bytes(blob.read_bytes()[:-4] + b"oops")
    damaged = run("models", "verify", name)
    assert damaged.code == 1
    assert "damaged: another sha256" in damaged.out
    gone = run("models", "rm", name)
    assert gone.code == 0
    assert "freed" in gone.err
    assert not blob.exists()
    assert "no model is here yet" in run("models", "list").err


def test_what_others_brought_is_not_removed(run: Run, home: Path, tiny_chat: Pair) -> None:
    path = home / ".lmstudio" / "models" / "maker" / "repo" / "x.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(tiny_chat.target.read_bytes())
    assert "LM Studio" in run("models", "list").out
    refused = run("models", "rm", "maker/repo:x.gguf")
    assert refused.code == 1
    assert "by LM Studio" in refused.err
    assert path.exists()
    assert "nobody promised a hash" in run("models", "verify", "x.gguf").out


def test_an_unknown_model_is_guessed(run: Run) -> None:
    wrong = run("models", "pull", "dmeo")
    assert wrong.code == 1
    assert "hint: did you mean 'demo'?" in wrong.err
    assert wrong.out == ""
    assert "no model 'x' is here" in run("models", "rm", "x").err


def test_pair_says_which_drafts_match_and_why_others_do_not(run: Run, home: Path, tiny_chat: Pair) -> None:
    folder = home / "cache" / "llama.cpp"
    folder.mkdir(parents=True)
    (folder / "target.gguf").write_bytes(tiny_chat.target.read_bytes() + b"\0" * 400_000)
    (folder / "draft.gguf").write_bytes(tiny_chat.draft.read_bytes())
    tiny.write_llama(folder / "numbers.gguf", tiny.numbered(40))  # hardly a token in common
    ran = run("models", "pair", "target.gguf")
    lines = ran.out.splitlines()
    assert lines[0].split()[:4] == ["draft.gguf", lines[0].split()[1], "kB", "matches;"]
    assert "bos token" in lines[1]
    (folder / "draft.gguf").unlink()
    assert "-d ngram" in run("models", "pair", "target.gguf").err


def test_pair_ranks_drafts_of_another_vocabulary_behind_the_same(run: Run, home: Path, tiny_chat: Pair) -> None:
    folder = home / "cache" / "llama.cpp"
    folder.mkdir(parents=True)
    (folder / "target.gguf").write_bytes(tiny_chat.target.read_bytes() + b"\0" * 400_000)
    (folder / "same.gguf").write_bytes(tiny_chat.draft.read_bytes() + b"\0" * 1000)
    tiny.write_llama(folder / "other.gguf", tiny.byte_level([" the", "ing"]))
    lines = run("models", "pair", "target.gguf").out.splitlines()
    assert lines[0].startswith("same.gguf")
    outlook = r"; (about \d\.\d\dx|plain decoding is as fast)$"
    assert re.search(r"^same\.gguf .* matches" + outlook, lines[0])
    assert re.search(r"^other\.gguf .* another vocabulary: \d+% of its tokens are the target's" + outlook, lines[1])
    for more in ((), ("--measure",)):
        ran = run("models", "pair", "target.gguf", "--json", *more)
        rows = [json.loads(line) for line in ran.out.splitlines()]
        assert rows[0]["share"] == 1.0 > rows[1]["share"] > 0.5
        assert all(row["speed_up"] >= 1.0 for row in rows), "measured, or by bytes"
        assert "expected ones, from" in run("models", "pair", "target.gguf", *more).err


def test_a_draft_is_slimmed_and_drafts_for_its_target(run: Run, home: Path) -> None:
    """By name, into our own folder; listed, paired, and refused where it makes no sense."""
    folder = home / "cache" / "llama.cpp"
    folder.mkdir(parents=True)
    vocab = tiny.byte_level([f" word{i}" for i in range(80)])
    tiny.write_llama(folder / "draft.gguf", vocab)
    (folder / "target.gguf").write_bytes((folder / "draft.gguf").read_bytes() + b"\0" * 400_000)
    ran = run("models", "slim", "draft.gguf", "--vocab-size", "300")
    assert ran.code == 0, ran.err
    path = Path(ran.out.strip())
    assert path.is_file()
    assert path.name == "draft-slim.gguf"
    assert "320 of" in ran.err
    assert "keep that file" in ran.err
    assert "draft-slim.gguf" in run("models", "list").out
    lines = run("models", "pair", "target.gguf").out.splitlines()
    assert [line.split()[0] for line in lines if "matches" in line] == ["draft-slim.gguf", "draft.gguf"]
    assert "slimmed: " in lines[0]
    assert run("models", "slim", "draft-slim.gguf").code == 1
    pair = ("-m", str(folder / "target.gguf"), "-d", str(path))
    kept = f"slimmed: proposes 320 of {len(vocab)} tokens; embeddings are read row by row from draft.gguf"
    assert kept in run("fit", *pair).out
    assert kept in run("doctor", *pair, "-t", "1").out
    assert run("presets", "save", "mine", *pair).code == 0
    assert kept in run("fit", "-p", "mine").out
    assert kept in run("doctor", "-p", "mine", "-t", "1").out
    assert "such as 32k" in run("models", "slim", "draft.gguf", "--vocab-size", "big").err


# --- presets ------------------------------------------------------------------------------------------------


def test_presets_are_listed_and_shown_without_a_network(run: Run) -> None:
    listed = run("presets").out.splitlines()
    assert len(listed) == 1 + len(presets.names())
    shown = run("presets", "show", "gpu-2x24gb").out
    for part in ("2 × graphics card", "not an open-source license", "42,520,398,816 bytes", "experimental"):
        assert part in shown
    about = json.loads(run("presets", "show", "gpu-24gb", "--json").out)
    assert about["model"]["bytes"] == 19762149024
    rows = [json.loads(line) for line in run("presets", "list", "--json").out.splitlines()]
    assert {row["name"] for row in rows} == set(presets.names())


def test_a_pair_is_saved_used_and_removed(run: Run, tiny_chat: Pair) -> None:
    save = ["presets", "save", "mine", "-m", str(tiny_chat.target), "-d", str(tiny_chat.draft)]
    assert run(*save, "-c", "2048", "--temp", "0.6", "--draft-max", "3", "--thinking", "off").code == 0
    mine = presets.load("mine")
    assert mine.model == str(tiny_chat.target.resolve())
    assert (mine.n_ctx, mine.draft_max, mine.thinking, dict(mine.sampling)) == (
        2048,
        3,
        False,
        {"temperature": 0.6},
    )
    assert run("fit", "-p", "mine").code == 0
    again = run(*save)
    assert again.code == 2
    assert "--force" in again.err
    assert run(*save, "--force").code == 0
    assert run("presets", "rm", "mine").code == 0
    assert "mine" not in presets.names()
    assert "comes with specgguf" in run("presets", "rm", "demo").err


@pytest.mark.parametrize("name", ["Mine", "a b", "../x", ""])
def test_odd_names_are_refused(run: Run, home: Path, tiny_chat: Pair, name: str) -> None:
    assert run("presets", "save", name, "-m", str(tiny_chat.target)).code == 2
    assert not list(home.rglob("*.toml"))


def test_a_preset_with_heads_is_listed_and_shown(run: Run) -> None:
    rows = {row["name"]: row for row in (json.loads(s) for s in run("presets", "list", "--json").out.splitlines())}
    assert rows["gpu-8gb-heads"]["memory_mib"] == 6271
    assert rows["gpu-8gb-heads"]["download_bytes"] == 5868826976
    shown = run("presets", "show", "gpu-8gb-heads").out
    assert re.search(r"^draft +heads$", shown, re.MULTILINE)
    assert "experimental" in shown
    assert "Not run: " in shown


def write_reference(home: Path, ref: str) -> None:
    path = home / "config" / "specgguf" / "presets" / "mine.toml"
    path.parent.mkdir(parents=True)
    path.write_text(f'summary = "of my own"\nmodel = "{ref}"\ndraft_model = "ngram"\n')


def test_what_is_not_known_of_a_reference_is_not_shown_as_nothing(run: Run, home: Path) -> None:
    write_reference(home, f"{REPO}:F32")
    row = next(line for line in run("presets", "list").out.splitlines() if line.startswith("mine"))
    assert row.split()[:4] == ["mine", "chat", "?", "?"]
    assert run("presets", "show", "mine").out.count("? by the formula") == 1
    assert '"download_bytes": null' in run("presets", "list", "--json").out


def test_a_reference_in_a_preset_is_not_downloaded_unasked(
    run: Run, home: Path, server: HubServer, tiny_chat: Pair
) -> None:
    write_reference(home, f"{REPO}:F32")
    refused = run("chat", "-p", "mine", "--max-tokens", "4", "Hi")
    assert refused.code != 0
    assert "nobody is here to ask" in refused.err
    assert f"preset mine needs {REPO}:F32" in refused.err
    size = tiny_chat.target.stat().st_size
    assert f"{human_bytes(size)} to download" in refused.err
    assert not list(home.rglob("*.gguf")), "only its header was read"
    allowed = run("chat", "-p", "mine", "--yes", "--max-tokens", "4", "Hi")
    assert allowed.code == 0, allowed.err
    assert list(home.rglob("*.gguf"))
    again = run("chat", "-p", "mine", "--max-tokens", "4", "Hi")
    assert again.code == 0
    assert "to download" not in again.err


def test_what_a_person_typed_beside_a_preset_is_not_asked_for(
    run: Run, home: Path, server: HubServer, tiny_chat: Pair
) -> None:
    write_reference(home, str(tiny_chat.target))
    ran = run("chat", "-p", "mine", "-d", f"{REPO}:F16", "--max-tokens", "4", "Hi")
    assert ran.code == 0, ran.err


# --- fit ----------------------------------------------------------------------------------------------------


def test_fit_counts_heads_and_the_states_of_a_preset(run: Run) -> None:
    ran = run("fit", "-p", "gpu-8gb-heads", "--vram", "8GB")
    assert ran.code == 0
    assert re.search(r"^target KV cache, states +479 ", ran.out, re.MULTILINE)
    assert re.search(r"^heads KV cache +34 ", ran.out, re.MULTILINE)
    about = json.loads(run("fit", "-p", "gpu-8gb-heads", "--vram", "8GB", "--json").out)
    assert (about["drafts"], about["prediction_heads"]) == ("heads", 1)
    plain = json.loads(run("fit", "-p", "gpu-8gb-heads", "-d", "none", "--vram", "8GB", "--json").out)
    assert about["target"]["kv"] - plain["target"]["kv"] == 3 * 52690944, "nothing drafts: one state is enough"


def test_fit_shows_what_goes_where(run: Run) -> None:
    ran = run("fit", "-p", "gpu-24gb", "--device", "RTX 4090", "--predict")
    assert ran.code == 0
    assert re.search(r"^target weights +19,32", ran.out, re.MULTILINE)
    assert "fits; so does a context of up to" in ran.out
    assert "a prediction, nothing was run" in ran.out
    assert "drafting pays when more than" in ran.out


def test_fit_says_what_to_change_and_exits_with_1(run: Run) -> None:
    ran = run("fit", "-p", "gpu-24gb", "--vram", "16GB")
    assert ran.code == 1
    assert "does not fit. Cheapest change: " in ran.out
    assert "-ngl " in ran.out
    about = json.loads(run("fit", "-p", "gpu-24gb", "--vram", "16GB", "--json").out)
    assert about["fits"] is False
    assert "-ngl" in about["change"]["flags"]


def test_fit_takes_files_and_flags(run: Run, tiny_chat: Pair) -> None:
    pair = ["-m", str(tiny_chat.target), "-d", str(tiny_chat.draft)]
    small, large = (json.loads(run("fit", *pair, "-c", c, "--json").out) for c in ("512", "2048"))
    assert large["target"]["host_kv"] == 4 * small["target"]["host_kv"]
    assert large["draft"]["host_kv"] == 4 * small["draft"]["host_kv"]
    exact = json.loads(run("fit", *pair, "--exact", "--json").out)
    assert exact["target"]["host_compute"] > 0
    alone = json.loads(run("fit", *pair[:2], "-d", "none", "-c", "0", "--json").out)
    assert alone["draft"] is None
    assert alone["n_ctx"] == alone["n_ctx_max"]


@pytest.fixture
def lending(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with four GiB on every address but one."""

    def ask(endpoint: wire.Endpoint, *, timeout_s: float = 0) -> wire.WorkerReport:
        if endpoint.host == "gone":
            raise WorkerLost(f"worker {endpoint} does not answer: no answer", hint="start it")
        return wire.WorkerReport(endpoint, "7.0.0", (wire.WorkerDevice(4 * 2**30, 8 * 2**30),), 0.00125)

    monkeypatch.setattr(wire, "ask", ask)


def test_fit_counts_the_caches_of_several_at_once(run: Run, tiny_chat: Pair) -> None:
    pair = ["-m", str(tiny_chat.target), "-d", str(tiny_chat.draft), "-c", "1008"]
    one, four, little = (
        json.loads(run("fit", *pair, *more, "--json").out)["target"]["host_kv"]
        for more in ([], ["--parallel", "4"], ["--parallel", "4", "--cache-tokens", "2048"])
    )
    each = run("fit", *pair, "--parallel", "4", "--json").json
    assert (each["n_ctx"], each["n_parallel"], each["change"]) == (1008, 4, None)
    assert 1008 <= each["n_ctx_max"] <= run("fit", *pair, "--json").json["n_ctx_max"]
    assert 3.9 * one <= four <= 4.2 * one, "and a few cells beside each"
    assert 1.9 * one <= little <= 2.1 * one
    said = run("fit", *pair, "--parallel", "4").out
    assert re.search(r"fits; so does a context of up to \d+ tokens for each of 4", said)
    refused = run("fit", *pair, "--cache-tokens", "100")
    assert refused.code == 1
    assert "--parallel N says how many" in refused.err


@pytest.mark.usefixtures("lending")
def test_fit_shows_each_worker_and_what_stays_here(run: Run, tiny_chat: Pair) -> None:
    model = ["-m", str(tiny_chat.target), "-d", "none"]
    spread = [*model, "--rpc", "a,b:5", "--tensor-split", "0,1,1"]
    ran = run("fit", *spread)
    assert ran.code == 0
    assert re.search(r"a:50052 +1 +\d+ +4,295 +1\.25 ms", ran.out)
    alone, about = (json.loads(run("fit", *arguments, "--json").out) for arguments in (model, spread))
    assert [(w["worker"], w["layers"], w["fits"]) for w in about["workers"]] == [("a:50052", 1, True), ("b:5", 1, True)]
    assert about["target"]["host_kv"] == 0 < alone["target"]["host_kv"]
    assert 0 < about["target"]["host_weights"] < alone["target"]["host_weights"]
    assert alone["workers"] == []


@pytest.mark.usefixtures("lending")
def test_a_worker_that_does_not_answer_is_one_line(run: Run, tiny_chat: Pair) -> None:
    model = ["-m", str(tiny_chat.target), "-d", "none"]
    ran = run("fit", *model, "--rpc", "a,gone:1")
    assert ran.err.splitlines() == ["error: worker gone:1 does not answer: no answer", "  hint: start it"]
    report = json.loads(run("doctor", *model, "--rpc", "a,gone:1", "--no-speed", "--json").out)
    assert report["machine"]["worker a:50052"] == "4.3 GB of 8.6 GB free; a round trip takes 1.25 ms"
    said = {warning["text"]: warning["line"] for warning in report["warnings"]}
    assert said["worker gone:1 does not answer: no answer"] == "start it"


@pytest.mark.parametrize("value", ["a:b", "a,a", "", "http://a:1"])
def test_what_is_no_worker_is_refused_by_flag(run: Run, value: str) -> None:
    ran = run("fit", "--rpc", value)
    assert ran.code == 2
    assert "--rpc-servers: rpc_servers: " in ran.err
    assert ran.err.count("\n") == 2


def test_fit_reads_a_head_on_the_hub(run: Run, server: HubServer) -> None:
    about = json.loads(run("fit", "-m", f"{REPO}:f32", "-d", "none", "--json").out)
    assert about["fits"]
    assert run("models", "list").out == ""


def test_auto_says_why(run: Run, card: Machine) -> None:
    ran = run("fit")
    assert "preset gpu-24gb: " in ran.err
    assert "RTX 4090" in ran.err
    assert "Qwen3-32B" in ran.out


def test_a_large_download_is_never_started_unasked(run: Run, card: Machine) -> None:
    ran = run("chat", "-p", "auto", "hello")
    assert ran.code == 1
    assert "20.4 GB to download" in ran.err
    assert "hint: specgguf chat -p gpu-24gb --yes" in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    "arguments",
    [["--vram", "lots"], ["--device", "RTX 9999"], ["--vram", "8GB", "--unified", "8GB"], ["-p", "none-such"]],
    ids=str,
)
def test_fit_refuses_by_name(run: Run, arguments: list[str]) -> None:
    ran = run("fit", *arguments)
    assert ran.code == 2
    assert ran.err.startswith("error: ")


# --- doctor -------------------------------------------------------------------------------------------------


def test_doctor_measures_the_pair(run: Run, tiny_chat: Pair) -> None:
    ran = run("doctor", "-m", str(tiny_chat.target), "-d", str(tiny_chat.draft), "-t", "1", "--json")
    report = json.loads(ran.out)
    assert report["versions"]["llama-cpp-python"]
    assert report["pair"]["rollback"] == {"target": "plain", "draft": "plain"}
    assert all(s > 0 for s in report["pair"]["verify_s"].values())
    assert ran.code == int(any(warning["is_fault"] for warning in report["warnings"]))


def test_doctor_measures_a_presets_pair(run: Run, home: Path, tiny_chat: Pair) -> None:
    """Also what a preset says of drafting, which is no keyword of the models."""
    saved = run("presets", "save", "mine", "-m", str(tiny_chat.target), "-d", str(tiny_chat.draft), "--draft-max", "3")
    assert saved.code == 0, saved.err
    report = json.loads(run("doctor", "-p", "mine", "-t", "1", "--json").out)
    assert report["pair"]["target"] == tiny_chat.target.name, report["warnings"]


def test_doctor_warns_with_the_line_to_type(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "unused_gpu", lambda _machine: "CUDA")
    ran = run("doctor", "-t", "999", "--type-k", "q8_0", "--no-flash-attn", "--no-speed")
    assert ran.code == 1
    for part in ("built for the CPU alone", "-DGGML_CUDA=on", "999 threads", "needs flash attention", "--flash-attn"):
        assert part in ran.out


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """processor("CPU : AVX = 1 | ") -> one with AVX2, beside a llama.cpp that says so of itself."""
    monkeypatch.setattr(instructions, "processor_flags", lambda: {"avx", "fma", "avx2"})

    def build(said: str) -> None:
        monkeypatch.setattr(devices, "build_info", lambda: ("0.3.36", said))

    return build


def test_doctor_names_the_instruction_sets_that_the_build_leaves_unused(
    run: Run, processor: Callable[[str], None]
) -> None:
    processor("CPU : AVX = 1 | LLAMAFILE = 1 | ")
    ran = run("doctor", "--no-speed")
    assert ran.code == 0, "a remark is no fault"
    said = "· llama.cpp was compiled without FMA, AVX2: what runs on the CPU is slower than it could be\n"
    assert f'{said}    CMAKE_ARGS="-DGGML_NATIVE=on' in ran.out
    report = json.loads(run("doctor", "--no-speed", "--json").out)
    assert report["instruction_sets"] == {"used": ["AVX"], "unused": ["FMA", "AVX2"]}
    assert "-DGGML_NATIVE=on" in report["warnings"][0]["line"]


def test_doctor_says_nothing_of_instruction_sets_that_are_all_used(run: Run, processor: Callable[[str], None]) -> None:
    processor("CPU : AVX = 1 | AVX2 = 1 | FMA = 1 | ")
    assert "compiled without" not in run("doctor", "--no-speed").out
    assert json.loads(run("doctor", "--no-speed", "--json").out)["instruction_sets"]["unused"] == []


def test_doctor_does_without_a_pair(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("doctor")
    assert ran.code == 0, "a remark is no fault"
    assert "no pair was measured: no preset's models are on this machine" in ran.out


# --- from the hub to an answer ------------------------------------------------------------------------------


def test_a_pair_goes_from_the_hub_to_an_answer(home: Path, server: HubServer) -> None:
    """The real program, in processes of its own: pull both models, then chat with them, offline."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "SPECGGUF_"))}
    env = {**kept, **private_home(home), "HF_HUB_CACHE": str(home / "hub"), "HF_ENDPOINT": server.url}

    def specgguf(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "specgguf.cli.main", *arguments]
        done = subprocess.run(command, env={**env, **more}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    pulled = specgguf("models", "pull", f"{REPO}:f32", f"{REPO}:tiny-draft-f16.gguf")
    assert len(pulled.stdout.splitlines()) == 2
    n = len(server.log)
    pair = ["-m", f"{REPO}:f32", "-d", f"{REPO}:tiny-draft-f16.gguf"]
    answer = specgguf(
        "chat",
        *pair,
        "--draft",
        "3",
        "--temp",
        "0",
        "--max-tokens",
        "24",
        "-c",
        "512",
        "-t",
        "1",
        "Hi",
        HF_HUB_OFFLINE="1",
    )
    assert answer.stdout.strip()
    assert re.search(r"draft \d+/\d+ accepted", answer.stderr)
    assert len(server.log) == n
