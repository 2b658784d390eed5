"""The `--help` pages, and one sentence for each error on the command line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar, get_args

import click
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from comity import hints
from comity.cli.overview import help_text

F = TypeVar("F", bound=Callable[..., Any])
ARGUMENTS, OPTIONS = "Arguments", "Options"
GROUPS: dict[str, tuple[str, ...]] = {
    "Data": ("data", "partition", "parties", "without", "test", "validation", "augment"),
    "Model and training": (
        "model",
        "weights",
        "init",
        "cut",
        "bn",
        "epochs",
        "steps",
        "batch",
        "last_batch",
        "optimizer",
        "lr",
        "precision",
        "opt_state",
    ),
    "Rounds": ("rounds", "participation", "patience", "seed", "set", "party"),
    "Evaluation": ("metric", "calibrate", "eval_every", "eval_share", "newcomers", "join_epochs"),
    "Absent parties": ("absent", "min_replies", "on_nonfinite"),
    "Privacy": ("budget", "secure_aggregation", "secure_aggregation_range"),
    "Where it runs": ("device", "engine", "workers", "gpus", "cache", "partial_sums"),
}
"""The settings of an experiment by section of the help page."""
SECTIONS = {name: title for title, names in GROUPS.items() for name in names}


class Command(TyperCommand):
    """A command with grouped help, which refuses single-valued options that are given twice."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.callback:
            _restore_help(self.params, self.callback)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and refuse a repeated option that takes a single value."""
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            single = [
                param for param in order if isinstance(param, click.Option) and not param.multiple
            ]
            if twice := next(
                (param for k, param in enumerate(single) if param in single[:k]), None
            ):
                raise click.UsageError(f"{twice.opts[0]} is given twice, but takes one value.", ctx)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help page; newer versions of click would list the arguments twice."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, the options of the command, then the settings by section."""
        sections: dict[str, list[tuple[str, str]]] = {
            title: [] for title in (ARGUMENTS, OPTIONS, *GROUPS)
        }
        for name, record in _records(self, ctx):
            sections[name].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _records(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the title of the section and the help line of each parameter, settings in order."""
    order = list(SECTIONS)
    ranked = sorted(
        command.get_params(ctx),
        key=lambda param: order.index(param.name) if param.name in SECTIONS else -1,
    )
    is_setting = {"data", "rounds"} <= {param.name for param in ranked}
    for param in ranked:
        if record := param.get_help_record(ctx):
            default = ARGUMENTS if isinstance(param, click.Argument) else OPTIONS
            section = SECTIONS.get(str(param.name), default) if is_setting else default
            names, description = record
            # typer escapes brackets, which rich would read as markup
            yield section, (names, description.replace("\\[", "["))


def _restore_help(params: Sequence[click.Parameter], callback: Any) -> None:
    """Restore the help of arguments, which typer loses with newer versions of click."""
    signature = inspect.signature(callback, eval_str=True)
    for param in params:
        declared = signature.parameters.get(str(param.name))
        if isinstance(param, TyperArgument) and not param.help and declared is not None:
            infos = [p for p in get_args(declared.annotation) if isinstance(p, ArgumentInfo)]
            param.help = infos[0].help if infos else None


class CommandGroup(TyperGroup):
    """A group of commands whose help shows every summary in full."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help page; that of all commands is also written without slow imports."""
        if ctx.parent is None:
            formatter.write(help_text())
        else:
            super().format_help(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first paragraph of each command's help."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, _first_paragraph(command.help or "")) for name, command in commands]
            )


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())


