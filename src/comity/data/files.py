"""Files of datasets: search in the folders of COMITY_DATA, and a cache of prepared datasets."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b, file_digest
from pathlib import Path

from comity.data import prepared
from comity.data.dataset import Dataset
from comity.errors import UsageError

FilePaths = Mapping[str, Path]


@dataclass(frozen=True)
class FileLayout:
    """A set of files that a dataset can be read from, and the function that reads them.

    Each file may be plain or compressed (with .gz).
    """

    read: Callable[[FilePaths], Dataset]
    files: tuple[str, ...]
    description: str = ""
    """How messages name these files. Default: one by one."""
    pickles: bool = False
    """Whether the files hold pickles, so that the user must agree to reading them."""
    sums: Mapping[str, str] = field(default_factory=dict)
    """The md5 or sha256 of the published files by file name; several are separated by spaces."""

    def __str__(self) -> str:
        return self.description or ", ".join(self.files)


def data_folders() -> list[Path]:
    """The folders of COMITY_DATA."""
    return [
        Path(part).expanduser()
        for part in os.environ.get("COMITY_DATA", "").split(os.pathsep)
        if part
    ]


def cache_folder() -> Path:
    """The folder of the dataset cache."""
    base = os.environ.get("COMITY_CACHE")
    return (
        Path(base)
        if base
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "comity"
    )


def _search_folders(name: str) -> Iterator[Path]:
    """The folders to search: those of COMITY_DATA, and subfolders named after the dataset.

    Names are compared without case, hyphens and underscores (MNIST_M is mnist-m). The subfolder
    `raw` of each, which torchvision makes, is searched too.
    """

    def simplify(text: str) -> str:
        return text.lower().replace("-", "").replace("_", "")

    for folder in data_folders():
        named_folders = (
            sorted(p for p in folder.iterdir() if simplify(p.name) == simplify(name) and p.is_dir())
            if folder.is_dir()
            else []
        )
        for location in (folder, *named_folders):
            yield location
            yield location / "raw"


def locate(name: str, layout: FileLayout) -> dict[str, Path] | None:
    """The paths of all files of a layout in one folder; None if no folder has them."""
    for folder in _search_folders(name):
        paths = {}
        for file in layout.files:
            path = next((p for p in (folder / file, folder / f"{file}.gz") if p.exists()), None)
            if path is None:
                break
            paths[file] = path
        else:
            return paths
    return None


def load_dataset(name: str, layouts: tuple[FileLayout, ...], trust: bool = False) -> Dataset:
    """Load a dataset from the first layout whose files are found, or from the cache.

    Args:
        name: name of the dataset.
        layouts: possible files, in the order of preference.
        trust: whether pickles may be read.

    Raises:
        DatasetNotFound: if no layout has all its files.
        UsageError: if the only files found hold pickles and `trust` is false.
    """
    refused_paths = None
    for layout in layouts:
        if (paths := locate(name, layout)) is None:
            continue
        cached = cache_folder() / f"{name}-{_cache_key(paths)}"
        if (dataset := read_cache(cached)) is not None:
            return dataset
        if layout.pickles and not trust:
            refused_paths = paths
            continue
        dataset = layout.read(paths)
        checksums = checksum_warnings(name, layout.sums, paths)
        return write_cache(
            replace(dataset, warnings=(*dataset.warnings, *checksums)) if checksums else dataset,
            cached,
            paths.values(),
        )
    if refused_paths is not None:
        file = next(iter(refused_paths.values()))
        raise UsageError(
            f"{file} holds pickles, which can run anything: get the binary version of {name}, or"
            f" read it once with 'comity data prepare {name} --trust-pickle'."
        )
    raise DatasetNotFound(name, layouts)


def read_cache(folder: Path) -> Dataset | None:
    """Read a cached dataset; None if there is none. A damaged copy is removed."""
    if not folder.exists():
        return None
    try:
        return prepared.read(folder)
    except UsageError:
        shutil.rmtree(folder, ignore_errors=True)
        return None


def write_cache(dataset: Dataset, folder: Path, sources: Iterable[Path] = ()) -> Dataset:
    """Write a dataset to the cache and read it back; unchanged if the cache is not writable.

    Nobody can read the cached copy who cannot read the `sources` that the dataset was read from.
    """
    try:
        prepared.save(dataset, folder, sources)
        return prepared.read(folder)
    except (OSError, UsageError):
        return dataset


def checksum_warnings(name: str, sums: Mapping[str, str], paths: FilePaths) -> tuple[str, ...]:
    """A warning for each file whose checksum is not that of the published file.

    Such files are not refused, because users may have changed them on purpose.
    """
    warnings = []
    for path in paths.values():
        published = sums.get(path.name, "").split()
        if not published:
            continue
        kind = "md5" if len(published[0]) == 32 else "sha256"
        with path.open("rb") as stream:
            digest = file_digest(stream, kind).hexdigest()
        if digest not in published:
            warnings.append(
                f"{name}: {path.name} is not the published file (its {kind} is {digest})."
            )
    return tuple(warnings)


def _cache_key(paths: FilePaths) -> str:
    """A hash of the files' paths, sizes and modification times."""
    digest = blake2b(f"v{prepared.VERSION}".encode(), digest_size=8)
    for name, path in sorted(paths.items()):
        root = path.resolve()  # once per folder, which can hold a hundred thousand files
        files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
        for file in files:
            status = file.stat()
            digest.update(f"{name} {file} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


class DatasetNotFound(UsageError):
    """The files of a dataset are not on this machine."""

    def __init__(self, name: str, layouts: tuple[FileLayout, ...], hub: str = "") -> None:
        self.name = name
        self.layouts = layouts
        folders = ", ".join(map(str, data_folders()))
        where = (
            f"the folder named by COMITY_DATA ({folders})"
            if folders
            else "a folder and name it with COMITY_DATA"
        )
        alternative = f"; or take it from the Hugging Face hub with --data hub:{hub}" if hub else ""
        super().__init__(
            f"The files of {name} are not here: put {' or '.join(map(str, layouts))} into"
            f" {where}{alternative}."
        )
