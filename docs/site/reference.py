"""Writes the generated reference pages: `python docs/site/reference.py`.

- `docs/reference/cli.md` from the commands,
- `docs/reference/settings.md` from the fields of `comity.runs.config.Experiment`,
- `docs/reference/method-cards.md` from the cards of the methods.

A test compares the pages with the code.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import typer
from pydantic_core import PydanticUndefined

import comity.cli
from comity import algorithms
from comity.cli import overview
from comity.cli.options import app
from comity.runs.config import Experiment
from comity.spec import format_value

for _module in pkgutil.iter_modules(comity.cli.__path__):  # each adds its commands
    if _module.name != "__main__":
        importlib.import_module(f"comity.cli.{_module.name}")

FOLDER = Path(__file__).parents[1] / "reference"
CLI_INTRO = """\
# Command line

Generated from the commands by `python docs/site/reference.py`. `comity COMMAND --help` prints the same. [Commands by
task](../how-to/commands.md) has examples. The options that many commands share, such as `--rounds`, are explained in
[Settings](settings.md) and not repeated here.

| exit code | meaning |
| --- | --- |
| 0 | success |
| 1 | the command failed |
| 2 | wrong names, values or options; nothing was started |
| 3 | some rows were refused (`predict.py` only) |
| 130 | stopped by Ctrl-C |
| 143 | stopped by SIGTERM |
"""
SETTINGS_INTRO = """\
# Settings

Generated from `comity.runs.config.Experiment` by `python docs/site/reference.py`.

Each setting has one name: as an option (`--eval-every 5`), as a keyword in Python
(`comity.run(..., eval_every=5)`), in a TOML file (`eval_every = 5`), and in a run's `config.toml`. A method's own options
are given by `--set NAME=VALUE`, in brackets (`fedprox(mu=0.1)`), or as keywords in Python: see the
[cards](method-cards.md).

| setting | option | default | meaning |
| --- | --- | --- | --- |
"""
CARDS_INTRO = """\
# Cards of all methods

Generated from the methods' files by `python docs/site/reference.py`. `comity show NAME` prints one card. [The
table](methods.md) compares all methods; `+NAME` is a wrapper that goes around another method.
"""


def cell(text: object) -> str:
    """A text as a cell of a Markdown table, in one line."""
    return " ".join(str(text).split()).replace("|", "\\|")


def command_tree() -> dict[str, click.Command]:
    """All commands by their words, such as `data import`."""
    root = typer.main.get_command(app)
    order = [name for section in overview.COMMANDS.values() for name in section]
    return dict(
        sorted(walk(root, ""), key=lambda item: (position(order, item[0].split()[0]), item[0]))
    )


def position(order: list[str], name: str) -> int:
    """Where the page of `comity --help` lists a command."""
    return order.index(name) if name in order else len(order)


def walk(command: Any, words: str) -> Iterator[tuple[str, click.Command]]:
    """The commands below a group."""
    for name, child in getattr(command, "commands", {}).items():
        if getattr(child, "hidden", False):
            continue
        path = f"{words} {name}".strip()
        if hasattr(child, "commands"):
            yield from walk(child, path)
        else:
            yield path, child


def default_of(option: Any) -> str:
    """An option's default as it is typed; nothing if there is none."""
    value = option.default
    if value is None or callable(value) or isinstance(value, bool) or value == ():
        return ""
    return f"`{value}`"


def command_section(path: str, command: Any) -> str:
    """The arguments and options of a command."""
    settings = {f"--{name.replace('_', '-')}" for name in Experiment.model_fields}
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    own = [o for o in options if not settings & set(o.opts)]
    shared = [o for o in options if settings & set(o.opts)]
    words = [(p.metavar or p.name.upper()).strip("[]") for p in arguments]
    lines = [f"## comity {path}", "", f"`comity {' '.join([path, *words])} [OPTIONS]`", ""]
    help_text = command.help or command.short_help or ""
    lines += [paragraph(part) for part in re.split(r"\n\s*\n", help_text.replace("\f", "\n\n"))]
    rows = [
        (f"`{word}`", "", getattr(p, "help", "") or "")
        for word, p in zip(words, arguments, strict=True)
    ]
    for option in own:
        if option.name == "help":
            continue
        name = ", ".join(option.opts + option.secondary_opts)
        value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
        rows.append((f"`{name}{value}`", default_of(option), option.help or ""))
    if rows:
        lines += ["| option | default | meaning |", "| --- | --- | --- |"]
        lines += [f"| {cell(a)} | {cell(b)} | {cell(c)} |" for a, b, c in rows]
        lines.append("")
    if len(shared) > 12:
        lines += ["Also all [settings](settings.md) of a run.", ""]
    elif shared:
        names = ", ".join(f"`{option.opts[0]}`" for option in shared)
        lines += [f"Also these [settings](settings.md): {names}.", ""]
    return "\n".join(lines)


def paragraph(text: str) -> str:
    """A paragraph of a help text, on one line."""
    return " ".join(text.split()) + "\n"


def cli_page() -> str:
    """The page of all commands."""
    sections = [command_section(path, command) for path, command in command_tree().items()]
    return "\n".join([CLI_INTRO, *sections]).rstrip() + "\n"


def settings_page() -> str:
    """The page of all settings."""
    options = {
        name
        for command in command_tree().values()
        for parameter in command.params
        for name in parameter.opts
    }
    lines = []
    for name, field in Experiment.model_fields.items():
        option = f"--{name.replace('_', '-')}"
        default = field.default
        if default is PydanticUndefined or default in (None, ""):
            shown = ""
        else:
            shown = f"`{format_value(default)}`"
        shown_option = f"`{option}`" if option in options else ""
        lines.append(f"| `{name}` | {shown_option} | {shown} | {cell(field.description or '')} |")
    return SETTINGS_INTRO + "\n".join(lines) + "\n"


def meaning_of(option: algorithms.Option) -> str:
    """An option's description, with its choices if it has any."""
    if get_origin(option.kind) is not Literal:
        return option.doc
    return f"{option.doc}; one of {', '.join(map(str, get_args(option.kind)))}"


def card_section(name: str) -> str:
    """A method's card."""
    card = algorithms.card(name)
    lines = [f"## {'+' if card.wrapper else ''}{card.name}", ""]
    if card.experimental:
        lines += [f"Experimental: {card.experimental}.", ""]
    lines += ["```text", card.text.rstrip(), "```", ""]
    lines += [f"Bytes: `{cell(card.bytes)}`", ""] if card.bytes else []
    lines += [f"Privacy: {cell(card.privacy)}", ""] if card.privacy else []
    if card.options:
        lines += ["| option | default | meaning |", "| --- | --- | --- |"]
        for option in card.options:
            default = "none" if option.default in ("", None) else format_value(option.default)
            lines.append(f"| `{option.name}` | `{cell(default)}` | {cell(meaning_of(option))} |")
        lines.append("")
    return "\n".join(lines)


def cards_page() -> str:
    """The page of all cards."""
    names = sorted(algorithms.names(), key=lambda name: (algorithms.card(name).wrapper, name))
    return "\n".join([CARDS_INTRO, *map(card_section, names)]).rstrip() + "\n"


PAGES = {"cli.md": cli_page, "settings.md": settings_page, "method-cards.md": cards_page}


if __name__ == "__main__":
    for file_name, page in PAGES.items():
        (FOLDER / file_name).write_text(page(), encoding="utf-8")
