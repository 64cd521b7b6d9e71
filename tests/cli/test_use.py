"""`specgguf use` and `config set`: what is remembered, and nothing else in the file changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Pair
from specgguf.cli.settings import gather, read_config, write_config
from support.cli_support import Run, home, run

from specgguf.errors import ConfigError

__all__ = ["home", "run"]


def test_a_pair_is_remembered_by_its_whole_paths(
    run: Run, home: Path, tiny_chat: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_chat.target.parent)
    ran = run("use", tiny_chat.target.name, tiny_chat.draft.name)
    assert ran.code == 0, ran.err
    settings = gather({}, {})
    assert (settings["model"], settings["draft_model"]) == (str(tiny_chat.target), str(tiny_chat.draft))
    assert "no longer set" not in ran.out


def test_without_a_draft_the_earlier_one_is_forgotten(run: Run, home: Path, tiny_chat: Pair) -> None:
    run("use", str(tiny_chat.target), str(tiny_chat.draft))
    ran = run("use", str(tiny_chat.target))
    assert ran.code == 0, ran.err
    assert "draft_model is no longer set" in ran.out
    assert gather({}, {})["draft_model"] is None


def test_what_is_not_here_is_not_remembered(run: Run, home: Path) -> None:
    for arguments in (["no-such-model"], ["org/repo:Q4_K_M"], ["./missing.gguf"]):
        assert run("use", *arguments).code == 1
    assert not (home / "config" / "specgguf" / "config.toml").exists()
    assert run("use", "demo").code == 0, "a preset says what it downloads, and asks"
    assert run("use", "dmo").err.count("did you mean 'demo'?") == 1


def test_set_and_unset_change_one_line(run: Run, home: Path) -> None:
    path = home / "config" / "specgguf" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text('# mine\nsystem = "Be brief."\ntop_k = 20 # few\n\nhighlight = "bold"\n')
    assert run("config", "set", "top-k", "30").code == 0
    assert run("config", "set", "temperature", "0.5").code == 0
    assert path.read_text() == '# mine\nsystem = "Be brief."\ntop_k = 30\n\nhighlight = "bold"\ntemperature = 0.5\n'
    assert run("config", "unset", "top_k").code == 0
    assert path.read_text() == '# mine\nsystem = "Be brief."\n\nhighlight = "bold"\ntemperature = 0.5\n'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set", "tmperature", "1"], "did you mean 'temperature'?"),
        (["set", "top_k", "many"], "top_k must be a whole number"),
        (["set", "temperature", "--", "-1"], "temperature must be 0 or more"),
        (["set", "min_p", "7"], "min_p must be"),
    ],
)
def test_what_is_wrong_is_not_written(run: Run, home: Path, arguments: list[str], said: str) -> None:
    ran = run("config", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert not (home / "config" / "specgguf" / "config.toml").exists()


def test_a_file_that_lines_cannot_change_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    before = 'system = """\ntop_k = 3\n"""\ntop_k = 20\n'
    path.write_text(before)
    with pytest.raises(ConfigError, match="cannot be changed by a program"):
        write_config(path, {"top_k": 30})
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.toml", tmp_path / "config.toml"
    real.write_text("top_k = 1\n")
    link.symlink_to(real)
    write_config(link, {"top_k": 2, "system": 'say "x"\nand \\ é'})
    assert link.is_symlink()
    assert read_config(real) == {"top_k": 2, "system": 'say "x"\nand \\ é'}


def test_a_variable_that_wins_is_told(run: Run, home: Path) -> None:
    ran = run("config", "set", "top_k", "3", SPECGGUF_TOP_K="9")
    assert "SPECGGUF_TOP_K=9 is set, and wins over the file" in ran.err
