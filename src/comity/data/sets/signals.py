"""Time series: people's movements and patients' records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from comity.base.key import Key
from comity.data.dataset import Dataset
from comity.data.files import FileLayout, FilePaths
from comity.data.formats import read_npz, read_uci_har
from comity.data.formats.common import file_error, labels, list_folder
from comity.data.groups import Groups
from comity.data.library import Card, Entry, register
from comity.data.sets.common import Arrays
from comity.data.sets.sums import SUMS

HAR = Card(
    name="har",
    samples=10299,
    classes=6,
    shape=(9, 128),
    description=(
        "What a phone at the waist feels of six activities: 9 channels, 128 times (Anguita et al."
        " 2013); windows overlap by half; har(layout=pfllib) has them reshaped without being"
        " transposed, as in public files"
    ),
    licence="CC BY 4.0; the original notice prohibits commercial use",
    groups=("subject",),
)
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
OVERLAP_WARNING = (
    "har: neighbouring windows overlap by half, so a random test part, own(0.25), shares readings"
    " with the training part; tail(0.25) does not."
)


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


def _har(data: Arrays) -> Dataset:
    subjects = np.unique(data["subject"])
    people = Groups(
        tuple(f"person {n}" for n in subjects), np.searchsorted(subjects, data["subject"])
    )
    x = torch.from_numpy(np.asarray(data["x"], dtype=np.float32))
    return Dataset(
        name=HAR.name,
        x=x,
        y=torch.from_numpy(np.asarray(data["y"], dtype=np.int64)),
        classes=HAR.classes,
        description=HAR.description,
        licence=HAR.licence,
        official_test=torch.from_numpy(np.asarray(data["is_test"], dtype=np.bool_)),
        mean=(0.0,),
        std=(1.0,),
        groups={"subject": people},
        default_partition="natural(by=subject)",
        class_names=ACTIVITIES,
        warnings=(OVERLAP_WARNING,),
    )


def _npz(paths: FilePaths) -> Dataset:
    return _har(
        read_npz(paths["uci_har.npz"], x=("n", 9, 128), y=("n",), subject=("n",), is_test=("n",))
    )


def _text(paths: FilePaths) -> Dataset:
    return _har(read_uci_har(paths["UCI HAR Dataset"])._asdict())


HAR_LAYOUTS = (
    FileLayout(_text, ("UCI HAR Dataset",), "UCI HAR Dataset/"),
    FileLayout(_npz, ("uci_har.npz",), sums=SUMS["har"]),
)
register(Entry(HAR, HAR_LAYOUTS, options=_apply_layout))


# Intensive care. Access to eICU needs credentials, so there is a synthetic stand-in.

# The number of stays depends on how the files were prepared: 14 hospitals of 500 to 1,300 in the
# paper.
EICU_LICENCE = (
    "PhysioNet Credentialed Health Data License 1.5.0; those who have access prepare the files"
    " themselves"
)
EICU = Card(
    name="eicu",
    samples=12600,
    classes=2,
    shape=(200, 442),
    description=(
        "Does a patient die in intensive care? 442 features over 200 steps, from 14 "
        "hospitals, as Fed-SPS uses them (Pollard et al. 2018)"
    ),
    licence=EICU_LICENCE,
    groups=("hospital",),
    missing="refused: fill them in when preparing the files",
)
STANDIN = Card(
    name="eicu-standin",
    samples=560,
    classes=2,
    shape=(24, 442),
    description=(
        "SYNTHETIC records with eICU's 442 features and 14 hospitals, 40 stays of 24 "
        "steps each: made from random numbers, nothing in it is a patient"
    ),
    licence="Apache-2.0, as Comity",
    groups=("hospital",),
)
OUTCOMES = ("survives", "dies")
HOSPITALS = 14
STAYS = 40


def _eicu(paths: FilePaths) -> Dataset:
    """Read one npz file per hospital: `x` (stays, 200, 442) and `y` (0 or 1)."""
    folder = paths["eicu"]
    files = [path for path in list_folder(folder) if path.suffix == ".npz"]
    if not files:
        raise file_error(folder, "holds no npz files: it must have one per hospital")
    parts = {}
    for path in files:
        data = read_npz(path, x=("stays", *EICU.shape), y=("stays",))
        if any(values.dtype.kind not in "biuf" for values in data.values()):
            raise file_error(path, "must hold numbers")
        parts[path.stem] = np.asarray(data["x"], np.float32), labels(path, data["y"], 2)
    warnings: tuple[str, ...] = ()
    if len(parts) != HOSPITALS:
        warnings = (
            f"eicu: {len(parts)} hospitals are available, not {HOSPITALS} as in the paper.",
        )
    return _records(EICU, parts, warnings)


def _standin() -> Dataset:
    """Synthetic hospitals that differ in the level of their features.

    Patients in danger drift over time in a few features, which are the same at all hospitals.
    """
    key = Key.root(0).fold(STANDIN.name)
    steps, features = STANDIN.shape
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
    return _records(
        STANDIN,
        parts,
        ("eicu-standin: these records are synthetic and say nothing about patients.",),
    )


def _records(
    card: Card, parts: dict[str, tuple[NDArray[Any], NDArray[Any]]], warnings: tuple[str, ...]
) -> Dataset:
    """A dataset of the hospitals' stays."""
    x, y = (np.concatenate(arrays) for arrays in zip(*parts.values(), strict=True))
    hospital_numbers = np.repeat(
        np.arange(len(parts)), [len(outcomes) for _, outcomes in parts.values()]
    )
    return Dataset(
        name=card.name,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        classes=2,
        description=card.description,
        licence=card.licence,
        official_test=None,
        mean=(0.0,),
        std=(1.0,),
        groups={"hospital": Groups(tuple(parts), hospital_numbers)},
        default_partition="natural(by=hospital)",
        class_names=OUTCOMES,
        warnings=warnings,
    )


register(Entry(EICU, (FileLayout(_eicu, ("eicu",), "eicu/ with one npz file per hospital"),)))
register(Entry(STANDIN, make=_standin))
