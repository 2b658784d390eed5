"""Descriptions of the datasets, from the TOML files beside this module.

Each module with readers has a TOML file of the same name, with one table per dataset. The keys are
the fields of `Description` and of `Layout`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from comity.data.dataset import DEFAULT_PARTITION, Dataset
from comity.data.files import FileLayout
from comity.data.library import Card, Entry, register
from comity.errors import ComityError, UsageError, unknown
from comity.spec import Spec, bind_options

STRICT = ConfigDict(strict=True, extra="forbid")
Checksums = Annotated[str, Field(pattern=r"^([0-9a-f]{32}|[0-9a-f]{64}( [0-9a-f]{64})*)$")]
EMPTY: Mapping[str, Any] = {}
Reader = Callable[..., Dataset]
"""A function of the description, the paths of the files and the options of the layout."""


@dataclass(frozen=True)
class Layout:
    """Files that a dataset can be read from; see `FileLayout`."""

    __pydantic_config__ = STRICT

    reader: str
    """The name of the function that reads the files."""
    files: tuple[str, ...]
    description: str = ""
    pickles: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the reader."""


@dataclass(frozen=True)
class Description(Card):
    """The card of a dataset, with what only its readers and its files need."""

    __pydantic_config__ = STRICT

    like: str = ""
    """A dataset of the same TOML file, whose values hold for all keys that are not given."""
    layouts: tuple[Layout, ...] = ()
    """The possible files, in the order of preference."""
    checksums: Mapping[str, Checksums] = field(default_factory=dict)
    """The md5 as published, or the sha256 of subsets, by file name; see `FileLayout`."""
    default_partition: str = DEFAULT_PARTITION
    class_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """The names of the image sources."""
    parts: tuple[str, ...] = ()
    """The datasets that this one is combined from."""
    query_and_gallery: tuple[Layout, ...] = ()
    """The possible files of the test part of a re-identification dataset."""
    column_words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The known words of each column of a table."""


def read_descriptions(path: Path) -> dict[str, Description]:
    """Read the descriptions of the datasets in a TOML file, by name.

    Raises:
        ComityError: if the file is not valid.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        complete = {name: _complete(name, tables) for name in tables}
        # Strict validation accepts an array for a tuple only if it reads JSON.
        return _validator().validate_json(json.dumps(complete))
    except ValidationError as why:
        error = why.errors()[0]
        key = ".".join(map(str, error["loc"]))
        if error["type"] == "unexpected_keyword_argument":
            raise ComityError(f"{path}: {key} is not a known key.") from why
        raise ComityError(
            f"{path}: {key} is not valid: {error['msg']}, not {error['input']!r}."
        ) from why
    except (OSError, TypeError, ValueError) as why:
        raise ComityError(f"{path} cannot be read: {why}.") from why


@cache
def _validator() -> TypeAdapter[dict[str, Description]]:
    return TypeAdapter(dict[str, Description])


def _complete(name: str, tables: Mapping[str, Any]) -> Any:
    """The table of a dataset with its name, and with the values of the dataset that it is like."""
    table = tables[name]
    if not isinstance(table, dict):
        return table  # validation refuses it
    if "name" in table:
        raise ValueError(f"{name}.name is not a known key: the name is that of the table")
    base = str(table.get("like", name))
    if base not in tables:
        raise ValueError(f"{name} is like {base!r}, which is not in this file")
    return tables[base] | table | {"name": name}


def _file_layouts(
    card: Description, layouts: tuple[Layout, ...], readers: Mapping[str, Reader]
) -> tuple[FileLayout, ...]:
    """Layouts of a dataset with the functions that read them.

    Raises:
        UsageError: if a reader is unknown, or an option is not one of the reader's.
    """
    result = []
    for layout in layouts:
        if layout.reader not in readers:
            raise unknown("reader", layout.reader, readers)
        reader = readers[layout.reader]
        options = bind_options(Spec(layout.reader, options=dict(layout.options)), reader, fixed=2)
        result.append(
            FileLayout(
                partial(reader, card, **options),
                layout.files,
                layout.description,
                layout.pickles,
                card.checksums,
            )
        )
    return tuple(result)


def register_datasets(
    path: Path,
    *,
    readers: Mapping[str, Reader] = EMPTY,
    make: Mapping[str, Callable[[Description], Dataset]] = EMPTY,
    join: Mapping[str, Callable[..., Dataset]] = EMPTY,
    options: Mapping[str, Callable[..., Dataset]] = EMPTY,
) -> None:
    """Add the datasets of a TOML file to the library.

    Args:
        path: the TOML file
        readers: the functions that the layouts name
        make: for each dataset that needs no files, the function that makes it
        join: for each dataset with parts, the function of the description, the parts by name and
            the names of the missing ones
        options: for each dataset with options, the function that applies them

    Raises:
        ComityError: if the file is not valid.
    """
    for name, card in read_descriptions(path).items():
        try:
            layouts = _file_layouts(card, card.layouts, readers)
            query_and_gallery = _file_layouts(card, card.query_and_gallery, readers)
        except UsageError as why:
            raise ComityError(f"{path}: {name}: {why}") from why
        register(
            Entry(
                card,
                layouts,
                make=partial(make[name], card) if name in make else None,
                parts=card.parts,
                join=partial(join[name], card) if name in join else None,
                options=options.get(name),
                query_and_gallery=query_and_gallery,
                family=path.stem,
            )
        )
