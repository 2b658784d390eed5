"""Signals over time: people's movements, patients' vital signs."""

from __future__ import annotations

import numpy as np
import torch

from comity.data.dataset import Dataset
from comity.data.files import Found, Way
from comity.data.formats import read_npz, read_uci_har
from comity.data.groups import Groups
from comity.data.library import Card, Entry, register
from comity.data.sets.common import Arrays

HAR = Card("har", 10299, 6, (9, 128), "What a phone at the waist feels of six activities: 9 channels, 128 times "
           "(Anguita et al. 2013); windows overlap by half", "CC BY 4.0; the original notice prohibits commercial use",
           groups=("subject",))
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
OVERLAP = ("har: neighbouring windows overlap by half, so a random test part, own(0.25), shares readings with the training part; "
           "tail(0.25) does not.",)


def _har(data: Arrays) -> Dataset:
    subjects = np.unique(data["subject"])
    mine = Groups(tuple(f"person {n}" for n in subjects), np.searchsorted(subjects, data["subject"]))
    x = torch.from_numpy(np.asarray(data["x"], dtype=np.float32))
    return Dataset(
        HAR.name, x, torch.from_numpy(np.asarray(data["y"], dtype=np.int64)), HAR.classes, HAR.description, HAR.licence,
        torch.from_numpy(np.asarray(data["is_test"], dtype=np.bool_)), (0.0,), (1.0,), {"subject": mine},
        home="natural(by=subject)", class_names=ACTIVITIES, notes=OVERLAP,
    )  # fmt: skip


def _npz(found: Found) -> Dataset:
    return _har(read_npz(found["uci_har.npz"], x=("n", 9, 128), y=("n",), subject=("n",), is_test=("n",)))


def _text(found: Found) -> Dataset:
    return _har(read_uci_har(found["UCI HAR Dataset"])._asdict())


register(Entry(HAR, (Way(_text, ("UCI HAR Dataset",)), Way(_npz, ("uci_har.npz",)))))
