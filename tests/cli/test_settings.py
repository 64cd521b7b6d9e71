"""Where a setting comes from: flag > variable > file > preset > default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from specgguf.cli import exits
from specgguf.cli.options import BY_NAME, SETTINGS
from specgguf.cli.settings import READ_ELSEWHERE, Settings, gather, unknown_variables
from support.cli_support import Run, home, run

from specgguf.errors import ConfigError

__all__ = ["home", "run"]  # fixtures


def write_config(home: Path, text: str) -> Path:
    path = home / "config" / "specgguf" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_precedence(home: Path) -> None:
    path = write_config(home, 'temperature = 0.1\ntop_k = 1\ntop_p = 0.1\ndraft = 3\nthinking = "on"\n')
    environ = {"SPECGGUF_TEMPERATURE": "0.2", "SPECGGUF_TOP_K": "2"}
    settings = gather({"temperature": 0.3, "top_k": None}, environ)
    settings.under({"min_p": 0.4, "top_p": 0.9, "draft_max": 7}, "preset big")
    assert [(settings[n], settings.origin(n)) for n in ("temperature", "top_k", "top_p", "min_p", "seed")] == [
        (0.3, "flag --temperature"),
        (2, "SPECGGUF_TOP_K"),
        (0.1, str(path)),
        (0.4, "preset big"),
        (None, "default"),
    ]
    assert (settings["draft"], settings["draft_max"], settings["thinking"]) == (3, 7, "on")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("SPECGGUF_DRAFT_MX", "did you mean SPECGGUF_DRAFT_MAX?"),
        ("SPECGGUF_TEMPERATUR", "did you mean SPECGGUF_TEMPERATURE?"),
        ("SPECGGUF_API_KEYS", "did you mean SPECGGUF_API_KEY?"),
        ("SPECGGUF_XYZZY", "specgguf config show --all lists those of settings"),
    ],
)
def test_a_misspelt_variable_is_told_and_ignored(run: Run, name: str, hint: str) -> None:
    ran = run("chat", "--quiet", "Hi", **{name: "hush"})
    assert (ran.code, ran.out) == (0, "Hello there.\n")
    assert ran.err == f"warning: {name} is not read: {hint}\n"
    assert run("chat", "--quiet", "Hi", **{name: "", "SPECGGUF_TOP_K": "7"}).err == ""
    assert run(_SPECGGUF_COMPLETE="bash_complete", COMP_WORDS="specgguf ch", COMP_CWORD="1", **{name: "x"}).err == ""


def test_what_kubernetes_tells_of_a_service_is_no_misspelling() -> None:
    ends = "SERVICE_HOST SERVICE_PORT SERVICE_PORT_HTTP PORT_80_TCP PORT_80_TCP_PROTO PORT_80_TCP_PORT PORT_80_TCP_ADDR"
    names = [f"SPECGGUF_{more}{end}" for more in ("", "GPU_") for end in ends.split()]
    assert unknown_variables(dict.fromkeys(names, "x")) == []


def texts(folder: Path) -> Iterator[str]:
    """The project's texts below `folder`, without what tools keep in hidden folders."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path == Path(__file__).resolve():
            continue
        if path.is_dir():
            yield from texts(path)
        elif path.is_file() and path.suffix in ("", ".py", ".sh", ".md") and b"\0" not in path.read_bytes():
            yield path.read_text(encoding="utf-8")


def test_every_variable_that_the_project_reads_is_known() -> None:
    root = Path(__file__).resolve().parents[2]
    found = {
        name
        for folder in ("specgguf", "cli", "scripts", "examples", "docs", "tests")
        for text in texts(root / folder)
        for name in re.findall(r"\bSPECGGUF_[A-Z0-9_]*[A-Z0-9]", text)
    }
    assert found >= set(READ_ELSEWHERE)
    assert unknown_variables(dict.fromkeys(found, "x")) == []


