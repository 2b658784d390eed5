"""The datasets that can be loaded by name, and those of a user's own file or folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from comity.data import prepared
from comity.data.dataset import Dataset
from comity.data.files import Missing, Way, cache_folder, locate, obtain
from comity.errors import UsageError, unknown
from comity.plugins import call_from_file, is_code
from comity.spec import Spec, call, parse


@dataclass(frozen=True)
class Card:
    """What can be said of a dataset without loading it; samples and shape are those of the complete
    one.
    """

    name: str
    samples: int
    classes: int
    shape: tuple[int, ...]
    description: str
    licence: str
    groups: tuple[str, ...] = ()
    hub: str = ""
    """Its name on the Hugging Face hub."""
    missing: str = ""
    """How missing values are handled."""


@dataclass(frozen=True)
class Entry:
    """A dataset in the library: read from files, made in memory, or put together from others that
    are here.
    """

    card: Card
    ways: tuple[Way, ...] = ()
    make: Callable[[], Dataset] | None = None
    parts: tuple[str, ...] = ()
    join: Callable[[Mapping[str, Dataset], tuple[str, ...]], Dataset] | None = None
    options: Callable[..., Dataset] | None = None
    """Makes of the dataset what options in parentheses ask for: its further parameters are the
    options.
    """

    def load(self, trust: bool = False) -> Dataset:
        """The dataset, or one sentence that says which files would be needed."""
        if self.make:
            return self.make()
        if self.join:
            return self._joined()
        try:
            kept = obtain(self.card.name, self.ways, trust)
            return replace(
                kept, description=self.card.description
            )  # its file may be older than what is said of it
        except Missing as why:
            raise Missing(why.name, why.ways, self.card.hub) from None

    def varied(self, spec: Spec, trust: bool = False) -> Dataset:
        """The dataset as its options say."""
        if self.options is None:
            raise UsageError(f"{spec.name} has no options: leave the parentheses away.")
        return call(spec, self.options, self.load(trust))

    def _joined(self) -> Dataset:
        """What is here of the parts, together; which ones are not is said in its warnings."""
        found = {}
        for name in self.parts:
            try:
                found[name] = load(name)
            except Missing:
                continue
        absent = tuple(name for name in self.parts if name not in found)
        if not found:
            raise UsageError(
                f"None of the sources of {self.card.name} is here ({', '.join(absent)}): put the"
                " files of some of them into a folder and name it with COMITY_DATA."
            )
        assert self.join
        mark = "-".join(part.fingerprint()[:6] for part in found.values())
        kept = cache_folder() / f"{self.card.name}-{prepared.VERSION}-{mark}"
        try:
            return prepared.read(kept)
        except UsageError:
            made = self.join(found, absent)
        with contextlib.suppress(OSError):  # a cache that cannot be written is no loss
            prepared.save(made, kept)
        return made

    def here(self) -> bool:
        """Whether it can be loaded now."""
        if self.parts:
            return any(ENTRIES[part].here() for part in self.parts)
        return self.make is not None or any(locate(self.card.name, way) for way in self.ways)


ENTRIES: dict[str, Entry] = {}


def register(entry: Entry) -> None:
    """Put a dataset into the library."""
    ENTRIES[entry.card.name] = entry


@cache
def _library() -> dict[str, Entry]:
    """All entries: each file in `sets/` registers its own."""
    package = import_module("comity.data.sets")
    for found in iter_modules(package.__path__):
        import_module(f"comity.data.sets.{found.name}")
    return ENTRIES


def catalogue() -> list[dict[str, object]]:
    """The cards of all datasets that have a name, and whether they are here."""
    return [
        asdict(e.card) | {"here": e.here(), "files": " or ".join(map(str, e.ways))}
        for e in _library().values()
    ]


def card(name: str) -> Card | None:
    """The card of a dataset that has a name."""
    entry = _library().get(name)
    return entry.card if entry else None


def load(name: str, trust_pickle: bool = False) -> Dataset:
    """A dataset by name, from the hub (`hub:owner/name`), an imported folder, or what `load()` in a
    user's .py file returns.

    A dataset with options has them in parentheses: `har(layout=pfllib)`.

    Examples:
        >>> digits = load("digits")
        >>> len(digits), digits.shape, digits.classes
        (1797, (1, 8, 8), 10)
        >>> fed = digits.partition("dirichlet(alpha=0.5)|shift(kinds=none,invert)", parties=3, seed=0)
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
            f"{name} is a folder, but no dataset: bring it in first, with 'comity data import"
            f" {name} --label ... --out ...'."
        )
    if name not in library and Path(name).is_file():
        raise UsageError(
            f"{name} is a file, but no dataset: bring it in first, with 'comity data import {name}"
            " --label ... --out ...'."
        )
    spec = parse(name) if "(" in name else Spec(name)
    if spec.name not in library:
        raise unknown("dataset", spec.name, library)
    return (
        library[spec.name].varied(spec, trust_pickle)
        if "(" in name
        else library[spec.name].load(trust_pickle)
    )


def _from_file(path: str) -> Dataset:
    """What `load()` in a user's Python file returns."""
    made = call_from_file(path, "load")
    if not isinstance(made, Dataset):
        raise UsageError(
            f"load() of {path} must return a comity.data.Dataset, not a {type(made).__name__}."
        )
    return made
