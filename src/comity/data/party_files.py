"""The parties' files to import: finding them in a folder, their party, and their kind of data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from comity.data.formats.common import existing_file, file_error, list_folder
from comity.data.split import check_name
from comity.errors import ErrorCollector, UsageError

KINDS = {
    ".npz": "arrays",
    ".csv": "a table",
    ".csv.gz": "a table",
    ".tsv": "a table",
    ".tsv.gz": "a table",
    ".tab": "a table",
    ".xlsx": "a table",
    ".parquet": "a table",
}
TABLES = "a table"
PICTURES = "pictures"
ENDINGS = ".npz, .csv, .csv.gz, .tsv, .tab, .xlsx or .parquet"


def find_party_files(source: Path) -> dict[str, Path]:
    """The parties' files or folders, by party name.

    Args:
        source: a folder with one file or folder per party, or one party's file.

    Raises:
        UsageError: if there is none, or a file is not a party's.
    """
    if source.is_dir():
        return _find_in_folder(source)
    if not source.exists() and not source.suffix:
        raise UsageError(f"There is no folder {source}.")
    path = existing_file(source)
    if not (ending := file_ending(path)):
        raise file_error(path, f"is not a party's file: it must be {ENDINGS}")
    name = path.name[: -len(ending)]
    check_name(name)
    return {name: path}


def source_name(source: Path) -> str:
    """The name of a folder, or of a file without its ending."""
    name = source.resolve().name
    return name[: -len(file_ending(source))] if source.is_file() else name


def common_kind(paths: Mapping[str, Path]) -> str:
    """The kind of data of all parties; refuse different kinds."""
    kinds = {name: _kind(path) for name, path in paths.items()}
    first, kind = next(iter(kinds.items()))
    for name, other in kinds.items():
        if other != kind:
            raise UsageError(
                f"Party {name!r} brings {other} but party {first!r} {kind}: all parties must bring"
                " the same."
            )
    return kind


def _find_in_folder(root: Path) -> dict[str, Path]:
    """The files and folders in a folder, by party name."""
    if (root / "dataset.json").exists():
        raise file_error(root, "is already an imported dataset: use it with --data")
    paths: dict[str, Path] = {}
    errors = ErrorCollector()
    for path in list_folder(root):
        if path.name.startswith("~$") or path.name.lower() in ("thumbs.db", "desktop.ini"):
            continue  # leftovers of Excel and file managers
        with errors.collect():
            name = _party_name(path)
            if name in paths:
                raise UsageError(
                    f"Party {name!r} has two files, {paths[name].name} and {path.name}: keep one of"
                    " them."
                )
            paths[name] = path
    errors.check()
    if not paths:
        raise file_error(root, "is empty: put one file or folder per party into it")
    return paths


def _party_name(path: Path) -> str:
    """The name of the party that a file or folder belongs to."""
    ending = file_ending(path)
    if path.suffix.lower() == ".xls":
        raise file_error(path, "is an Excel file of the old format: save it as .xlsx")
    if path.is_file() and not ending:
        raise file_error(
            path, f"is not a party's file: it must be {ENDINGS}, or a folder of pictures"
        )
    name = path.name if path.is_dir() else path.name[: -len(ending)]
    check_name(name)
    return name


def file_ending(path: Path) -> str:
    """The ending of a party's file name; "" for other files."""
    return next((ending for ending in KINDS if path.name.lower().endswith(ending)), "")


def _kind(path: Path) -> str:
    """The kind of data of a file or folder."""
    return PICTURES if path.is_dir() else KINDS[file_ending(path)]
