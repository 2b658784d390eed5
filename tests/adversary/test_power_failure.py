"""A power failure right after a reply has left: everything that a site's guarantees depend on is on
its disk.

A model of the disk takes the place of `os.fsync`: of a file it keeps the size, of a folder the
names, as they were when they were last synced.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from in_process_sites import Sites
from malicious_server import METHOD, SETTINGS, SIZES, MaliciousServer, weights

from comity.base.record import Model
from comity.deploy.release_ledger import LEDGER_FILE
from comity.deploy.sent_ledger import SENT_FILE

NOT_SYNCED = {"ledger.csv", "metrics.csv", "privacy.csv", "steps.csv", "log.txt"}
"""For reading only: docs/how-to/deploy.md says why that is safe."""
IMPORTED = {"data", "site.toml"}
"""Written before the site takes part in anything."""


class Disk:
    """What would be left after a power failure."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._names: dict[int, set[str]] = {}

    def fsync(self, descriptor: int) -> None:
        """Take the place of `os.fsync`."""
        about = os.fstat(descriptor)
        if stat.S_ISDIR(about.st_mode):
            self._names[about.st_ino] = set(os.listdir(descriptor))
        else:
            self._sizes[about.st_ino] = about.st_size

    def lost_files(self, folder: Path) -> set[str]:
        """The files in a folder that would not be there, or not with all of their content."""
        lost = set()
        for path in folder.rglob("*"):
            inside = path.relative_to(folder)
            if inside.parts[0] in IMPORTED or path.name in NOT_SYNCED:
                continue
            parents = [folder / parent for parent in (inside, *inside.parents)][:-1]
            named = all(
                place.name in self._names.get(place.parent.stat().st_ino, ()) for place in parents
            )
            about = path.stat()
            if not named or (path.is_file() and self._sizes.get(about.st_ino) != about.st_size):
                lost.add(str(inside))
        return lost


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


@pytest.mark.parametrize(
    ("method", "depth", "stored"), [(METHOD, 1, "replies"), ("ditto", 0, "states")]
)
def test_nothing_that_guarantees_depend_on_is_lost(
    tmp_path: Path, disk: Disk, method: str, depth: int, stored: str
) -> None:
    sites = Sites(tmp_path / "sites", SIZES)
    server = MaliciousServer(sites, "north", "failing", method, **SETTINGS)
    server.begin()
    home, message = sites.site("north"), Model(weights(0.0))
    server.call("local", message, depth=depth)
    assert list((home / "runs" / "failing" / stored).iterdir())
    assert {LEDGER_FILE, SENT_FILE} <= {path.name for path in home.iterdir()}
    assert disk.lost_files(home) == set()


def test_an_evaluation_counts_after_a_power_failure(tmp_path: Path, disk: Disk) -> None:
    sites = Sites(tmp_path / "sites", SIZES)
    server = MaliciousServer(sites, "north", "failing", METHOD, **SETTINGS)
    server.begin()
    server.evaluate(Model(weights(0.0)))
    assert SENT_FILE in {path.name for path in sites.site("north").iterdir()}
    assert disk.lost_files(sites.site("north")) == set()
