"""Where a dataset's files are: in the folders named by COMITY_DATA, and prepared once in a cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b, file_digest
from pathlib import Path

from comity.data import prepared
from comity.data.dataset import Dataset
from comity.errors import UsageError

Found = Mapping[str, Path]


@dataclass(frozen=True)
class Way:
    """One set of files that a dataset can be read from, and how; a file may be there plain or with
    .gz.
    """

    read: Callable[[Found], Dataset]
    files: tuple[str, ...]
    says: str = ""
    """How to name these files to a person, if not one by one."""
    pickles: bool = False
    """Whether reading them runs what they hold, so that a person has to say yes."""
    sums: Mapping[str, str] = field(default_factory=dict)
    """The md5 or sha256 of the published files (several with spaces between), by the names that
    they have on disk.
    """

    def __str__(self) -> str:
        return self.says or ", ".join(self.files)


def data_folders() -> list[Path]:
    """The folders of COMITY_DATA."""
    return [
        Path(part).expanduser()
        for part in os.environ.get("COMITY_DATA", "").split(os.pathsep)
        if part
    ]


def cache_folder() -> Path:
    """Where prepared datasets are kept."""
    base = os.environ.get("COMITY_CACHE")
    return (
        Path(base)
        if base
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "comity"
    )


def _places(name: str) -> Iterator[Path]:
    """A folder itself, and those inside it that are called after the dataset (MNIST_M is mnist-m),
    with torchvision's `raw`.
    """

    def plain(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    for folder in data_folders():
        named = (
            sorted(p for p in folder.iterdir() if plain(p.name) == plain(name) and p.is_dir())
            if folder.is_dir()
            else []
        )
        for place in (folder, *named):
            yield place
            yield place / "raw"


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
    """A dataset by the first way whose files are here; read once, and from then on taken from the
    cache.
    """
    refused = None
    for way in ways:
        if (found := locate(name, way)) is None:
            continue
        kept = cache_folder() / f"{name}-{_key(found)}"
        if (ready := recall(kept)) is not None:
            return ready
        if way.pickles and not trust:
            refused = found
            continue
        made = way.read(found)
        told = checksum_warnings(name, way.sums, found)
        return keep(replace(made, warnings=(*made.warnings, *told)) if told else made, kept)
    if refused is not None:
        file = next(iter(refused.values()))
        raise UsageError(
            f"{file} holds pickles, which can run anything: get the binary version of {name}, or"
            f" read it once with 'comity data prepare {name} --trust-pickle'."
        )
    raise Missing(name, ways)


def recall(folder: Path) -> Dataset | None:
    """What is kept in a folder of the cache; a damaged copy is no loss, and is removed."""
    if not folder.exists():
        return None
    try:
        return prepared.read(folder)
    except UsageError:
        shutil.rmtree(folder, ignore_errors=True)
        return None


def keep(made: Dataset, folder: Path) -> Dataset:
    """The same dataset from the cache, where it can be written."""
    try:
        prepared.save(made, folder)
        return prepared.read(folder)
    except (OSError, UsageError):
        return made


def checksum_warnings(name: str, sums: Mapping[str, str], found: Found) -> tuple[str, ...]:
    """A sentence for each file that should be a published one and is another: a person may want
    that, so it is not refused.
    """
    warnings = []
    for path in found.values():
        published = sums.get(path.name, "").split()
        if not published:
            continue
        kind = "md5" if len(published[0]) == 32 else "sha256"
        with path.open("rb") as stream:
            mine = file_digest(stream, kind).hexdigest()
        if mine not in published:
            warnings.append(
                f"{name}: {path.name} is not the published file (its {kind} is {mine})."
            )
    return tuple(warnings)


def _key(found: Found) -> str:
    """A short name for these files as they are now: it changes when one of them does."""
    mark = blake2b(f"v{prepared.VERSION}".encode(), digest_size=8)
    for name, path in sorted(found.items()):
        root = path.resolve()  # once: a folder can hold a hundred thousand files
        every = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
        for file in every:
            about = file.stat()
            mark.update(f"{name} {file} {about.st_size} {about.st_mtime_ns}".encode())
    return mark.hexdigest()


class Missing(UsageError):
    """A dataset that is not on this machine."""

    def __init__(self, name: str, ways: tuple[Way, ...], hub: str = "") -> None:
        self.name = name
        self.ways = ways
        folders = ", ".join(map(str, data_folders()))
        where = (
            f"the folder named by COMITY_DATA ({folders})"
            if folders
            else "a folder and name it with COMITY_DATA"
        )
        others = f"; or take it from the Hugging Face hub with --data hub:{hub}" if hub else ""
        super().__init__(
            f"The files of {name} are not here: put {' or '.join(map(str, ways))} into"
            f" {where}{others}."
        )
