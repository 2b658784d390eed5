"""How commands are to be used: the page of `--help`, and one sentence for what cannot be
understood, which says what to type.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, get_args

import click
import typer
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo

from comity import hints

F = TypeVar("F", bound=Callable[..., Any])
ARGUMENTS, OPTIONS = "Arguments", "Options"
GROUPS: dict[str, tuple[str, ...]] = {
    "Data": ("data", "partition", "parties", "without", "test", "validation", "augment"),
    "Model and training": (
        "model",
        "init",
        "cut",
        "bn",
        "epochs",
        "steps",
        "batch",
        "last_batch",
        "optimizer",
        "lr",
        "opt_state",
    ),
    "Rounds": ("rounds", "participation", "patience", "seed", "set", "party"),
    "Judging": ("metric", "eval_every", "eval_share", "newcomers", "join_epochs"),
    "Who is not heard": ("absent", "min_replies", "on_nonfinite"),
    "Privacy": ("budget",),
    "Where it runs": ("device", "engine", "workers", "gpus", "partial_sums"),
}
"""The settings of an experiment, in the order in which one looks for them."""
HOMES = {name: title for title, names in GROUPS.items() for name in names}


class Command(TyperCommand):
    """A command: its help can be read, and an option that has one value can be given once."""

    def __init__(self, *given: Any, **ways: Any) -> None:
        super().__init__(*given, **ways)
        if self.callback:
            _explain(self.params, self.callback)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an option that is given twice where one value counts: the other would be lost
        without a word.
        """
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            single = [
                param for param in order if isinstance(param, click.Option) and not param.multiple
            ]
            if twice := next(
                (param for k, param in enumerate(single) if param in single[:k]), None
            ):
                raise click.UsageError(f"{twice.opts[0]} is given twice, but has one value.", ctx)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The page; newer versions of click would put the arguments on it a second time."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Arguments, the command's own options, then an experiment's by what they are about."""
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
    """Each parameter's line on the page, with its section's title; settings in the order of their
    groups.
    """
    order = list(HOMES)
    ranked = sorted(
        command.get_params(ctx),
        key=lambda param: order.index(param.name) if param.name in HOMES else -1,
    )
    is_setting = {"data", "rounds"} <= {param.name for param in ranked}
    for param in ranked:
        if record := param.get_help_record(ctx):
            usual = ARGUMENTS if isinstance(param, click.Argument) else OPTIONS
            name = HOMES.get(str(param.name), usual) if is_setting else usual
            yield (
                name,
                (record[0], record[1].replace("\\[", "[")),
            )  # typer escapes what rich would take for a style


def _explain(params: Sequence[click.Parameter], callback: Any) -> None:
    """Give arguments their explanations back, which are lost between typer and newer versions of
    click.
    """
    signature = inspect.signature(callback, eval_str=True)
    for param in params:
        known = signature.parameters.get(str(param.name))
        if isinstance(param, TyperArgument) and not param.help and known is not None:
            told = [part for part in get_args(known.annotation) if isinstance(part, ArgumentInfo)]
            param.help = told[0].help if told else None


class App(typer.Typer):
    """A collection of such commands."""

    def command(self, name: str | None = None, **ways: Any) -> Callable[[F], F]:
        """Add a command."""
        return super().command(name, **{"cls": Command, **ways})


# What cannot be understood.


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
    if found := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", why.format_message()):
        return _extra(found[1].split(), why)
    return why.format_message()


def _missing(why: click.MissingParameter) -> str:
    if why.param is not None and why.param.name in ("algo", "algos"):
        command = why.ctx.info_name if why.ctx else "run"
        return (
            f"Say which method, as in 'comity {command} fedavg'; 'comity list algorithms' has all."
        )
    about = getattr(why.param, "help", None)
    return f"{why.format_message().rstrip('.')}: {about}." if about else why.format_message()


def _no_such_option(why: click.NoSuchOption) -> str:
    command = (why.ctx.info_name if why.ctx else "") or ""
    known = {str(param.name) for param in why.ctx.command.params} if why.ctx else set()
    said = f"There is no option {why.option_name}."
    if hints.plain(why.option_name) == "seeds" and "seed" in known:
        return (
            f"{said} 'comity {command}' takes one --seed; for several: comity compare METHOD"
            " --seeds 0,1,2"
        )
    if hints.plain(why.option_name) in ("config", "file", "c") and "algo" in known:
        return (
            f"{said} An experiment's file stands in the method's place: comity {command} FILE.toml"
        )
    if meant := hints.option(why.option_name, known):
        return f"{said} Write {meant}"
    name = why.option_name.lstrip("-").replace("-", "_")
    if "set" in known and (owners := _whose_option(name)):
        return f"{said} It is an option of {', '.join(owners)}: write --set {name}=VALUE"
    flags = [flag for param in (why.ctx.command.params if why.ctx else ()) for flag in param.opts]
    near = hints.near("option", why.option_name, flags, most=2) if len(name) > 2 else []
    guess = (
        f" Did you mean {' or '.join(near)}?" if near else f" 'comity {command} --help' has all."
    )
    return said + guess


def _whose_option(name: str) -> list[str]:
    """The methods that have an option of this name."""
    from comity import algorithms

    return [
        method
        for method in algorithms.names()
        if name in algorithms.options(algorithms.find(method))
    ]


def _no_such_command(given: str, ctx: click.Context | None) -> str:
    from comity import algorithms

    said = f"There is no command {given!r}."
    first = given.partition("(")[0].partition("+")[0]
    if first in algorithms.names() or given.endswith((".py", ".toml")):
        return f"{said} Did you mean: comity run {given}"
    if meant := hints.COMMANDS.get(hints.plain(given)):
        return f"{said} Did you mean: comity {meant}"
    group = ctx.command if ctx else None
    commands = list(group.commands) if isinstance(group, click.Group) else []
    above = f"{ctx.info_name} " if ctx and ctx.parent else ""
    if near := hints.near("command", given, commands):
        return f"{said} Did you mean: comity {above}{near[0]}"
    return f"{said} There are: {', '.join(sorted(commands))}."


def _several_seeds(why: click.BadParameter) -> str:
    command = (why.ctx.info_name if why.ctx else "") or ""
    several = {str(param.name) for param in why.ctx.command.params} if why.ctx else set()
    if "seeds" in several:
        return "--seed takes one number: give several with --seeds, as in --seeds 0,1,2"
    return f"'comity {command}' takes one --seed; for several: comity compare METHOD --seeds 0,1,2"


def _extra(words: Sequence[str], why: click.ClickException) -> str:
    """What was meant by words that no argument takes."""
    from comity import algorithms

    ctx = getattr(why, "ctx", None)
    command = ctx.info_name if ctx else ""
    known = algorithms.names()
    said = f"'comity {command}' does not know what to do with {' '.join(words)!r}"
    if words[0].partition("(")[0] in known and command == "run":
        return (
            f"{said}: it runs one method. To wrap one: comity run fedavg+{words[0]}. To compare:"
            f" comity compare fedavg {words[0]}"
        )
    if "=" in words[0]:
        return f"{said}: a method's own option is given as --set {words[0]}"
    return (
        f"{said}: an option's value has one word, as in --set mu=0.1 or --partition"
        " 'dirichlet(alpha=0.1)'."
    )
