"""Where a dataset's files are: in the folders named by COMITY_DATA, and prepared once in a cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from comity.data import prepared
from comity.data.dataset import Dataset
from comity.errors import Refusal

Found = Mapping[str, Path]


@dataclass(frozen=True)
class Way:
    """One set of files that a dataset can be read from, and how; a file may be there plain or with .gz."""

    read: Callable[[Found], Dataset]
    files: tuple[str, ...]
    says: str = ""
    """How to name these files to a person, if not one by one."""
    pickles: bool = False
    """Whether reading them runs what they hold, so that a person has to say yes."""

    def __str__(self) -> str:
        return self.says or ", ".join(self.files)


def data_folders() -> list[Path]:
    """The folders of COMITY_DATA."""
    return [Path(part).expanduser() for part in os.environ.get("COMITY_DATA", "").split(os.pathsep) if part]


def cache_folder() -> Path:
    """Where prepared datasets are kept."""
    base = os.environ.get("COMITY_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "comity"


def _places(name: str) -> Iterator[Path]:
    """A folder itself, and those inside it that are called after the dataset, with torchvision's `raw`."""
    for folder in data_folders():
        for inner in (".", name, name.upper(), name.replace("-", "_")):
            for depth in (".", "raw"):
                yield folder / inner / depth


def locate(name: str, way: Way) -> dict[str, Path] | None:
    """All files of a way in one place, or nothing."""
    for place in _places(name):
        found = {}
        for file in way.files:
            there = next((p for p in (place / file, place / f"{file}.gz") if p.exists()), None)
            if there is None:
                break
            found[file] = there
        else:
            return found
    return None


def obtain(name: str, ways: tuple[Way, ...], trust: bool = False) -> Dataset:
    """A dataset by the first way whose files are here; read once, and from then on taken from the cache."""
    refused = None
    for way in ways:
        if (found := locate(name, way)) is None:
            continue
        kept = cache_folder() / f"{name}-{_key(found)}"
        if kept.exists():
            try:
                return prepared.read(kept)
            except Refusal:  # a damaged copy is no loss: read the files again
                return way.read(found)
        if way.pickles and not trust:
            refused = found
            continue
        return _keep(way.read(found), kept)
    if refused is not None:
        file = next(iter(refused.values()))
        raise Refusal(f"{file} holds pickles, which can run anything: get the binary version of {name}, or read it once with "
                      f"'comity data prepare {name} --trust-pickle'.")
    raise Missing(name, ways)


def _keep(made: Dataset, folder: Path) -> Dataset:
    """The same dataset from the cache, where it can be written."""
    try:
        prepared.save(made, folder)
        return prepared.read(folder)
    except OSError:
        return made


def _key(found: Found) -> str:
    """Changes when a file does."""
    mark = blake2b(f"v{prepared.VERSION}".encode(), digest_size=8)
    for name, path in sorted(found.items()):
        every = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in every:
            about = file.stat()
            mark.update(f"{name} {file.resolve()} {about.st_size} {about.st_mtime_ns}".encode())
    return mark.hexdigest()


class Missing(Refusal):
    """A dataset that is not on this machine."""

    def __init__(self, name: str, ways: tuple[Way, ...], hub: str = "") -> None:
        self.name, self.ways = name, ways
        folders = ", ".join(map(str, data_folders()))
        where = f"the folder named by COMITY_DATA ({folders})" if folders else "a folder and name it with COMITY_DATA"
        others = f"; or take it from the Hugging Face hub with --data hub:{hub}" if hub else ""
        super().__init__(f"The files of {name} are not here: put {' or '.join(map(str, ways))} into {where}{others}.")
