"""Commands about data: look at a federation, prepare a dataset's files, bring one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from comity.cli.options import Settings, data_app, with_experiment
from comity.experiments.config import experiment


@data_app.command("inspect")
@with_experiment
def inspect_data(settings: Settings) -> None:
    """Who has what: training samples by party and class."""
    from comity.cli import screen
    from comity.experiments.build import federation_of

    asked = experiment(settings)
    federation = federation_of(asked).without(asked.without or ())
    counts = federation.counts().tolist()
    shares = federation.split.parties
    shifts = any(share.shift for share in shares.values())
    rows = [
        [name, *([shares[name].shift or "none"] if shifts else []), *(str(len(s)) for s in (d.train, d.validation, d.test))]
        + [str(n) if n else "·" for n in line]
        for (name, d), line in zip(federation.parties.items(), counts, strict=True)
    ]
    columns = ["party", *(["shift"] if shifts else []), "train", "validation", "test", *map(str, range(federation.classes))]
    title = f"{federation.name}: samples of shape {'x'.join(map(str, federation.shape))}, {federation.split.partition}"
    screen.table(columns, rows, title, words=1 + shifts)


@data_app.command("prepare")
def prepare(
    name: Annotated[str, typer.Argument(metavar="DATASET")],
    trust: Annotated[bool, typer.Option("--trust-pickle", help="read files that hold pickles, which can run anything")] = False,
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
    for note in made.notes:
        screen.out.print(note, soft_wrap=True)


@data_app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="one file (npz, csv, parquet) or folder of images a party")],
    out: Annotated[Path, typer.Option("--out", help="folder for the imported data, then used as --data FOLDER")],
    label: Annotated[str, typer.Option("--label", help="the column of a table that holds the class")] = "label",
    size: Annotated[int | None, typer.Option("--size", help="pixels a side that images are brought to")] = None,
    name: Annotated[str | None, typer.Option("--name", help="what to call the data")] = None,
    classes: Annotated[int | None, typer.Option("--classes", help="how many there are, if not all are seen")] = None,
    standardise: Annotated[bool, typer.Option("--standardise", help="each party's columns, by its own figures")] = False,
) -> None:
    """Bring one's own federation."""
    from comity.cli import screen
    from comity.data.importing import import_federation

    scale: Literal["none", "own"] = "own" if standardise else "none"
    made = import_federation(source, out, name=name, label=label, size=size, classes=classes, scale=scale)
    (names,) = (g.names for g in made.groups.values())
    screen.out.print(
        f"{len(made)} samples of {len(names)} parties ({', '.join(names)}), {made.classes} classes, in {out}", soft_wrap=True
    )
    for note in made.notes:
        screen.out.print(note, soft_wrap=True)
    screen.out.print(f"Use them with --data {out}", soft_wrap=True)
