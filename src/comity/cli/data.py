"""The commands `comity data`: inspect a federation, prepare a dataset, import your own data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from comity.cli import profile as _profile  # noqa: F401 - adds `comity data profile`
from comity.cli.options import Settings, data_app, print_warning, with_experiment, with_options
from comity.errors import UsageError
from comity.runs.config import experiment
from comity.text import shell_line


@data_app.command("inspect")
@with_experiment
def inspect_data(settings: Settings) -> None:
    """Show the training samples by party and class. For tables, also show missing values, ranges
    and possible errors.
    """
    from comity.cli import screen
    from comity.data import load
    from comity.data.inspection import inspect
    from comity.runs.build import federation_of

    base = experiment(settings)
    federation = federation_of(base).without(base.without or ())
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
    inspection = inspect(federation, load(base.data))
    parties = federation.names[:MAX_PARTIES]
    if any(share for by_party in inspection.missing.values() for share in by_party.values()):
        lines = [
            [column, *(_format_share(by_party[party]) for party in parties)]
            for column, by_party in inspection.missing.items()
        ]
        screen.table(["missing", *parties], lines, words=1)
    if inspection.ranges:
        lines = [
            [column, *(_format_range(by_party[party]) for party in parties)]
            for column, by_party in inspection.ranges.items()
        ]
        screen.table(["5th, middle, 95th", *parties], lines, words=1)
    if inspection.missing and len(parties) < len(federation.names):
        screen.out.print(f"The tables of columns show only the first {MAX_PARTIES} parties.")
    for caveat in inspection.caveats:
        print_warning(caveat)


MAX_PARTIES = 8  # parties side by side in a table


def _format_share(missing: float) -> str:
    """Return the fraction of missing values as text."""
    if not missing:
        return "·"
    return f"{missing:.0%}" if missing >= 0.01 else "<1%"


def _format_range(percentiles: tuple[float, float, float] | None) -> str:
    """Return the 5th, 50th and 95th percentile of a party's values as text."""
    return "·" if percentiles is None else ", ".join(f"{value:.4g}" for value in percentiles)


@data_app.command("prepare")
def prepare(
    name: Annotated[str, typer.Argument(metavar="DATASET")],
    trust: Annotated[
        bool,
        typer.Option("--trust-pickle", help="read pickle files, which can run any code"),
    ] = False,
) -> None:
    """Read the files of a dataset once, so that runs load it from the cache."""
    from comity.cli import screen
    from comity.data import load

    dataset = load(name, trust)
    parties = ", ".join(f"{len(g.names)} by {by}" for by, g in dataset.groups.items())
    shape = "x".join(map(str, dataset.shape))
    screen.out.print(
        f"{dataset.name}: {len(dataset)} samples of shape {shape}, {dataset.classes} classes"
        + (f", natural parties: {parties}" if parties else ""),
        soft_wrap=True,
    )
    for warning in dataset.warnings:
        screen.out.print(warning, soft_wrap=True)


def _option(flag: str, description: str, kind: Any = str) -> Any:
    return Annotated[kind | None, typer.Option(flag, help=description, show_default=False)]


