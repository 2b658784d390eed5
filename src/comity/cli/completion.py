"""What a shell needs to complete commands: a script with all words in it, so that a Tab starts
nothing and waits for nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import click
import typer

from comity.errors import unknown


class Known(NamedTuple):
    """What can follow a command."""

    options: dict[str, list[str]]
    """Its options, and the words that each may be given, if these are known."""
    words: list[str]
    """What its arguments may be."""


def script(shell: str) -> str:
    """The script for a shell, to be read by it when it starts."""
    makers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in makers:
        raise unknown("completion for the shell", shell, makers)
    return makers[shell](dict(_commands()))


def _commands() -> Iterator[tuple[str, Known]]:
    """All commands by name, those of a group with its name before theirs, and what can follow each."""
    from comity.cli.options import app

    names = _names()
    top = typer.main.get_command(app)
    assert isinstance(top, click.Group)
    for name, command in top.commands.items():
        if isinstance(command, click.Group):
            yield name, Known({}, list(command.commands))
            for below, inner in command.commands.items():
                yield f"{name} {below}", _known(inner, names)
        else:
            yield name, _known(command, names)


def _names() -> dict[str, list[str]]:
    """The words that an option or an argument of a name may be."""
    from comity import algorithms, data, models, papers
    from comity.cli.looking import LISTS
    from comity.metrics.metrics import ELIGIBLE

    methods = algorithms.names()
    return {
        "algo": methods,
        "algos": methods,
        "what": list(LISTS),
        "data": [str(row["name"]) for row in data.catalogue()],
        "model": [str(row["name"]) for row in models.catalogue()],
        "partition": [str(row["name"]) for row in data.partition_catalogue()],
        "metric": list(ELIGIBLE),
        "name": [str(row["name"]) for row in papers.catalogue()],
        "scale": list(papers.SCALES),
    }


def _known(command: click.Command, names: Mapping[str, list[str]]) -> Known:
    options: dict[str, list[str]] = {}
    words: list[str] = []
    for param in command.params:
        if isinstance(param, click.Argument):
            words += names.get(str(param.name), [])
            continue
        choices = (
            param.metavar.split("|")
            if param.metavar and "|" in param.metavar
            else names.get(str(param.name), [])
        )
        options |= {
            flag: choices for flag in (*param.opts, *param.secondary_opts) if flag.startswith("--")
        }
    return Known({**options, "--help": []}, words)


BASH = """_comity() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}" words=""
    if [[ "$command" == data && $COMP_CWORD -gt 2 ]]; then command="data ${{COMP_WORDS[2]}}"; fi
    if [[ $COMP_CWORD -eq 1 ]]; then
        words={commands}
    else
        case "$command $before" in
{values}
        esac
        if [[ -z "$words" ]]; then
            case "$command" in
{follow}
            esac
        fi
    fi
    COMPREPLY=( $(compgen -W "$words" -- "$word") )
    if [[ ${{#COMPREPLY[@]}} -eq 0 && "$word" != -* ]]; then COMPREPLY=( $(compgen -f -- "$word") ); fi
}}
complete -o bashdefault -F _comity comity
"""


def _bash(commands: Mapping[str, Known]) -> str:
    values = [
        f"            {shlex.quote(f'{name} {flag}')}) words={shlex.quote(' '.join(words))} ;;"
        for name, known in commands.items()
        for flag, words in known.options.items()
        if words
    ]
    follow = [
        f'                {shlex.quote(name)}) if [[ "$word" == -* ]]; then'
        f" words={shlex.quote(' '.join(known.options))}; "
        f"else words={shlex.quote(' '.join(known.words))}; fi ;;"
        for name, known in commands.items()
    ]
    first = shlex.quote(" ".join(name for name in commands if " " not in name))
    return BASH.format(commands=first, values="\n".join(values), follow="\n".join(follow))


def _zsh(commands: Mapping[str, Known]) -> str:
    return (
        "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
        + _bash(commands)
    )


def _fish(commands: Mapping[str, Known]) -> str:
    first = " ".join(name for name in commands if " " not in name)
    lines = [f"complete -c comity -n __fish_use_subcommand -f -a {shlex.quote(first)}"]
    for name, known in commands.items():
        when = " ; and ".join(f"__fish_seen_subcommand_from {part}" for part in name.split())
        if known.words:
            lines.append(
                f"complete -c comity -n {shlex.quote(when)} -a {shlex.quote(' '.join(known.words))}"
            )
        for flag, words in known.options.items():
            given = f" -x -a {shlex.quote(' '.join(words))}" if words else ""
            lines.append(
                f"complete -c comity -n {shlex.quote(when)} -l {flag.removeprefix('--')}{given}"
            )
    return "\n".join(lines) + "\n"
