"""Time series: people's movements and patients' records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from comity.base.key import Key
from comity.data.dataset import Dataset
from comity.data.files import FilePaths
from comity.data.formats import read_npz, read_uci_har
from comity.data.formats.common import file_error, labels, list_folder
from comity.data.groups import Groups
from comity.data.sets.common import Arrays, build_dataset
from comity.data.sets.descriptions import Description, register_datasets

PFLLIB_WARNING = (
    "har(layout=pfllib): windows of 128 times by 9 channels are reshaped to 9 by 128 without being"
    " transposed, as in PFLlib's public files, so that each row mixes all channels: for comparisons"
    " with results from those files only."
)


def _apply_layout(har: Dataset, layout: Literal["channels", "pfllib"] = "channels") -> Dataset:
    """One row per channel; or as in PFLlib's files, where (128, 9) is reshaped to (9, 128)."""
    if layout == "channels":
        return har
    return replace(
        har, x=har.x.transpose(1, 2).reshape(har.x.shape), warnings=(*har.warnings, PFLLIB_WARNING)
    )


def _har(card: Description, data: Arrays) -> Dataset:
    subjects = np.unique(data["subject"])
    people = Groups(
        tuple(f"person {n}" for n in subjects), np.searchsorted(subjects, data["subject"])
    )
    return build_dataset(
        card,
        torch.from_numpy(np.asarray(data["x"], dtype=np.float32)),
        torch.from_numpy(np.asarray(data["y"], dtype=np.int64)),
        official_test=torch.from_numpy(np.asarray(data["is_test"], dtype=np.bool_)),
        mean=(0.0,),
        std=(1.0,),
        groups={"subject": people},
    )


def _har_npz(card: Description, paths: FilePaths) -> Dataset:
    (path,) = paths.values()
    return _har(card, read_npz(path, x=("n", 9, 128), y=("n",), subject=("n",), is_test=("n",)))


def _har_text(card: Description, paths: FilePaths) -> Dataset:
    (folder,) = paths.values()
    return _har(card, read_uci_har(folder)._asdict())


# Intensive care.

HOSPITALS = 14
STAYS = 40


def _eicu(card: Description, paths: FilePaths) -> Dataset:
    """Read one npz file per hospital: `x` (stays, 200, 442) and `y` (0 or 1)."""
    (folder,) = paths.values()
    files = [path for path in list_folder(folder) if path.suffix == ".npz"]
    if not files:
        raise file_error(folder, "holds no npz files: it must have one per hospital")
    parts = {}
    for path in files:
        data = read_npz(path, x=("stays", *card.shape), y=("stays",))
        if any(values.dtype.kind not in "biuf" for values in data.values()):
            raise file_error(path, "must hold numbers")
        parts[path.stem] = np.asarray(data["x"], np.float32), labels(path, data["y"], 2)
    warnings: tuple[str, ...] = ()
    if len(parts) != HOSPITALS:
        warnings = (
            f"eicu: {len(parts)} hospitals are available, not {HOSPITALS} as in the paper.",
        )
    return _records(card, parts, warnings)


def _standin(card: Description) -> Dataset:
    """Synthetic hospitals that differ in the level of their features.

    Patients in danger drift over time in a few features, which are the same at all hospitals.
    """
    key = Key.root(0).fold(card.name)
    steps, features = card.shape
    rng = key.numpy()
    drift = (
        np.linspace(0, 1, steps)[:, None] * rng.normal(size=features) * (rng.random(features) < 0.1)
    )
    parts = {}
    for n in range(1, HOSPITALS + 1):
        rng = key.fold(n).numpy()
        level = rng.normal(0, 0.5, features)
        danger = rng.normal(size=STAYS)
        deaths = round(STAYS * rng.uniform(0.05, 0.12))
        rank = np.argsort(np.argsort(danger + rng.normal(0, 0.5, STAYS)))
        x = rng.normal(size=(STAYS, steps, features)) + level + danger[:, None, None] * drift
        parts[f"hospital {n}"] = x.astype(np.float32), (rank >= STAYS - deaths).astype(np.int64)
    return _records(card, parts)


def _records(
    card: Description,
    parts: dict[str, tuple[NDArray[Any], NDArray[Any]]],
    warnings: tuple[str, ...] = (),
) -> Dataset:
    """A dataset of the hospitals' stays."""
    x, y = (np.concatenate(arrays) for arrays in zip(*parts.values(), strict=True))
    hospital_numbers = np.repeat(
        np.arange(len(parts)), [len(outcomes) for _, outcomes in parts.values()]
    )
    return build_dataset(
        card,
        torch.from_numpy(x),
        torch.from_numpy(y),
        mean=(0.0,),
        std=(1.0,),
        groups={"hospital": Groups(tuple(parts), hospital_numbers)},
        warnings=warnings,
    )


register_datasets(
    Path(__file__).with_suffix(".toml"),
    readers={"har-text": _har_text, "har-npz": _har_npz, "eicu": _eicu},
    make={"eicu-standin": _standin},
    options={"har": _apply_layout},
)