COLUMN_OPTIONS = {
    "label": _option("--label", "column to predict; default: label"),
    "columns": _option("--columns", "use only these columns, as in a,b", list[str]),
    "drop": _option("--drop", "do not use these columns, as in a,b", list[str]),
    "kinds": _option("--kind", "type of a column: age=number, ward=words or ill=flag", list[str]),
    "missing": _option(
        "--missing",
        "codes for missing values: -9,unknown; of one party, one column, or both: north:-9,"
        " glucose=999, north:glucose=999",
        list[str],
    ),
    "rename": _option("--rename", "column name in the file and its new name: Alter=age", list[str]),
    "units": _option(
        "--unit",
        "unit of a column, as in age=years, or in one party's file: north:glucose=mmol/l",
        list[str],
    ),
    "convert": _option(
        "--convert",
        "other unit of a column, and the factor to its unit: glucose:mmol/l=18.02",
        list[str],
    ),
    "words": _option("--word", "word in the file and its meaning: sex:m=male", list[str]),
    "merge_case": _option(
        "--merge-case/--keep-case",
        "whether words that differ only in case or spaces are the same",
        bool,
    ),
    "scale": _option(
        "--scale",
        "standardise numbers by each party's statistics (own), by those of all parties (shared),"
        " or not (none)",
    ),
    "constants": _option(
        "--constant",
        "mean and standard deviation to scale a column by, as in age=60,15: numbers that come from"
        " no record, which differential privacy needs; all columns of numbers, or none",
        list[str],
    ),
    "positive": _option("--positive", "positive class for sensitivity, as in dead"),
    "keep_label_words": _option(
        "--keep-label-words",
        "label words that look like other parties' words are classes of their own",
        bool,
    ),
}
"""The options about the columns of tables, by the keywords of the import functions."""
Group = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="column with the patient of each row, as in patient_id: a patient's rows stay together"
        " in a split, and +dp protects them together",
    ),
]
DropCopies = Annotated[
    bool,
    typer.Option(
        "--drop-copies", help="keep only the first of rows that are equal in all columns used"
    ),
]
SkipUnlabelled = Annotated[
    bool, typer.Option("--skip-unlabelled", help="skip rows without a label")
]


def with_columns(command: Callable[..., None]) -> Callable[..., None]:
    """Add all options about columns to a command, which receives the typed ones as `wishes`."""

    def read(typed: dict[str, Any]) -> dict[str, Any]:
        values = {name: _parse_option(name, value) for name, value in typed.items()}
        options = {name: value for name, value in values.items() if value is not None}
        return options | _parse_notations(typed.get("missing") or (), typed.get("units") or ())

    return with_options(command, COLUMN_OPTIONS, "wishes", read)


def _parse_option(name: str, typed: Any) -> Any:
    """Convert the typed value of an option for the import functions.

    Lists may be given in one option with commas, or in several options.
    """
    if name in ("missing", "units"):
        return None  # `_parse_notations` reads them
    if name in PAIRS:
        return _parse_pairs(name, typed or ()) or None
    if name in PARSERS:
        return PARSERS[name](typed or ()) or None
    return typed


def _parse_names(texts: Iterable[str]) -> tuple[str, ...]:
    """Parse texts such as `a,b` into a tuple of names."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


PAIRS = {"kinds": "--kind age=number", "rename": "--rename Alter=age", "units": "--unit age=years"}


def _parse_notations(missing: Iterable[str], units: Iterable[str]) -> dict[str, Any]:
    """Parse the codes and units of all parties, and of single ones, for the import functions.

    A text is `[PARTY:][COLUMN=]CODE,CODE...` or `[PARTY:]COLUMN=UNIT`.
    """
    codes: dict[str, dict[str, tuple[str, ...]]] = {}
    for text in missing:
        party, column, words = _split_place(text)
        texts = tuple(word.strip() for word in words.split(",") if word.strip())
        of_party = codes.setdefault(party, {})
        of_party[column] = (*of_party.get(column, ()), *texts)
    party_units: dict[str, dict[str, str]] = {}
    for name, unit in _parse_pairs("units", units).items():
        party, column, _ = _split_place(f"{name}=")
        party_units.setdefault(party, {})[column] = unit
    return _notation_options(codes, party_units)


def _split_place(text: str) -> tuple[str, str, str]:
    """The party, the column and the rest of `[PARTY:][COLUMN=]REST`; "" for a part that is not
    there.
    """
    match = re.fullmatch(r"(?:([^:=]*):)?(?:([^=]*)=)?(.*)", text, re.DOTALL)
    assert match is not None
    party, column, rest = match.groups(default="")
    return party.strip(), column.strip(), rest.strip()


def _notation_options(
    codes: dict[str, dict[str, tuple[str, ...]]], units: dict[str, dict[str, str]]
) -> dict[str, Any]:
    """The options about codes and units; the party and the column "" stand for all."""
    from comity.data.preparation import PartyNotation

    common, common_units = codes.pop("", {}), units.pop("", {})
    notations = {}
    for party in dict.fromkeys((*codes, *units)):
        of_party = codes.get(party, {})
        missing = of_party.pop("", ())
        notations[party] = PartyNotation(missing, of_party, units.get(party, {}))
    options = {
        "missing": common.pop("", ()),
        "also_missing": common,
        "units": common_units,
        "parties": notations,
    }
    return {name: value for name, value in options.items() if value}


def _parse_constants(texts: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Parse texts such as `column=mean,std` into a dict."""
    constants = {}
    for text in texts:
        column, _, numbers = text.rpartition("=")
        try:
            mean, std = (float(part) for part in numbers.split(","))
        except ValueError:
            column = ""
        if not column.strip():
            raise UsageError(
                f"--constant takes column=mean,std, as in --constant age=60,15, not {text!r}."
            )
        constants[column.strip()] = mean, std
    return constants


