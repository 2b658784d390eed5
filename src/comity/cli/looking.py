"""Commands that tell what there is: list and show."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from comity.cli.options import Algo, app
from comity.errors import unknown
from comity.spec import show as show_value

if TYPE_CHECKING:
    from comity.algorithms import Option


def _cell(thing: Any) -> str:
    """A value of a catalogue for people: shapes as 1x8x8, options as in a call."""
    if isinstance(thing, dict):
        return ", ".join(
            name if v is None else f"{name}={show_value(v)}" for name, v in thing.items()
        )
    if isinstance(thing, bool):
        return "yes" if thing else ""
    return "x".join(map(str, thing)) if isinstance(thing, list | tuple) else str(thing)


FOR_PROGRAMS = {
    "licence",
    "hub",
    "missing",
    "files",
}  # too much for a table: `list --json` has them
LISTS = ("algorithms", "datasets", "models", "partitions", "experiments")


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="|".join(LISTS))],
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """What there is."""
    from comity import algorithms, data, models, papers
    from comity.cli import screen

    makers: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "algorithms": algorithms.catalogue,
        "datasets": data.catalogue,
        "models": models.catalogue,
        "partitions": data.partition_catalogue,
        "experiments": papers.catalogue,
    }
    what = {"methods": "algorithms", "data": "datasets"}.get(what, what)
    if what not in makers:
        raise unknown("list of", what, makers)
    rows = makers[what]()
    if as_json:
        print(json.dumps(rows))
        return
    columns = [c for c in rows[0] if c not in FOR_PROGRAMS]
    wide = [k for k, c in enumerate(columns) if c in ("description", "paper", "options", "source")]
    screen.table(
        columns, [[_cell(row[c]) for c in columns] for row in rows], words=len(columns), wide=wide
    )


def _meaning(option: Option) -> str:
    """What an option does, and what it may be if that is one of a few words."""
    words = (
        [str(word) for word in get_args(option.kind)] if get_origin(option.kind) is Literal else []
    )
    return option.doc + (f"; one of {', '.join(words)}" if words else "")


@app.command()
def show(algo: Algo) -> None:
    """A method's card: idea, equations, defaults, options, deviations, bytes in closed form."""
    from comity import algorithms
    from comity.cli import screen

    for part in algo.split("+"):
        card = algorithms.card(part)
        told = [f"Experimental: {card.experimental}."] if card.experimental else []
        told += [f"Bytes: {card.bytes}"] if card.bytes else []
        told += [f"Privacy: {card.privacy}"] if card.privacy else []
        for line in [*card.text.split("\n"), "", *told]:
            screen.out.print(line)
        rows = [
            [o.name, "none" if o.default in ("", None) else show_value(o.default), _meaning(o)]
            for o in card.options
        ]
        if rows:
            screen.table(["option", "default", "meaning"], rows, words=3, wide=[2])
        screen.out.print()
