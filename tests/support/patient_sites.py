"""Sites whose data name patients, with several records each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from in_process_sites import OPEN, Sites

import comity
from comity.data.importing import import_federation
from comity.deploy.data import import_site_data

NAMES = ("north", "south")


class PatientSites(Sites):
    """Two sites whose files name patients.

    Arguments:
        folder: where the sites are
        changes: to the site policies
        records: the number of records of each site
        patient: the number of a record's patient, by the number of the record
        label: a record's class, by the number of the record; default: that of the digit
        classes: the number of classes
    """

    def __init__(
        self,
        folder: Path,
        changes: Mapping[str, str] = OPEN,
        records: int = 72,
        patient: Callable[[int], int] = lambda j: j * 3 // 7,
        label: Callable[[int], int] | None = None,
        classes: int = 10,
    ) -> None:
        super().__init__(folder, dict.fromkeys(NAMES, (60, 12)), changes, classes=classes)
        whole = comity.load("digits")
        (folder / "named").mkdir()
        for k, name in enumerate(NAMES):
            part = slice(records * k, records * (k + 1))
            y = whole.y[part].numpy() % classes
            np.savez(
                folder / "named" / f"{name}.npz",
                x=whole.x[part].numpy(),
                y=np.array([label(j) for j in range(records)]) if label else y,
                mrn=np.array([f"mrn-{patient(j)}" for j in range(records)]),
            )
            import_site_data(
                folder / "named" / f"{name}.npz", self.site(name) / "more", None, classes, "mrn"
            )
            self.change(name, {'data = "data"': 'data = "more"'})
        import_federation(folder / "named", folder / "again", classes=classes, group="mrn")