def _parse_conversions(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Parse texts such as `column:unit=factor` or `column:unit=factor,added` into dicts."""
    conversions: dict[str, dict[str, Any]] = {}
    for column, rules in _parse_words(texts, "--convert", "glucose:mmol/l=18.02").items():
        for unit, text in rules.items():
            try:
                numbers = [float(part) for part in text.split(",")]
            except ValueError:
                numbers = []
            if len(numbers) not in (1, 2):
                raise UsageError(
                    "--convert takes column:unit=factor, as in --convert glucose:mmol/l=18.02, not"
                    f" {text!r} as a factor."
                )
            rule = numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])
            conversions.setdefault(column, {})[unit] = rule
    return conversions


def _parse_words(
    texts: Iterable[str], option: str = "--word", example: str = "sex:m=male"
) -> dict[str, dict[str, str]]:
    """Parse texts such as `column:word=meaning` into dicts by column."""
    meanings: dict[str, dict[str, str]] = {}
    for text in texts:
        column, colon, pair = text.rpartition(":")
        word, sign, meaning = (side.strip() for side in pair.partition("="))
        if not (column.strip() and colon and word and sign and meaning):
            parts = "column:word=meaning" if option == "--word" else "column:unit=factor"
            raise UsageError(f"{option} takes {parts}, as in {option} {example}, not {text!r}.")
        meanings.setdefault(column.strip(), {})[word] = meaning
    return meanings


def _parse_pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse texts such as `name=value` or `name=value,name=value` into a dict."""
    pairs = {}
    for text in texts:
        parts = text.split(",")
        for part in parts if all("=" in part for part in parts) else [text]:
            name, sign, value = (side.strip() for side in part.partition("="))
            if not (name and sign and value) or "=" in value:
                raise UsageError(
                    f"{PAIRS[option].split()[0]} takes name=value, as in {PAIRS[option]}, not"
                    f" {text!r}."
                )
            pairs[name] = value
    return pairs


PARSERS: dict[str, Callable[[Iterable[str]], Any]] = {
    "columns": _parse_names,
    "drop": _parse_names,
    "words": _parse_words,
    "convert": _parse_conversions,
    "constants": _parse_constants,
}
"""The parsers of options that may be given several times, by their keywords."""


@data_app.command("import")
@with_columns
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="one file (csv, tsv, xlsx, parquet, npz) or image folder per party; or one file",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", help="folder for the imported data, to be used as --data FOLDER"),
    ],
    wishes: dict[str, Any],
    group: Group = None,
    skip_unlabelled: SkipUnlabelled = False,
    drop_copies: DropCopies = False,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="schema.json that all parties agreed on"),
    ] = None,
    size: Annotated[
        int | None, typer.Option("--size", help="resize images to this many pixels per side")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="name of the dataset")] = None,
    classes: Annotated[
        int | None,
        typer.Option("--classes", help="number of classes, if the data do not contain all of them"),
    ] = None,
    standardise: Annotated[
        bool, typer.Option("--standardise", help="the same as --scale own", hidden=True)
    ] = False,
) -> None:
    """Import your own federation, or your own part of one."""
    from comity.cli import screen
    from comity.data.importing import import_federation
    from comity.data.tables import read_schema, summarize_schema

    if standardise:
        wishes = {"scale": "own", **wishes}
    agreed_schema = None if schema is None else read_schema(schema)
    dataset = import_federation(
        source,
        out,
        name=name,
        size=size,
        classes=classes,
        schema=agreed_schema,
        skip_unlabelled=skip_unlabelled,
        drop_copies=drop_copies,
        group=group,
        **wishes,
    )
    (names,) = (g.names for g in dataset.groups.values())
    parties = "the party" if len(names) == 1 else f"{len(names)} parties"
    target = f"{dataset.classes} classes" if dataset.classes else "a number to be predicted"
    if dataset.class_names:
        target += f" ({', '.join(dataset.class_names)})"
    screen.out.print(
        f"{len(dataset)} samples of {parties} ({', '.join(names)}), {target}, in {out}",
        soft_wrap=True,
    )
    schema_sentences = (
        summarize_schema(dataset.schema, is_given=schema is not None) if dataset.schema else ()
    )
    if dropped := wishes.get("drop"):
        schema_sentences = (f"Dropped: {', '.join(dropped)}.", *schema_sentences)
    for sentence in (*dataset.warnings, *schema_sentences):
        screen.out.print(sentence, soft_wrap=True)
    screen.out.print(
        f"Use the data with {shell_line('--data', out)}; inspect them with"
        f" {shell_line('comity', 'data', 'inspect', '--data', out)}",
        soft_wrap=True,
    )


