"""Datasets as folders of arrays: the output of `comity data import` and the dataset cache.

`dataset.json` describes the dataset and has a checksum of its own content. `x.npy`, `y.npy` and
further files hold the arrays, which are checked against the fingerprint in `dataset.json`. Arrays
are memory-mapped, so that all processes that read a folder share its pages. A folder appears as a
whole or not at all: it is written under a temporary name and then renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
import torch

from comity.base.samples import combine
from comity.checksums import CRC, with_crc, without_crc
from comity.data.dataset import Dataset
from comity.data.groups import Groups
from comity.data.preparation import Schema, Unusable
from comity.errors import UsageError
from comity.safe_files import create_file, make_folder, readers_of, write_atomically

VERSION = 6
"""Version of the folder format."""
WITHOUT_CUT_BY = 5
"""The last version without `cut_by.npy`."""
WITHOUT_SCHEMA = 4
"""The last version without a schema; its values were scaled before they were written."""
WITHOUT_CHECKSUM = 3
"""The last version without a checksum in `dataset.json`."""
ATTRIBUTES = {
    "name": "name",
    "classes": "classes",
    "description": "description",
    "licence": "licence",
    "mean": "mean",
    "std": "std",
    "home": "default_partition",
    "missing": "missing",
    "class_names": "class_names",
    "notes": "warnings",
    "scale": "scale",
    "scaled": "scaled",
}
"""Keys of `dataset.json`, and the attributes of `Dataset` that they hold."""
SCHEMA = "schema.json"


def save(dataset: Dataset, folder: Path, sources: Iterable[Path] = ()) -> None:
    """Write a dataset to a new folder.

    If another process has created the folder meanwhile, that folder stays and this one is
    discarded.

    Args:
        dataset: the dataset.
        folder: the folder, which is created. The umask says who can read it.
        sources: the files and folders that the dataset was read from. Nobody can read the new
            folder who cannot read all of them.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}-{secrets.token_hex(8)}")
    make_folder(temporary)
    try:
        created = temporary.stat()
        readers = (readers_of(source, created.st_gid) for source in sources)
        temporary.chmod(reduce(and_, readers, stat.S_IMODE(created.st_mode)))
        arrays = {"x": dataset.x.numpy(), "y": dataset.y.numpy()}
        if dataset.official_test is not None:
            arrays["test"] = dataset.official_test.numpy()
        if dataset.cut_by is not None:
            arrays["cut_by"] = dataset.cut_by
        if dataset.patients is not None:
            arrays["patients"] = dataset.patients
        if dataset.copies is not None:
            arrays["copies"] = dataset.copies
        if dataset.shared_rows is not None:
            arrays["shared_rows"] = dataset.shared_rows
        arrays |= {f"group-{k}": group.of for k, group in enumerate(dataset.groups.values())}
        for name, array in arrays.items():
            with create_file(temporary / f"{name}.npy") as file:
                np.save(file, array)
        description = {key: getattr(dataset, name) for key, name in ATTRIBUTES.items()}
        description |= {
            "version": VERSION,
            "groups": {by: g.names for by, g in dataset.groups.items()},
        }
        description |= {
            "fingerprint": dataset.fingerprint(),
            "test": _test_digest(dataset),
            "schema": dataset.schema is not None,
        }
        if dataset.schema:
            write_atomically(temporary / SCHEMA, dataset.schema.to_text())
        write_atomically(temporary / "dataset.json", json.dumps(with_crc(description), indent=1))
        with contextlib.suppress(OSError):  # another process has written the folder first
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _test_digest(dataset: Dataset) -> str:
    """A hash of `official_test` and `cut_by`, which the dataset's fingerprint does not cover."""
    if dataset.official_test is None:
        return ""
    cut = [] if dataset.cut_by is None else dataset.cut_by.tolist()
    return combine([*dataset.official_test.tolist(), *cut])


def read(folder: Path) -> Dataset:
    """Read the dataset of a folder, and check its checksum and fingerprint.

    Raises:
        UsageError: if the folder holds no dataset or was changed.
    """
    try:
        description = _check_description(
            json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        )
        arrays = {
            p.stem: np.load(p, mmap_mode="c", allow_pickle=False) for p in folder.glob("*.npy")
        }
        numbered = enumerate(description["groups"].items())
        groups = {
            by: Groups(tuple(names), np.array(arrays[f"group-{k}"])) for k, (by, names) in numbered
        }
        official_test = torch.from_numpy(np.array(arrays["test"])) if "test" in arrays else None
        cut_by = np.array(arrays["cut_by"]) if "cut_by" in arrays else None
        # An earlier version refuses a folder with these: the fingerprint covers them.
        patients = np.array(arrays["patients"]) if "patients" in arrays else None
        copies = np.array(arrays["copies"]) if "copies" in arrays else None
        shared_rows = np.array(arrays["shared_rows"]) if "shared_rows" in arrays else None
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value := description[key], list) else value
            for key, name in ATTRIBUTES.items()
        }
        x = torch.from_numpy(arrays["x"])
        y = torch.from_numpy(np.array(arrays["y"]))
        # The fingerprint covers the content of the schema.
        schema = Schema.read(folder / SCHEMA) if description["schema"] else None
        dataset = Dataset(
            x=x,
            y=y,
            official_test=official_test,
            groups=groups,
            schema=schema,
            cut_by=cut_by,
            patients=patients,
            copies=copies,
            shared_rows=shared_rows,
            **fields,
        )
        unchanged = (description["fingerprint"], description["test"]) == (
            dataset.fingerprint(),
            _test_digest(dataset),
        )
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        EOFError,
        AttributeError,
        RecursionError,
        UsageError,
        Unusable,
    ) as error:
        raise UsageError(
            f"{folder} holds no dataset written by Comity, or a damaged one; import it again."
        ) from error
    if not unchanged:
        raise UsageError(
            f"{folder} has changed since it was written: it is damaged, or from another version;"
            " import it again."
        )
    return dataset


def _check_description(content: Mapping[str, Any]) -> dict[str, Any]:
    """Check the content of a `dataset.json` and fill in what earlier versions did not write.

    Content that cannot be checked for changes gets a warning.

    Raises:
        ValueError: if the content was changed, or is of an unknown version.
    """
    if content["version"] == WITHOUT_CHECKSUM and CRC not in content:
        warning = (
            f"{content['name']}: imported by an earlier version without checksums, so changes of"
            " its description cannot be detected."
        )
        return {**EARLIER_DEFAULTS, **content, "notes": [*content["notes"], warning]}
    if content["version"] not in (VERSION, WITHOUT_CUT_BY, WITHOUT_SCHEMA) or CRC not in content:
        raise ValueError("another version, or no checksum")
    return EARLIER_DEFAULTS | without_crc(content)


EARLIER_DEFAULTS: dict[str, Any] = {"scale": "fixed", "scaled": (), "schema": False}
"""Values for keys that earlier versions did not write."""