def test_a_conversation_s_settings_stand_over_the_file_and_under_flags(home: Path) -> None:
    write_config(home, "temperature = 0.1\ntop_k = 1\n")
    settings = gather({"temperature": 0.3}, {})
    settings.resumed({"temperature": 0.5, "top_k": 5, "seed": 9, "unheard_of": 1}, "mine")
    assert (settings["temperature"], settings["top_k"], settings["seed"]) == (0.3, 5, 9)
    assert settings.origin("top_k") == "conversation mine"


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("temperatur = 1", "unknown key 'temperatur'", "did you mean 'temperature'?"),
        ('top_k = "many"', "top_k must be a whole number, not 'many'", ""),
        ("draft = 77", "draft must be auto, off, or a number from 1 to 16", ""),
        ("save = 3", "save must be on or off", ""),
        ("highlight = 3", "highlight must be off, on, green, underline, bold", ""),
        ('think = "loud"', "think must be dim, show, hide", ""),
        ("model = 3", "model must be text", ""),
        ("top_k = true", "top_k must be a whole number", ""),
        ("x = ", "not valid TOML", ""),
    ],
)
def test_a_wrong_config_file_is_named(home: Path, text: str, said: str, hint: str) -> None:
    path = write_config(home, text)
    with pytest.raises(ConfigError) as caught:
        gather({}, {})
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.hint == hint


def test_a_byte_order_mark_is_no_part_of_the_file(home: Path) -> None:
    write_config(home, "\ufefftemperature = 0.1\n")
    assert gather({}, {})["temperature"] == 0.1


def test_a_wrong_variable_is_named(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"SPECGGUF_N_CTX: n_ctx must be a whole number, not 'big'"):
        gather({}, {"SPECGGUF_N_CTX": "big"})


def test_an_empty_variable_says_nothing(home: Path) -> None:
    assert gather({}, {"SPECGGUF_N_CTX": ""}).origin("n_ctx") == "default"


def test_names_are_unique_and_variables_follow_them() -> None:
    assert len(BY_NAME) == len(SETTINGS)
    assert len({s.env for s in SETTINGS}) == len(SETTINGS)
    flags = [flag for s in SETTINGS for spelling in s.flags for flag in spelling.split("/")]
    assert len(set(flags)) == len(flags)
    assert all(s.env.startswith("SPECGGUF_") and s.help.endswith(".") for s in SETTINGS)


def test_every_default_is_its_own_kind() -> None:
    for setting in SETTINGS:
        if setting.default is not None:
            assert setting.parse(setting.default, where="default") == setting.default


def test_config_path(run: Run, home: Path) -> None:
    assert run("config", "path").out == f"{home}/config/specgguf/config.toml\n"
    assert run("config", "path", SPECGGUF_CONFIG="/elsewhere.toml").out == "/elsewhere.toml\n"


def test_config_show_tells_origins(run: Run, home: Path) -> None:
    path = write_config(home, 'draft = "off"\n')
    ran = run("config", "show", "-p", "demo", SPECGGUF_TEMPERATURE="0.5")
    rows = {line.split()[0]: line for line in ran.out.splitlines()}
    assert rows["draft"].endswith(str(path))
    assert rows["temperature"].endswith("SPECGGUF_TEMPERATURE")
    assert rows["top_k"].endswith("preset demo")
    assert rows["color"].endswith("default")
    assert "seed" not in rows
    assert "SPECGGUF_SEED" in run("config", "show", "--all").out


def test_config_show_with_a_wrong_file(run: Run, home: Path) -> None:
    write_config(home, "nonsense = 1\n")
    assert run("config", "show").code == exits.USAGE


def test_a_preset_s_values_go_with_it(home: Path) -> None:
    settings = gather({"top_k": 3}, {})
    settings.under({"top_k": 20, "top_p": 0.5}, "preset big")
    bare = settings.without_preset()
    assert (settings["top_k"], settings["top_p"]) == (3, 0.5)
    assert (bare["top_k"], bare["top_p"], bare.origin("top_p")) == (3, 0.95, "default")
    settings.become(bare)
    assert settings["top_p"] == 0.95


def test_sampling_is_checked(home: Path) -> None:
    settings = Settings({})
    settings.put("min_p", 2.0, "/set")
    with pytest.raises(ConfigError, match="min_p"):
        settings.sampling()