@data_app.command("schema")
@with_columns
def schema(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER|FILE...",
            help="tables of parties, or schema files that parties made of their tables",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="file of the schema")],
    wishes: dict[str, Any],
    skip_unlabelled: SkipUnlabelled = False,
    medians: Annotated[
        bool,
        typer.Option(
            "--medians/--no-medians",
            help="describe each column of numbers by its median, rounded to a power of two, so that"
            " another unit at a site is noticed",
        ),
    ] = True,
) -> None:
    """Write the common schema of tables: their columns, words and classes.

    Parties that may not see each other's files can agree on a schema. Each party describes its own
    file (`comity data schema north.csv --out north.json`). One of them merges these schemas
    (`comity data schema north.json south.json --out schema.json`), and all parties import with the
    result. Schemas contain no rows, but all words of the columns of words, and the lowest and the
    highest median of each column of numbers, rounded to a power of two (unless --no-medians).
    """
    from comity.cli import screen
    from comity.data.tables import common_schema
    from comity.text import join_names

    merged, warnings = common_schema(
        sources, skip_unlabelled=skip_unlabelled, medians=medians, **wishes
    )
    if out.exists():
        raise UsageError(f"{out} exists already: choose another --out.")
    merged.write(out)
    rows = [
        [
            c.name,
            c.kind,
            join_names(c.words, 6) if c.words else c.unit,
            "yes" if c.may_be_missing else "no",
            " to ".join(dict.fromkeys(f"{median:g}" for median in c.rounded_medians)),
        ]
        for c in merged.columns
    ]
    screen.table(
        ["column", "kind", "words or unit", "may be missing", "rounded median"],
        rows,
        f"{merged.label}: {join_names(merged.classes) or 'a number'}",
        words=4,
    )
    for column, reason in merged.left_out.items():
        screen.out.print(f"{column} is left out: it {reason}.", soft_wrap=True)
    if any(column.rounded_medians for column in merged.columns):
        screen.out.print(
            "Medians are rounded to powers of two. They show another unit at a site, and come from"
            " records: to leave them out, say --no-medians.",
            soft_wrap=True,
        )
    for warning in warnings:
        print_warning(warning)
    screen.out.print(
        f"The schema is in {out}: read it, then import with {shell_line('--schema', out)}",
        soft_wrap=True,
    )


@data_app.command("split")
@with_experiment
def split(
    settings: Settings,
    out: Annotated[
        Path, typer.Option("--out", help="folder for the parties' files; it must not exist yet")
    ],
) -> None:
    """Write one file per party from a split, as if the data were at several sites."""
    from comity.cli import screen
    from comity.data.split_files import write_party_files
    from comity.runs.build import federation_of
    from comity.text import join_names

    base = experiment(settings)
    files = write_party_files(federation_of(base).without(base.without or ()), base.data, out)
    screen.out.print(
        f"{len(files)} files are in {out}: {join_names((file.name for file in files), 8)}",
        soft_wrap=True,
    )
