"""`specgguf completion`: the script that teaches a shell to complete our words."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")
HOW = {
    "bash": 'eval "$(specgguf completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(specgguf completion zsh)"   # in ~/.zshrc',
    "fish": "specgguf completion fish > ~/.config/fish/completions/specgguf.fish",
}


@click.command(epilog="\b\n" + "\n".join(HOW.values()))
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for bash, zsh or fish."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(ctx.find_root().command, {}, "specgguf", "_SPECGGUF_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())
