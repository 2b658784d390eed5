"""Commands about data: look at a federation, prepare a dataset's files, bring one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from comity.cli.options import Settings, data_app, with_experiment, with_options
from comity.errors import UsageError
from comity.runs.config import experiment


@data_app.command("inspect")
@with_experiment
def inspect_data(settings: Settings) -> None:
    """Who has what: training samples by party and class; of tables what is missing, ranges, and
    what may be wrong.
    """
    from comity.cli import screen
    from comity.data import load
    from comity.data.inspection import inspect
    from comity.runs.build import federation_of

    asked = experiment(settings)
    federation = federation_of(asked).without(asked.without or ())
    counts = federation.counts().tolist()
    shares = federation.split.parties
    shifts = any(share.shift for share in shares.values())
    rows = [
        [
            name,
            *([shares[name].shift or "none"] if shifts else []),
            *(str(len(s)) for s in (d.train, d.validation, d.test)),
        ]
        + [str(n) if n else "·" for n in line]
        for (name, d), line in zip(federation.parties.items(), counts, strict=True)
    ]
    classes = federation.class_names or tuple(map(str, range(federation.classes))) or ("samples",)
    columns = ["party", *(["shift"] if shifts else []), "train", "validation", "test", *classes]
    title = (
        f"{federation.name}: samples of shape {'x'.join(map(str, federation.shape))},"
        f" {federation.split.partition}"
    )
    screen.table(columns, rows, title, words=1 + shifts)
    found = inspect(federation, load(asked.data))
    some = federation.names[:MOST_SHOWN]
    if any(share for by in found.missing.values() for share in by.values()):
        lines = [
            [column, *(_share(by[party]) for party in some)] for column, by in found.missing.items()
        ]
        screen.table(["missing", *some], lines, words=1)
    if found.ranges:
        spans = [
            [column, *(_span(by[party]) for party in some)] for column, by in found.ranges.items()
        ]
        screen.table(["5th, middle, 95th", *some], spans, words=1)
    if found.missing and len(some) < len(federation.names):
        screen.out.print(f"Of columns, only the first {MOST_SHOWN} parties are shown.")
    for caveat in found.caveats:
        screen.out.print(f"Look at this: {caveat}", soft_wrap=True)


MOST_SHOWN = 8  # parties beside each other


def _share(missing: float) -> str:
    return "·" if not missing else f"{missing:.0%}" if missing >= 0.01 else "<1%"


def _span(one: tuple[float, float, float] | None) -> str:
    """Between what a party's values lie, and their middle."""
    return "·" if one is None else ", ".join(f"{value:.4g}" for value in one)


@data_app.command("prepare")
def prepare(
    name: Annotated[str, typer.Argument(metavar="DATASET")],
    trust: Annotated[
        bool,
        typer.Option("--trust-pickle", help="read files that hold pickles, which can run anything"),
    ] = False,
) -> None:
    """Read a dataset's files once, so that runs take it from the cache."""
    from comity.cli import screen
    from comity.data import load

    made = load(name, trust)
    parties = ", ".join(f"{len(g.names)} by {by}" for by, g in made.groups.items())
    shape = "x".join(map(str, made.shape))
    screen.out.print(
        f"{made.name}: {len(made)} samples of shape {shape}, {made.classes} classes"
        + (f", natural parties: {parties}" if parties else ""),
        soft_wrap=True,
    )
    for note in made.warnings:
        screen.out.print(note, soft_wrap=True)


def _option(flag: str, about: str, kind: Any = str) -> Any:
    return Annotated[kind | None, typer.Option(flag, help=about, show_default=False)]


ABOUT_COLUMNS = {
    "label": _option("--label", "the column of a table that is to be learned; label unless told"),
    "columns": _option("--columns", "only these columns, as in a,b", list[str]),
    "drop": _option("--drop", "not these columns, as in a,b", list[str]),
    "kinds": _option("--kind", "what a column is: age=number, ward=words or ill=flag", list[str]),
    "missing": _option(
        "--missing", "words that stand for a missing value, as in -9,unknown", list[str]
    ),
    "rename": _option("--rename", "what files call a column and what it is: Alter=age", list[str]),
    "units": _option("--unit", "a column's unit, as in age=years", list[str]),
    "words": _option("--word", "what some write, and what it stands for: sex:m=male", list[str]),
    "merge_case": _option(
        "--merge-case/--keep-case", "words that differ in case or blanks only are one, or two", bool
    ),
    "scale": _option(
        "--scale",
        "numbers by each party's own figures, everybody's (shared), or as they are (none)",
    ),
    "positive": _option("--positive", "the class that sensitivity is about, as in dead"),
}
"""What can be said of a table's columns, by the names that importing has for it."""
SkipUnlabelled = Annotated[
    bool, typer.Option("--skip-unlabelled", help="leave out rows without a label")
]