class App(typer.Typer):
    """A Typer app whose commands are of the class `Command`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": CommandGroup, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """Return a decorator that adds a command."""
        return super().command(name, **{"cls": Command, **options})


# Errors on the command line.


def sentence(why: click.ClickException) -> str:
    """What is wrong with what was typed and, where it can be guessed, what to type."""
    if isinstance(why, click.NoSuchOption):
        return _no_such_option(why)
    if isinstance(why, click.exceptions.NoSuchCommand):
        return _no_such_command(str(why.command_name), why.ctx)
    if isinstance(why, click.MissingParameter):
        return _missing(why)
    if (
        isinstance(why, click.BadParameter)
        and why.param is not None
        and why.param.name == "seed"
        and "," in why.message
    ):
        return _several_seeds(why)
    pattern = r"Got unexpected extra arguments? \((.*)\)"
    if match := re.fullmatch(pattern, why.format_message()):
        return _extra_words(match[1].split(), why)
    return why.format_message()


def _missing(why: click.MissingParameter) -> str:
    if why.param is not None and why.param.name in ("algo", "algos"):
        command = why.ctx.info_name if why.ctx else "run"
        return (
            f"Name a method, as in 'comity {command} fedavg'; 'comity list algorithms' lists all"
            " methods."
        )
    description = getattr(why.param, "help", None)
    message = why.format_message()
    return f"{message.rstrip('.')}: {description}." if description else message


def _no_such_option(why: click.NoSuchOption) -> str:
    command = (why.ctx.info_name if why.ctx else "") or ""
    valid_names = {str(param.name) for param in why.ctx.command.params} if why.ctx else set()
    error = f"There is no option {why.option_name}."
    if advice := _advice_on_option(hints.normalise(why.option_name), command, valid_names):
        return f"{error} {advice}"
    if suggestion := hints.suggest_option(why.option_name, valid_names):
        return f"{error} Write {suggestion}"
    name = why.option_name.lstrip("-").replace("-", "_")
    if "set" in valid_names and (methods := _methods_with_option(name)):
        return f"{error} It is an option of {', '.join(methods)}: write --set {name}=VALUE"
    flags = [flag for param in (why.ctx.command.params if why.ctx else ()) for flag in param.opts]
    similar = hints.find_similar("option", why.option_name, flags, limit=2) if len(name) > 2 else []
    if similar:
        return f"{error} Did you mean {' or '.join(similar)}?"
    return f"{error} 'comity {command} --help' lists all options."


def _advice_on_option(name: str, command: str, valid_names: Collection[str]) -> str:
    """Return what to type in place of an option that other commands or programs have."""
    if name == "seeds" and "seed" in valid_names:
        return (
            f"'comity {command}' takes one --seed; for several: comity compare METHOD --seeds 0,1,2"
        )
    if name in ("config", "file", "c") and "algo" in valid_names:
        return f"Give the file instead of the method: comity {command} FILE.toml"
    if name in ("report", "noreport") and command in ("run", "resume"):
        return "A run writes no page: for one, use 'comity report DIR' afterwards."
    return ""


def _methods_with_option(name: str) -> list[str]:
    """Return the methods that have an option of this name."""
    from comity import algorithms

    return [
        method
        for method in algorithms.names()
        if name in algorithms.options(algorithms.find(method))
    ]


def _no_such_command(name: str, ctx: click.Context | None) -> str:
    from comity import algorithms

    error = f"There is no command {name!r}."
    method = name.partition("(")[0].partition("+")[0]
    if method in algorithms.names() or name.endswith((".py", ".toml")):
        return f"{error} Did you mean: comity run {name}"
    if synonym := hints.COMMANDS.get(hints.normalise(name)):
        return f"{error} Did you mean: comity {synonym}"
    group = ctx.command if ctx else None
    commands = list(group.commands) if isinstance(group, click.Group) else []
    group_name = f"{ctx.info_name} " if ctx and ctx.parent else ""
    if similar := hints.find_similar("command", name, commands):
        return f"{error} Did you mean: comity {group_name}{similar[0]}"
    return f"{error} There are: {', '.join(sorted(commands))}."


def _several_seeds(why: click.BadParameter) -> str:
    command = (why.ctx.info_name if why.ctx else "") or ""
    parameters = {str(param.name) for param in why.ctx.command.params} if why.ctx else set()
    if "seeds" in parameters:
        return "--seed takes one number: give several with --seeds, as in --seeds 0,1,2"
    return f"'comity {command}' takes one --seed; for several: comity compare METHOD --seeds 0,1,2"


def _extra_words(words: Sequence[str], why: click.ClickException) -> str:
    """Return the message for words that no argument takes."""
    from comity import algorithms

    ctx = getattr(why, "ctx", None)
    command = ctx.info_name if ctx else ""
    error = f"'comity {command}' does not take {' '.join(words)!r}"
    if words[0].partition("(")[0] in algorithms.names() and command == "run":
        return (
            f"{error}: it runs one method. To wrap a method: comity run fedavg+{words[0]}. To"
            f" compare methods: comity compare fedavg {words[0]}"
        )
    if "=" in words[0] and command == "tune":
        return f"{error}: each setting to try has its own --grid, as in --grid {words[0]}"
    if "=" in words[0]:
        return f"{error}: give options of a method with --set {words[0]}"
    return (
        f"{error}: the value of an option is one word, as in --set mu=0.1 or --partition"
        " 'dirichlet(alpha=0.1)'."
    )
