"""The files that parties bring: which there are in a folder, whose they are, and what kind of data
they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from comity.data.formats.common import bad, inside, present
from comity.data.split import check_name
from comity.errors import UsageError

KINDS = {
    ".npz": "arrays",
    ".csv": "a table",
    ".csv.gz": "a table",
    ".xlsx": "a table",
    ".parquet": "a table",
}
TABLES = "a table"
PICTURES = "pictures"
ENDINGS = ".npz, .csv, .csv.gz, .xlsx or .parquet"


def parties_in(source: Path) -> dict[str, Path]:
    """The parties' files or folders, by name: those of a folder, or the one that is named."""
    if source.is_dir():
        return _parties(source)
    if not source.exists() and not source.suffix:
        raise UsageError(f"There is no folder {source}.")
    path = present(source)
    if not (ending := ending_of(path)):
        raise bad(path, f"is no party's file: it must be {ENDINGS}")
    name = path.name[: -len(ending)]
    check_name(name)
    return {name: path}


def stem(source: Path) -> str:
    name = source.resolve().name
    return name[: -len(ending_of(source))] if source.is_file() else name


def one_kind(found: Mapping[str, Path]) -> str:
    """What all parties bring."""
    kinds = {name: _kind(path) for name, path in found.items()}
    first, kind = next(iter(kinds.items()))
    for name, other in kinds.items():
        if other != kind:
            raise UsageError(
                f"Party {name!r} brings {other} but party {first!r} {kind}: all parties must bring"
                " the same."
            )
    return kind


def _parties(root: Path) -> dict[str, Path]:
    """The parties' files or folders, by name."""
    if (root / "dataset.json").exists():
        raise bad(root, "is a dataset of Comity's already: use it as it is, with --data")
    found: dict[str, Path] = {}
    for path in inside(root):
        ending = ending_of(path)
        if path.name.startswith("~$") or path.name.lower() in ("thumbs.db", "desktop.ini"):
            continue  # what Excel and file managers leave behind
        if path.suffix.lower() == ".xls":
            raise bad(path, "is an Excel file of the old kind: save it as .xlsx")
        if path.is_file() and not ending:
            raise bad(path, f"is no party's file: it must be {ENDINGS}, or a folder of pictures")
        name = path.name if path.is_dir() else path.name[: -len(ending)]
        check_name(name)
        if name in found:
            raise UsageError(
                f"Party {name!r} has two files, {found[name].name} and {path.name}: keep one of"
                " them."
            )
        found[name] = path
    if not found:
        raise bad(root, "is empty: put one file or folder a party into it")
    return found


def ending_of(path: Path) -> str:
    """What a file's name ends with, if it can be a party's."""
    return next((ending for ending in KINDS if path.name.lower().endswith(ending)), "")


def _kind(path: Path) -> str:
    return PICTURES if path.is_dir() else KINDS[ending_of(path)]
