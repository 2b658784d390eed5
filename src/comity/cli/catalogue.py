"""The commands `comity list` and `comity show`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from comity.cli.options import Algo, app
from comity.errors import unknown
from comity.spec import format_value

if TYPE_CHECKING:
    from comity.algorithms import Option


def _cell(value: Any) -> str:
    """Return a value of a catalogue as text: shapes as 1x8x8, options as in a call."""
    if isinstance(value, dict):
        return ", ".join(
            name if v is None else f"{name}={format_value(v)}" for name, v in value.items()
        )
    if isinstance(value, bool):
        return "yes" if value else ""
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


JSON_ONLY = {"licence", "hub", "missing", "files"}
"""Columns that are too long for a table: only `list --json` has them."""
LISTS = ("algorithms", "datasets", "models", "partitions", "experiments")


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(metavar="|".join(LISTS))],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List methods, datasets, models, partitions or experiments."""
    from comity import algorithms, data, models, papers
    from comity.cli import screen

    catalogues: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "algorithms": algorithms.catalogue,
        "datasets": data.catalogue,
        "models": models.catalogue,
        "partitions": data.partition_catalogue,
        "experiments": papers.catalogue,
    }
    what = {"methods": "algorithms", "data": "datasets"}.get(what, what)
    if what not in catalogues:
        raise unknown("list of", what, catalogues)
    rows = catalogues[what]()
    if as_json:
        print(json.dumps(rows))
        return
    columns = [c for c in rows[0] if c not in JSON_ONLY]
    wide = [k for k, c in enumerate(columns) if c in ("description", "paper", "options", "source")]
    screen.table(
        columns, [[_cell(row[c]) for c in columns] for row in rows], words=len(columns), wide=wide
    )


def _meaning(option: Option) -> str:
    """Return the description of an option, with its choices if it has any."""
    if get_origin(option.kind) is not Literal:
        return option.doc
    return f"{option.doc}; one of {', '.join(map(str, get_args(option.kind)))}"


@app.command()
def show(algo: Algo) -> None:
    """Show the card of a method: idea, equations, options, deviations, bytes in closed form."""
    from comity import algorithms
    from comity.cli import screen

    for part in algo.split("+"):
        card = algorithms.card(part)
        facts = [f"Experimental: {card.experimental}."] if card.experimental else []
        facts += [f"Bytes: {card.bytes}"] if card.bytes else []
        facts += [f"Privacy: {card.privacy}"] if card.privacy else []
        for line in [*card.text.split("\n"), "", *facts]:
            screen.out.print(line)
        rows = [
            [o.name, "none" if o.default in ("", None) else format_value(o.default), _meaning(o)]
            for o in card.options
        ]
        if rows:
            screen.table(["option", "default", "meaning"], rows, words=3, wide=[2])
        screen.out.print()
