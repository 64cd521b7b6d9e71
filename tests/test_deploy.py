"""scripts/deploy says flags that `specgguf serve` has, and names files that are there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from specgguf.cli.commands.serve import serve

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "scripts" / "deploy"
FLAGS = {flag for parameter in serve.params for flag in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("name", sorted(path.name for path in DEPLOY.iterdir()))
def test_flags_are_those_of_serve(name: str) -> None:
    text = (DEPLOY / name).read_text()
    text = text.replace("\\\n", " ")
    lines = [line for line in text.splitlines() if "specgguf serve" in line or '"specgguf", "serve"' in line]
    lines += [line for line in text.splitlines() if line.startswith("CMD ")]
    used = {flag for line in lines for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)}
    assert used, "no command was found"
    assert used <= FLAGS


def test_a_unit_starts_what_it_installs() -> None:
    unit = (DEPLOY / "specgguf.service").read_text().replace("\\\n", " ")
    (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    command, *arguments = shlex.split(start)
    assert command.endswith("/bin/specgguf")
    assert arguments[0] == "serve"
    (grace,) = re.findall(r"--grace (\d+)", start)
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(stop) >= int(grace) + 10, "systemd would kill it first"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")
def test_a_unit_is_one_to_systemd(tmp_path: Path) -> None:
    """Its program is not installed here; negative control: a word that systemd does not know is named."""
    unit = re.sub(
        r"^ExecStart=\S+", "ExecStart=/bin/true", (DEPLOY / "specgguf.service").read_text(), flags=re.MULTILINE
    )

    def said(text: str) -> str:
        (tmp_path / "specgguf.service").write_text(text)
        command = ["systemd-analyze", "verify", str(tmp_path / "specgguf.service")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr + done.stdout

    assert "specgguf.service" not in said(unit)
    assert "RestartSecond" in said(unit.replace("RestartSec=", "RestartSecond="))


def test_an_image_copies_what_is_there() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", image, re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source
