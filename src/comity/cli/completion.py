"""Shell completion: a script that contains all words, so that completing starts no process."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import click
import typer

from comity.errors import unknown


class Completions(NamedTuple):
    """The words that can follow a command."""

    options: dict[str, list[str]]
    """The options of the command, each with its possible values if these can be listed."""
    words: list[str]
    """The possible values of its arguments."""


def script(shell: str) -> str:
    """Return the completion script of a shell, which the shell reads when it starts."""
    writers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in writers:
        raise unknown("completion for the shell", shell, writers)
    return writers[shell](dict(_commands()))


def _commands() -> Iterator[tuple[str, Completions]]:
    """Yield all commands, as in "run" and "data import", with the words that can follow each."""
    from comity.cli.options import app

    names = _names_by_parameter()
    top = typer.main.get_command(app)
    assert isinstance(top, click.Group)
    for name, command in top.commands.items():
        if isinstance(command, click.Group):
            yield name, Completions({}, list(command.commands))
            for inner_name, inner in command.commands.items():
                yield f"{name} {inner_name}", _completions(inner, names)
        else:
            yield name, _completions(command, names)


def _names_by_parameter() -> dict[str, list[str]]:
    """Return the possible values of options and arguments, by the name of the parameter."""
    from comity import algorithms, data, models, papers
    from comity.cli.catalogue import LISTS
    from comity.metrics.calibration import WAYS
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
        "calibrate": list(WAYS),
        "name": [str(row["name"]) for row in papers.catalogue()],
        "scale": list(papers.SCALES),
    }


def _completions(command: click.Command, names: Mapping[str, list[str]]) -> Completions:
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
    return Completions({**options, "--help": []}, words)


BASH = """_comity() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" words=""
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
    if [[ ${{#COMPREPLY[@]}} -eq 0 && "$word" != -* ]]; then
        COMPREPLY=( $(compgen -f -- "$word") )
    fi
}}
complete -o bashdefault -F _comity comity
"""


def _bash(commands: Mapping[str, Completions]) -> str:
    values = [
        f"            {shlex.quote(f'{name} {flag}')}) words={shlex.quote(' '.join(words))} ;;"
        for name, completions in commands.items()
        for flag, words in completions.options.items()
        if words
    ]
    follow = [
        f'                {shlex.quote(name)}) if [[ "$word" == -* ]]; then'
        f" words={shlex.quote(' '.join(completions.options))}; "
        f"else words={shlex.quote(' '.join(completions.words))}; fi ;;"
        for name, completions in commands.items()
    ]
    first = shlex.quote(" ".join(name for name in commands if " " not in name))
    return BASH.format(commands=first, values="\n".join(values), follow="\n".join(follow))


def _zsh(commands: Mapping[str, Completions]) -> str:
    return (
        "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
        + _bash(commands)
    )


def _fish(commands: Mapping[str, Completions]) -> str:
    first = " ".join(name for name in commands if " " not in name)
    lines = [f"complete -c comity -n __fish_use_subcommand -f -a {shlex.quote(first)}"]
    for name, completions in commands.items():
        when = " ; and ".join(f"__fish_seen_subcommand_from {part}" for part in name.split())
        complete = f"complete -c comity -n {shlex.quote(when)}"
        if completions.words:
            lines.append(f"{complete} -a {shlex.quote(' '.join(completions.words))}")
        for flag, words in completions.options.items():
            values = f" -x -a {shlex.quote(' '.join(words))}" if words else ""
            lines.append(f"{complete} -l {flag.removeprefix('--')}{values}")
    return "\n".join(lines) + "\n"
