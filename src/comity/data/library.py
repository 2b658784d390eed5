"""The library of datasets: loading by name, and from users' files and folders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from comity.data import prepared
from comity.data.dataset import Dataset
from comity.data.files import DatasetNotFound, FileLayout, cache_folder, load_dataset, locate
from comity.errors import UsageError, unknown
from comity.plugins import call_from_file, is_code
from comity.spec import Spec, call, parse


@dataclass(frozen=True)
class Card:
    """The description of a dataset, available without its files.

    Samples and shape are those of the complete dataset.
    """

    name: str
    samples: int
    classes: int
    shape: tuple[int, ...]
    description: str
    licence: str
    groups: tuple[str, ...] = ()
    hub: str = ""
    """The name of the dataset on the Hugging Face hub."""
    missing: str = ""
    """How missing values are handled."""


@dataclass(frozen=True)
class Entry:
    """A dataset of the library: read from files, made in memory, or combined from others."""

    card: Card
    layouts: tuple[FileLayout, ...] = ()
    make: Callable[[], Dataset] | None = None
    parts: tuple[str, ...] = ()
    join: Callable[[Mapping[str, Dataset], tuple[str, ...]], Dataset] | None = None
    options: Callable[..., Dataset] | None = None
    """Applies the options in parentheses: a function of the dataset and the options."""
    query_and_gallery: tuple[FileLayout, ...] = ()
    """The files of the test part of a re-identification dataset."""
    family: str = ""
    """The module in `sets/` that describes the dataset. Lists are ordered by it."""

    def load(self, trust: bool = False) -> Dataset:
        """Load the dataset.

        Raises:
            DatasetNotFound: if its files are not on this machine.
        """
        if self.make:
            return self.make()
        if self.join:
            return self._load_parts()
        try:
            dataset = load_dataset(self.card.name, self.layouts, trust)
            # The cached description may be older than the card.
            return replace(dataset, description=self.card.description)
        except DatasetNotFound as error:
            raise DatasetNotFound(error.name, error.layouts, self.card.hub) from None

    def load_with_options(self, spec: Spec, trust: bool = False) -> Dataset:
        """Load the dataset with the options of `spec`."""
        if self.options is None:
            raise UsageError(f"{spec.name} has no options: leave out the parentheses.")
        return call(spec, self.options, self.load(trust))

    def _load_parts(self) -> Dataset:
        """Combine the parts that are available; missing ones are named in the warnings."""
        loaded = {}
        for name in self.parts:
            try:
                loaded[name] = load(name)
            except DatasetNotFound:
                continue
        absent = tuple(name for name in self.parts if name not in loaded)
        if not loaded:
            raise UsageError(
                f"No source of {self.card.name} is available ({', '.join(absent)}): put the"
                " files of some of them into a folder and name it with COMITY_DATA."
            )
        assert self.join
        digest = "-".join(part.fingerprint()[:6] for part in loaded.values())
        cached = cache_folder() / f"{self.card.name}-{prepared.VERSION}-{digest}"
        try:
            return prepared.read(cached)
        except UsageError:
            dataset = self.join(loaded, absent)
        with contextlib.suppress(OSError):  # the cache may be read-only
            prepared.save(dataset, cached)
        return dataset

    def is_available(self) -> bool:
        """Whether the dataset can be loaded on this machine."""
        if self.parts:
            return any(ENTRIES[part].is_available() for part in self.parts)
        return self.make is not None or any(
            locate(self.card.name, layout) for layout in self.layouts
        )


ENTRIES: dict[str, Entry] = {}


def register(entry: Entry) -> None:
    """Add a dataset to the library."""
    ENTRIES[entry.card.name] = entry


@cache
def _library() -> dict[str, Entry]:
    """All entries; each module in `sets/` registers its own when it is imported."""
    package = import_module("comity.data.sets")
    for module in iter_modules(package.__path__):
        import_module(f"comity.data.sets.{module.name}")
    # Modules may have been imported before, in any order.
    return dict(sorted(ENTRIES.items(), key=lambda item: item[1].family))


def catalogue() -> list[dict[str, object]]:
    """The cards of all datasets of the library, and whether they are available."""
    columns = [column.name for column in fields(Card)]
    return [
        {column: getattr(entry.card, column) for column in columns}
        | {"here": entry.is_available(), "files": " or ".join(map(str, entry.layouts))}
        for entry in _library().values()
    ]


def card(name: str) -> Card | None:
    """The card of a dataset of the library; None if there is none of that name."""
    entry = _library().get(name)
    return entry.card if entry else None


def load(name: str, trust_pickle: bool = False) -> Dataset:
    """Load a dataset.

    Args:
        name: a name of the library, with options in parentheses as in `har(layout=pfllib)`;
            `hub:owner/name` for the Hugging Face hub; an imported folder; or a Python file whose
            function `load()` returns a `Dataset`.
        trust_pickle: whether files that hold pickles may be read, which can run any code.

    Raises:
        UsageError: if there is no such dataset, or its files are not on this machine.

    Examples:
        >>> digits = load("digits")
        >>> len(digits), digits.shape, digits.classes
        (1797, (1, 8, 8), 10)
        >>> fed = digits.partition("dirichlet(alpha=0.5)", parties=3, seed=0)
        >>> fed.names
        ['p0', 'p1', 'p2']
    """
    if not isinstance(name, str | Path):
        raise UsageError(
            "A dataset is loaded by its name, as in comity.load('digits'), not by a"
            f" {type(name).__name__}."
        )
    name = str(name)
    if is_code(name):
        return _from_file(name)
    if name.startswith("hub:"):
        from comity.data.hub import from_hub

        return from_hub(name.removeprefix("hub:"))
    if (Path(name) / "dataset.json").is_file():
        return prepared.read(Path(name))
    library = _library()
    if name and name not in library and Path(name).is_dir():
        raise UsageError(
            f"{name} is a folder, but not a dataset: import it first, with 'comity data import"
            f" {name} --label ... --out ...'."
        )
    if name not in library and Path(name).is_file():
        raise UsageError(
            f"{name} is a file, but not a dataset: import it first, with 'comity data import {name}"
            " --label ... --out ...'."
        )
    spec = parse(name) if "(" in name else Spec(name)
    if spec.options and (Path(spec.name) / "dataset.json").is_file():
        hint = (
            "; for constants, import the files with --constant COLUMN=MEAN,STD for each column of"
            " numbers"
        )
        raise UsageError(
            f"{spec.name} is a folder of imported data, which takes no options such as"
            f" {next(iter(spec.options))!r}: how numbers are scaled is decided at the"
            f" import{hint if 'scale' in spec.options else ''}."
        )
    if spec.name not in library:
        raise unknown("dataset", spec.name, library)
    return (
        library[spec.name].load_with_options(spec, trust_pickle)
        if "(" in name
        else library[spec.name].load(trust_pickle)
    )


def _from_file(path: str) -> Dataset:
    """Call `load()` of a user's Python file."""
    result = call_from_file(path, "load")
    if not isinstance(result, Dataset):
        raise UsageError(
            f"load() of {path} must return a comity.data.Dataset, not a {type(result).__name__}."
        )
    return result
