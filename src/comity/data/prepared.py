"""A dataset as a folder of plain arrays: what `comity data import` writes, and the cache of
prepared datasets.

`dataset.json` describes it, with a checksum of all it says; `x.npy`, `y.npy` and the like hold it,
and are checked against the fingerprint there. Arrays are memory-mapped, so that all processes that
read one folder share its pages. A folder appears whole or not at all: it is written beside its
place and then moved there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
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

VERSION = 6
# the last version that did not know which samples others than the makers had cut in training and
# test
UNCUT = 5
UNSCALED = (
    4  # the last version without a schema, and whose values were scaled before they were written
)
UNCHECKED = 3  # the last version whose descriptions had no checksum
TOLD = (
    "name",
    "classes",
    "description",
    "licence",
    "mean",
    "std",
    "home",
    "missing",
    "class_names",
    "notes",
    "scale",
    "scaled",
)
SCHEMA = "schema.json"


def save(dataset: Dataset, folder: Path) -> None:
    """Write a dataset to a folder that does not exist yet; whoever comes second leaves the first
    one's folder as it is.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        np.save(beside / "x.npy", dataset.x.numpy())
        np.save(beside / "y.npy", dataset.y.numpy())
        if dataset.official_test is not None:
            np.save(beside / "test.npy", dataset.official_test.numpy())
        if dataset.cut_by is not None:
            np.save(beside / "cut_by.npy", dataset.cut_by)
        for k, group in enumerate(dataset.groups.values()):
            np.save(beside / f"group-{k}.npy", group.of)
        told = {name: getattr(dataset, name) for name in TOLD}
        told |= {"version": VERSION, "groups": {by: g.names for by, g in dataset.groups.items()}}
        told |= {
            "fingerprint": dataset.fingerprint(),
            "test": _digest(dataset),
            "schema": dataset.schema is not None,
        }
        if dataset.schema:
            dataset.schema.write(beside / SCHEMA)
        (beside / "dataset.json").write_text(json.dumps(with_crc(told), indent=1), encoding="utf-8")
        beside.chmod(0o755)
        with contextlib.suppress(OSError):  # it is there already: somebody else was quicker
            os.rename(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _digest(dataset: Dataset) -> str:
    """A short name for the official test part and what may be cut anew, which a dataset's
    fingerprint does not know of.
    """
    if dataset.official_test is None:
        return ""
    cut = [] if dataset.cut_by is None else dataset.cut_by.tolist()
    return combine([*dataset.official_test.tolist(), *cut])


def read(folder: Path) -> Dataset:
    """The dataset of a folder, checked against the checksum and the fingerprint it was written
    with.
    """
    try:
        told = _description(json.loads((folder / "dataset.json").read_text(encoding="utf-8")))
        arrays = {
            p.stem: np.load(p, mmap_mode="c", allow_pickle=False) for p in folder.glob("*.npy")
        }
        named = enumerate(told["groups"].items())
        groups = {
            by: Groups(tuple(names), np.array(arrays[f"group-{k}"])) for k, (by, names) in named
        }
        held = torch.from_numpy(np.array(arrays["test"])) if "test" in arrays else None
        cut_by = np.array(arrays["cut_by"]) if "cut_by" in arrays else None
        known: dict[str, Any] = {
            name: tuple(v) if isinstance(v := told[name], list) else v for name in TOLD
        }
        x = torch.from_numpy(arrays["x"])
        y = torch.from_numpy(np.array(arrays["y"]))
        schema = (
            Schema.read(folder / SCHEMA) if told["schema"] else None
        )  # the fingerprint knows what it says
        made = Dataset(
            x=x, y=y, official_test=held, groups=groups, schema=schema, cut_by=cut_by, **known
        )
        same = (told["fingerprint"], told["test"]) == (made.fingerprint(), _digest(made))
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
    ) as why:
        raise UsageError(
            f"{folder} holds no dataset that Comity wrote, or a damaged one; import it again."
        ) from why
    if not same:
        raise UsageError(
            f"{folder} is not what was written there: it is damaged, or from another version;"
            " import it again."
        )
    return made


def _description(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a dataset.json says; a ValueError if it is not what was written, and a note if that
    cannot be known.
    """
    if told["version"] == UNCHECKED and CRC not in told:
        note = (
            f"{told['name']}: imported by an earlier version; whether its description was changed"
            " since cannot be checked."
        )
        return {**EARLIER, **told, "notes": [*told["notes"], note]}
    if told["version"] not in (VERSION, UNCUT, UNSCALED) or CRC not in told:
        raise ValueError("another version, or no checksum")
    return EARLIER | without_crc(told)


EARLIER: dict[str, Any] = {"scale": "fixed", "scaled": (), "schema": False}
"""What earlier versions did not say."""