def with_columns(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options about columns; it receives what was typed as `wishes`."""

    def read(typed: dict[str, Any]) -> dict[str, Any]:
        said = {name: _read(name, value) for name, value in typed.items()}
        return {name: value for name, value in said.items() if value is not None}

    return with_options(command, ABOUT_COLUMNS, "wishes", read)


def _read(name: str, typed: Any) -> Any:
    """What was typed for an option, as importing takes it: lists may be given in one, with commas
    between, or one by one.
    """
    if name in ("columns", "drop", "missing"):
        return (
            tuple(part.strip() for text in typed or () for part in text.split(",") if part.strip())
            or None
        )
    if name == "words":
        return _meanings(typed or ()) or None
    if name in PAIRS:
        return _paired(name, typed or ()) or None
    return typed


PAIRS = {"kinds": "--kind age=number", "rename": "--rename Alter=age", "units": "--unit age=years"}


def _meanings(given: Iterable[str]) -> dict[str, dict[str, str]]:
    """`column:written=meant` options as a dict by column."""
    made: dict[str, dict[str, str]] = {}
    for text in given:
        column, colon, pair = text.rpartition(":")
        written, sign, meant = (side.strip() for side in pair.partition("="))
        if not (column.strip() and colon and written and sign and meant):
            raise UsageError(
                f"--word takes column:written=meant, as in --word sex:m=male, not {text!r}."
            )
        made.setdefault(column.strip(), {})[written] = meant
    return made


def _paired(option: str, given: Iterable[str]) -> dict[str, str]:
    """`name=value` options as a dict; several may be given in one, with commas between."""
    made = {}
    for text in given:
        parts = text.split(",")
        for part in parts if all("=" in one for one in parts) else [text]:
            name, sign, value = (side.strip() for side in part.partition("="))
            if not (name and sign and value) or "=" in value:
                raise UsageError(
                    f"{PAIRS[option].split()[0]} takes name=value, as in {PAIRS[option]}, not"
                    f" {text!r}."
                )
            made[name] = value
    return made


@data_app.command("import")
@with_columns
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="a file (csv, xlsx, parquet, npz) or a folder of pictures a party; or one file",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="folder for the imported data, then used as --data FOLDER")
    ],
    wishes: dict[str, Any],
    skip_unlabelled: SkipUnlabelled = False,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="follow this schema.json, which all parties agreed on"),
    ] = None,
    size: Annotated[
        int | None, typer.Option("--size", help="pixels a side that images are brought to")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="what to call the data")] = None,
    classes: Annotated[
        int | None, typer.Option("--classes", help="how many there are, if not all are seen")
    ] = None,
    standardise: Annotated[
        bool, typer.Option("--standardise", help="the same as --scale own", hidden=True)
    ] = False,
) -> None:
    """Bring one's own federation, or one's own part of one."""
    from comity.cli import screen
    from comity.data.importing import import_federation
    from comity.data.tables import read_schema, summarize_schema

    if standardise:
        wishes = {"scale": "own", **wishes}
    agreed = None if schema is None else read_schema(schema)
    made = import_federation(
        source,
        out,
        name=name,
        size=size,
        classes=classes,
        schema=agreed,
        skip_unlabelled=skip_unlabelled,
        **wishes,
    )
    (names,) = (g.names for g in made.groups.values())
    parties = "the party" if len(names) == 1 else f"{len(names)} parties"
    screen.out.print(
        f"{len(made)} samples of {parties} ({', '.join(names)}), "
        + (f"{made.classes} classes" if made.classes else "a number to be predicted")
        + (f" ({', '.join(made.class_names)})" if made.class_names else "")
        + f", in {out}",
        soft_wrap=True,
    )
    for note in (
        *made.warnings,
        *(summarize_schema(made.schema, is_given=schema is not None) if made.schema else ()),
    ):
        screen.out.print(note, soft_wrap=True)
    screen.out.print(
        f"Use them with --data {out}; look at them with comity data inspect --data {out}",
        soft_wrap=True,
    )


@data_app.command("schema")
@with_columns
def schema(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER|FILE...",
            help="parties' tables, or the schema files that parties made of theirs",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="the schema's file")],
    wishes: dict[str, Any],
    skip_unlabelled: SkipUnlabelled = False,
) -> None:
    """What parties' tables have in common: columns, words, classes. Parties who never see each
    other's files agree on one.

    Each describes its own file (`comity data schema north.csv --out north.json`); these go to one
    of them, who makes one of all (`comity data schema north.json south.json --out schema.json`),
    which everybody imports by. They hold no rows, but all words of all columns of words.
    """
    from comity.cli import screen
    from comity.data.formats.common import join_names
    from comity.data.tables import agreed_schema

    made = agreed_schema(sources, skip_unlabelled=skip_unlabelled, **wishes)
    if out.exists():
        raise UsageError(f"{out} is there already: choose another --out.")
    made.write(out)
    rows = [
        [
            c.name,
            c.kind,
            join_names(c.words, 6) if c.words else c.unit,
            "yes" if c.may_be_missing else "no",
        ]
        for c in made.columns
    ]
    screen.table(
        ["column", "kind", "words or unit", "may be missing"],
        rows,
        f"{made.label}: {join_names(made.classes) or 'a number'}",
        words=4,
    )
    for column, why in made.left_out.items():
        screen.out.print(f"{column} is left out: it {why}.", soft_wrap=True)
    screen.out.print(
        f"The schema is in {out}: read it, then import with --schema {out}", soft_wrap=True
    )


@data_app.command("split")
@with_experiment
def split(
    settings: Settings,
    out: Annotated[
        Path, typer.Option("--out", help="folder for the parties' files; it must not exist yet")
    ],
) -> None:
    """Split a dataset: write each party's samples to a file of its own.

    The files are what the parties would have if the data had never been pooled.
    """
    from comity.cli import screen
    from comity.data.formats.common import join_names
    from comity.data.split_files import write_party_files
    from comity.runs.build import federation_of

    asked = experiment(settings)
    federation = federation_of(asked).without(asked.without or ())
    files = write_party_files(federation, asked.data, out)
    screen.out.print(
        f"{len(files)} files are in {out}: {join_names((file.name for file in files), 8)}",
        soft_wrap=True,
    )
